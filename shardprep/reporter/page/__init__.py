"""The page: a report as one HTML file that needs nothing else, neither a network nor scripts.

`page.render` is its door. Text of others enters by `html.tag` alone, which escapes it.
"""
