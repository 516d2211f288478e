"""Kaggle: download archives, and upload datasets.

    ref              parse a reference to an archive
    credentials      credentials of this machine
    client           the child process: one order of the kaggle client
    client_upload    orders of an upload, in the child process
    client_process   the parent: runs a child process and reads its reports
    client_error     failures of the client: retries, and errors with the next step
    archive_check    verify a downloaded archive
    download         find an archive on this machine, or download it until it is checked
    upload_metadata  metadata of an upload, and Kaggle's rules for it
    upload           upload until Kaggle has the version

Nothing is imported here, because the child process would load it too.
"""
