"""Archives from Kaggle: whole and checked under their name, or not there.

    ref             what a person writes → what Kaggle offers
    credentials     how a person is known on this machine
    client          the child process, the only importer of `kaggle`
    client_process  one run of it, watched from outside
    client_error    how a run failed, and what a person can do
    integrity       whether an archive is whole
    archive_cache   where an archive lies, and what is known of it there
    download        run after run until a checked archive is in its place

Nothing is imported here: the child would load it all, for `client` alone.
"""
