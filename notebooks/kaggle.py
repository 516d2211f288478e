# %% [markdown]
# # Go from Kaggle's data to a submission in a notebook
#
# This page shows how to build a dataset in a Kaggle notebook and train on it. At the end you will have a model
# and its `submission.csv`. Kaggle mounts the inputs of a notebook in the read-only folder `/kaggle/input`:
#
# | input | folder | SOURCE for shardprep |
# |---|---|---|
# | a competition | `/kaggle/input/competitions/SLUG/` | `kaggle:SLUG` |
# | a dataset | `/kaggle/input/datasets/OWNER/SLUG/` | `kaggle:OWNER/SLUG` |
# | either, in older notebooks | `/kaggle/input/SLUG/` | the same |
#
# If one of these folders exists, `kaggle:SLUG` reads it in place, downloads nothing and prints which folder
# it used. On other machines it downloads the archive. So the same line works in a notebook and at home.
#
# The folder does not show its version. `kaggle:OWNER/SLUG/3` therefore reads the mounted version and
# prints a notice. `refresh=True` (`--refresh`) downloads anyway. `shardprep download` only prints that
# nothing needs to be downloaded.
#
# The output of a notebook is the content of `/kaggle/working`, at most 20 GB. `build` reads archives in
# place, so the shards need space: about 6 kB for each image at 160x160. Only a compressed archive in an archive
# is unpacked first, next to the shards, and removed at the end. A notebook starts in `/kaggle/working`, so
# relative paths are there.
#
# The outputs on this page come from a small copy of the competition `dogs-vs-cats`, in which drawn circles
# are the cats and drawn triangles the dogs.
#
# [Make a wheel](../docs/platforms.md) and add it as a dataset, here `shardprep`. TensorFlow is preinstalled.
#
# ```console
# $ pip install /kaggle/input/shardprep/*.whl
# ```
#
# ## Look before you build

# %%
import shardprep

source = "kaggle:dogs-vs-cats"
plan = shardprep.build(source, dry_run=True)
plan

# %% [markdown]
# The last line of a cell shows a table: the splits, the rule that gives the labels, and the skipped
# files. If no labels are found, `shardprep.init(source)` lists the rules that find some.
# [kaggle.md](../docs/kaggle.md) has the flags of 55 datasets.
#
# ## Build

# %%
built = shardprep.build(
    source,
    name="dogs_vs_cats",
    size="160x160",
    split={"validation": 0.1},
    progress=True,
)
built

# %% [markdown]
# If the session ends during the build, run the same cell again. It continues where it stopped, as long as
# `/kaggle/working` is kept. For shards that you need only in this session, use `/kaggle/tmp`: it has more
# space and is not part of the output.
#
# ## Look at the dataset

# %%
report = shardprep.report(built.location, output="report.html")
report

# %% [markdown]
# Findings come first: the same picture in two splits, copies with different labels, dark or blurred
# images. The page opens from the notebook's output.
#
# ## Train

# %%
import tensorflow as tf

from shardprep import reader

train = reader.load(built.location, "train", batch_size=64, seed=0, cache="memory")
valid = reader.load(built.location, "validation", batch_size=64, shuffle=False, cache="memory")
model = tf.keras.Sequential(
    [
        tf.keras.layers.Rescaling(1 / 255),
        tf.keras.layers.Conv2D(16, 3, 2, activation="relu"),
        tf.keras.layers.Conv2D(32, 3, 2, activation="relu"),
        tf.keras.layers.GlobalAveragePooling2D(),
        tf.keras.layers.Dense(len(train.class_names)),
    ]
)
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss, metrics=["accuracy"])
history = model.fit(train, validation_data=valid, epochs=2, verbose=0)
print(f"loss {history.history['loss'][0]:.2f} to {history.history['loss'][-1]:.2f}")
model.save("model.keras")

# %% [markdown]
# If a call fails, the cell shows one line without a traceback. `cache="memory"` keeps the decoded images
# in memory. `"auto"` does so only if they fit. With PyTorch or JAX, use `reader.Dataset` instead of
# `load`: [without_tensorflow.md](../docs/without_tensorflow.md).
#
# ## Submit

# %%
import csv
from pathlib import PurePosixPath

test = reader.load(built.location, "test", batch_size=64, as_supervised=False)
answers = {}
for batch in test:
    scores = tf.nn.softmax(model(batch["image"], training=False)).numpy()
    for name, score in zip(batch["image/filename"].numpy(), scores, strict=True):
        answers[PurePosixPath(name.decode()).stem] = score[train.class_names.index("dog")]

sample = shardprep.download("dogs-vs-cats").path / "sampleSubmission.csv"
with sample.open(encoding="utf-8") as given, open("submission.csv", "w", newline="") as file:
    header, *rows = csv.reader(given)
    csv.writer(file).writerows([header, *([name, answers[name]] for name, _ in rows)])

# %% [markdown]
# The rows have the order of `sampleSubmission.csv`, as a submission needs it. `download` returns the mounted
# folder. The shards of a test set need no labels. `image/filename` is the name in the source. To use the shards
# in other notebooks, save the output of this notebook as a Kaggle dataset. Read it there from
# `/kaggle/input/datasets/OWNER/SLUG/…/tfrecords/dogs_vs_cats`. A reader does not need write access.

# %%
with open("submission.csv", encoding="utf-8") as file:
    print(*(line.split(",")[0] for line in file), sep=" ")

# %% [markdown]
# ## Next
#
# - [The flags of 55 datasets](../docs/kaggle.md), and how to upload a dataset to Kaggle.
# - [Read records by class, in folds or balanced draws](../docs/selections.md).
# - [Find what limits your training](../docs/bottlenecks.md).
# - [Segment images](../docs/tutorial_segment.md) or [find objects](../docs/tutorial_detect.md).
