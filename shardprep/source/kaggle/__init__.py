"""Archives from Kaggle and datasets to it: whole and checked in their place, or not there.

    ref             what a person writes → what Kaggle offers
    credentials     how a person is known on this machine
    client          the child process, for one order; `client_upload` has those of an upload
    client_process  one run of it, watched from outside
    client_fault    what ended it there, as a value; `client_error` what a person can do
    retry           how long and how often to try
    integrity       whether an archive is whole, and what was sent
    arrival         the archive that the client writes, as it grows
    archive_cache   where an archive lies, and what is known of it there
    download        run after run until a checked archive is in its place
    publication     a dataset as Kaggle is to have it, and Kaggle's rules
    kaggle_state    a dataset as Kaggle has it
    upload_folder   what is sent, what has arrived, and what came back
    upload          run after run until Kaggle has a version, and gives it back

Nothing is imported here: the child would load it all, for `client` alone.
"""
