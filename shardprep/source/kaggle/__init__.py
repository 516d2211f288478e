"""Download archives from Kaggle and upload datasets to it: complete and checked, or absent.

    ref              parse the text of a user into a Kaggle reference
    mount            folders that Kaggle mounts in its notebooks
    credentials      the Kaggle credentials of this machine
    client           the child process for one order; `client_upload` has its orders for uploads
    client_process   run the child process and watch it
    client_fault     failures in the child as values; `client_error` makes one-line errors of them
    retry            limits of retries
    archive_check    check an archive, or compare its files with expected hashes
    receive          receive the archive that the client writes
    archive_cache    the place of an archive in the cache, and its notes
    download         run the client until a checked archive is in its place
    upload_metadata  the metadata of an upload, checked against Kaggle's rules
    kaggle_state     the state of a dataset on Kaggle
    upload_folder    the folder of an upload: sent files, notes, and the copy for the check
    upload           run the client until Kaggle has a version, and compare it

This file imports nothing: the child would load everything, and needs only `client`.
"""
