"""The files of an unfinished build on a disk or in object storage, and how they become a dataset.

`states` finds the build for a path, leads it from state to state, and takes the intact files of a
damaged dataset into a build. `files` has the names and contents of the files. `local` and `remote`
are the two storages. Rules that hold in every state:

1. A finished dataset stays whole and readable until its replacement is complete. In object storage
   one write of `manifest.json` replaces it. On a disk two renames do. A run killed between them
   leaves the old dataset as `<version>.old`, and the next run does the second rename.
2. If a run is killed in any state, the same command checks its files and continues.
3. On a disk one process writes at a time, or several parts of one build: `held` has the lock.
   Object storage has no locks, and equal runs share a build, as `remote` explains. A run that finds
   another fingerprint in `.build.json` commits nothing more, and removes a manifest that it wrote.
"""
