"""The order of the records: which records each global batch of each epoch has.

Both readers use `order`, which also has the state of an iterator and the draws of a mix. `epoch`
has the other orders within an epoch, `global_batches` the parts of hosts, `permutation` the random
numbers. If a result of these modules changes, so does the order of every training run.
"""
