"""The states of a build and every transition between them, on a disk and in object storage.

`<v>` is `<out>/<name>/<version>`, `<token>` a random number in `.build.json`.

| state      | on a disk                    | in object storage                 | leaves by     |
|------------|------------------------------|-----------------------------------|---------------|
| absent     | nothing                      | nothing                           | begin, join   |
| begun      | `<v>.incomplete/.build.json` | the same, made only where none is | shards, begin |
| writing    | + shards and receipts there  | shards in `<v>/`, or in           | all receipts  |
|            |                              | `<v>/.draft-<token>/` over a      |               |
|            |                              | dataset                           |               |
| documented | + tables and documents       | + those beside the shards         | seal          |
| sealed     | + the manifest               | + the manifest, in `<v>/` only    | publish       |
|            |                              | where none is, or in the draft    |               |
| in force   | –                            | the draft's manifest in `<v>/`    | publish       |
| published  | folder renamed to `<v>`      | draft moved to `<v>/`             | overwrite     |
| taken over | – (a lock keeps others out)  | `.build.json` of another build    | error         |
| disturbed  | – (a lock keeps others out)  | `.build.json`, receipts or draft  | published, or |
|            |                              | removed by an equal run           | begin         |

Rules that hold in every state:

1. A finished dataset stays whole and readable until what replaces it is complete. In object storage
   one write over `manifest.json` replaces it. On a disk two renames do; a run killed between
   them leaves the old dataset as `<v>.old`, and the next run ends the second.
2. A run that is killed in any state is taken up by the same command, which checks what it finds.
3. On a disk one process writes at a time, or several parts of one build: `held` has the lock. In
   object storage are no locks, and equal runs share a build: `remote` says how. A run that finds
   another fingerprint in `.build.json` commits nothing more and removes a manifest it has just
   written.

`states` names the files and has the transitions that both storages share, `local` and `remote`
those that differ, `find` tells which build a path means, and `damaged` takes the intact files of a
damaged dataset into a build.
"""
