"""The report as one self-contained HTML file, readable without a network and without scripts.

`page.render` is the entry point. All text goes through `html.tag`, which escapes it.
"""
