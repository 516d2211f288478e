"""Which records a global batch has: a pure function of records, weights or buckets, seed and epoch.

`order` is what both readers ask, and the state of an iterator; `epoch` has the orders within an
epoch, `permutation` the random numbers. Changing what they compute changes the order of every
training run, which tests with fixed results detect.
"""
