# %% [markdown]
# # Build on several machines, and read on several hosts
#
# This page shows how several machines build one dataset in object storage and read it. At the end you will
# have a dataset that was built in two parts, and batches that two hosts share. Both machines of this notebook are processes on yours: the commands are the same elsewhere.
#
# [Install shardprep](../docs/platforms.md), then:
#
# ```console
# $ pip install 'shardprep[cloud]'
# ```
#
# Keys and the endpoint of the store come from the environment: [object_storage.md](../docs/object_storage.md). Set
# `BUCKET` to an address such as `s3://my-bucket`. Without it, the notebook writes to a folder: that works
# too, if all machines share the folder.

# %%
import os
import subprocess
import sys

import numpy as np

import shardprep
from shardprep import reader

bucket = os.environ.get("BUCKET", "bucket")
address = f"{bucket}/tfrecords"
print("object storage" if "://" in bucket else "a folder")

# %% [markdown]
# ## Build the parts
#
# Each machine gets the source, the same options and its own `--part`. Parts run in any order, at the same
# time and more than once.

# %%
shardprep.sample()
command = [sys.executable, "-m", "shardprep", "build", "--shards", "8", "--out", address, "--quiet"]
machines = [
    subprocess.Popen([*command, "--part", f"{number}/2"], stdout=subprocess.PIPE, text=True)
    for number in (1, 2)
]
for machine in machines:
    print(machine.communicate()[0].splitlines()[0])

# %% [markdown]
# ## Join them
#
# `finalize` reads the shards' totals and writes the manifest. Until then the dataset does not exist, and no
# reader opens it.

# %%
built = shardprep.finalize(address)
print(built.manifest.totals.num_written, "images in", len(built.manifest.splits), "splits")

# %% [markdown]
# Every file has the same bytes as after one build on one machine:

# %%
whole = shardprep.build("shapes.zip", out="alone", shards=8)
same = [
    here.sha256 == there.sha256
    for split in whole.manifest.splits
    for here, there in zip(
        built.manifest.splits[split].shards, whole.manifest.splits[split].shards, strict=True
    )
]
print(len(same), "shards, all equal:", all(same))

# %% [markdown]
# ## Read on two hosts
#
# Each host opens the address and takes its half of every global batch of 32. `num_shards` is the number of
# hosts. The readers for PyTorch, JAX and TensorFlow find it themselves when the hosts are set up.

# %%
data = reader.Dataset(address, "train")
hosts = [data.batches(16, seed=0, num_shards=2, shard_index=host) for host in (0, 1)]
alone = data.batches(32, seed=0)
for step in range(3):
    halves = [next(host)[0] for host in hosts]
    images, labels = next(alone)
    is_same = (np.concatenate(halves) == images).all()
    print("step", step, [len(half) for half in halves], "images make the global batch:", is_same)

# %% [markdown]
# ## Resume on another number of hosts
#
# A state holds the epoch and the number of global batches. One host continues after the three steps of two:

# %%
state = hosts[0].state_dict()
rest = data.batches(32, seed=0)
rest.load_state_dict(state)
next_images, _ = next(rest)
print("same next batch:", (next_images == next(alone)[0]).all())

# %% [markdown]
# ## Next
#
# - [Build one dataset on many machines](../docs/scale.md): Slurm, Kubernetes, ssh.
# - [Object storage](../docs/object_storage.md): credentials, failed requests, cleaning up.
# - [Read from object storage](../docs/remote_reading.md): local copies and their size limit.
# - Train on several hosts with [PyTorch](../docs/pytorch.md), [JAX](../docs/jax.md) or [TensorFlow](../docs/tensorflow.md).
