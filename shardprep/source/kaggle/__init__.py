"""Kaggle: download archives, and upload datasets.

`client` runs in a child process; `client_process` starts it and reads its reports. Nothing is
imported here, because the child process would load it too.
"""
