"""Which records a batch has: a pure function of records, weights or buckets, seed, epoch and host.

`order.Order` is what both readers ask; `epoch` has the orders within an epoch, `permutation` the
random numbers, and `iterator_state` the position of an iterator. Changing what they compute changes
the order of every training run, which tests with fixed results detect.
"""
