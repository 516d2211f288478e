"""The classic augmentations as seeded ops on whole batches, for `reader.load` and for models.

    from shardprep.reader import augment
    recipe = augment.Compose([augment.RandomResizedCrop((224, 224)), augment.Flip()])
    train = reader.load("tfrecords/dogs_vs_cats", batch_size=64, augment=recipe)

An op is called with images and a seed, and with labels where it mixes them, or where they are boxes
or masks, which follow the pixels: `recipe(images, seed=(1, 2))`. The same seed gives the same
pixels. uint8 stays uint8, and floats of 0..1 stay so. docs/augment.md shows them all. Unlike
`shardprep.reader`, this imports TensorFlow.
"""

from __future__ import annotations

from shardprep.reader.validators import needing_tensorflow

with needing_tensorflow("reader.augment"):
    from shardprep.reader.augment.color import Color
    from shardprep.reader.augment.compose import Compose, classic
    from shardprep.reader.augment.geometry import Flip, QuarterTurn, RandomResizedCrop
    from shardprep.reader.augment.layer import Layer
    from shardprep.reader.augment.letterbox import Letterbox, Mosaic, Zoom
    from shardprep.reader.augment.mixup import CutMix, MixUp

__all__ = [
    "Color",
    "Compose",
    "CutMix",
    "Flip",
    "Layer",
    "Letterbox",
    "MixUp",
    "Mosaic",
    "QuarterTurn",
    "RandomResizedCrop",
    "Zoom",
    "classic",
]
