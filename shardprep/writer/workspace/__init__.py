"""What an unfinished build leaves on a disk or in object storage, and how it becomes a dataset.

`states` has the table of all states and transitions, `files` the names and contents of the files.
`local` and `remote` are the two storages. `find` says which build a path means, and `repair_input`
takes the intact files of a damaged dataset into a build. Rules that hold in every state:

1. A finished dataset stays whole and readable until what replaces it is complete. In object storage
   one write of `manifest.json` replaces it. On a disk two renames do; a run killed between them
   leaves the old dataset as `<version>.old`, and the next run ends the second.
2. A run that is killed in any state is continued by the same command, which checks what it finds.
3. On a disk one process writes at a time, or several parts of one build: `held` has the lock.
   Object storage has no locks, and equal runs share a build: `remote` says how. A run that finds
   another fingerprint in `.build.json` commits nothing more and removes a manifest it has just
   written.
"""
