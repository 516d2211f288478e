"""The order of the records: which of them are in each global batch of each epoch.

Both readers use `order`, which also has the state of an iterator and the draws of a mix. `epoch`
and `global_batches` have the other orders within an epoch, `global_batches` also the parts of
hosts, `permutation` the random numbers. A change of what they compute changes the order of every
training run; tests with fixed results detect that.
"""
