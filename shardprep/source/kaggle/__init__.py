"""Archives from Kaggle: whole and checked under their name, or not there.

    ref          what a person writes → what Kaggle offers
    credentials  how a person is known on this machine
    client       what runs in the child process, the only importer of `kaggle`
    attempt      one run of the client, watched from outside
    faults       how an attempt failed, and what a person can do
    damage       whether an archive is whole
    shelf        where an archive lies, and what is known of it there
    watcher      who is told how it goes
    download     attempt after attempt until a checked archive is on its shelf

Nothing is imported here: the child would load it all, for `client` alone.
"""
