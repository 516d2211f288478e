"""Kaggle: download archives, and upload datasets.

    ref              parse a reference to an archive
    credentials      credentials of this machine
    client           the child process: one order of the kaggle client
    client_upload    orders of an upload, in the child process
    client_process   the parent: runs a child process and reads its reports
    client_error     failures of the client: retries, and errors with the next step
    archive_cache    archives on this machine: mounted by Kaggle, or in the cache
    archive_check    verify a downloaded archive
    download         download with retries until the archive is checked
    upload_metadata  metadata of an upload, and Kaggle's rules for it
    kaggle_state     state of a dataset on Kaggle
    upload_folder    notes about an upload in the cache
    upload           upload with retries until Kaggle has the version

Nothing is imported here, because the child process would load it too.
"""
