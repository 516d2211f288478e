"""The report on a dataset for the eye: dataset → findings and pictures → one HTML page.

`report.make_report` gives all that is known as one value: what the documents say, what a pass over
the pixels adds, the findings ranked. The page, the JSON and the lists of keys are renderings of it.
Nothing here changes a dataset, and nothing knows what time it is or where the dataset lies: equal
datasets and options give equal pages.
"""
