# %% [markdown]
# # Classify images in five minutes
#
# This page shows how to go from an archive of images to predictions. At the end you will have a dataset of
# TFRecord shards, a Keras model trained on it, and its predictions for the test images. The data is drawn on
# your machine, so nothing is downloaded.
#
# [Install shardprep](../docs/platforms.md), then:
#
# ```console
# $ pip install 'shardprep[reader]' keras
# ```

# %% [markdown]
# ## Get an archive
#
# `sample` writes an archive in the layout of a Kaggle competition: pictures of circles, squares and
# triangles in two inner zips. The class is in the file name, as in `train/circle.12.jpg`.

# %%
import zipfile

import shardprep

sample = shardprep.sample()
with zipfile.ZipFile(sample.path) as archive:
    print(archive.namelist())

# %% [markdown]
# ## Build the dataset
#
# Nothing needs to be unpacked. With `dry_run=True`, `build` shows what it would write. Without it, it
# writes the shards.

# %%
plan = shardprep.build(sample.path, split={"train": 0.8, "validation": 0.2}, size=64, dry_run=True)
plan

# %%
built = shardprep.build(sample.path, split={"train": 0.8, "validation": 0.2}, size=64, shards=4)
built

# %% [markdown]
# One image is rejected, because its file is cut off. Three files are not images. `items.parquet` in the
# dataset lists every file with the reason.
#
# ## Look at the pictures

# %%
from PIL import Image

from shardprep import reader

train = reader.Dataset(built.location, "train")
sheet = Image.new("RGB", (6 * 64, 64))
for place in range(6):
    image, label = train[30 * place]
    sheet.paste(Image.fromarray(image), (64 * place, 0))
    print(train.class_names[label])
sheet

# %% [markdown]
# ## Train
#
# `keras` gives `fit` batches of uint8 images and int64 labels. It works with each backend of Keras.

# %%
import keras
from keras import layers

keras.utils.set_random_seed(0)
valid = reader.Dataset(built.location, "validation")
model = keras.Sequential([keras.Input((64, 64, 3)), layers.Rescaling(1 / 127.5, -1)])
for filters, strides in ((16, 2), (32, 1), (64, 1)):
    model.add(layers.Conv2D(filters, 3, strides=strides, padding="same", use_bias=False))
    model.add(layers.BatchNormalization(momentum=0.8))
    model.add(layers.ReLU())
    model.add(layers.MaxPooling2D())
model.add(layers.GlobalMaxPooling2D())
model.add(layers.Dense(3, activation="softmax"))
model.compile(keras.optimizers.Adam(5e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(train.keras(32, seed=0), epochs=6, verbose=0)
scores = model.evaluate(valid.keras(32), verbose=0, return_dict=True)
print(f"validation accuracy {scores['accuracy']:.2f}; guessing gives 0.33")

# %% [markdown]
# ## Predict
#
# The images of the test split have no labels. `predict` returns one row for each record, in the order of
# the dataset.

# %%
test = reader.Dataset(built.location, "test")
probabilities = model.predict(test.keras(32), verbose=0)
print(len(probabilities), "predictions for", len(test), "images")
print("predicted:", *(train.class_names[row.argmax()] for row in probabilities[:6]))
sheet = Image.new("RGB", (6 * 64, 64))
for place in range(6):
    sheet.paste(Image.fromarray(test[place][0]), (64 * place, 0))
sheet

# %% [markdown]
# ## Next
#
# - [Find boxes](../docs/tutorial_detect.md) or [masks](../docs/tutorial_segment.md) with the same steps.
# - [Go from Kaggle's data to a submission](../docs/notebook.md).
# - [Choose a reader](../docs/which_loader.md) for Keras, PyTorch or JAX.
# - Choose where [labels](../docs/labels.md) and [splits](../docs/splits.md) come from.
