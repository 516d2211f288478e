"""The report as one self-contained HTML file, readable without a network and without scripts."""
