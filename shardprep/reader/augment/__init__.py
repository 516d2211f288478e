"""Image augmentation as seeded ops on whole batches, for `reader.load` and for Keras models.

    from shardprep.reader import augment
    recipe = augment.Compose([augment.RandomResizedCrop((224, 224)), augment.Flip()])
    train = reader.load("tfrecords/dogs_vs_cats", batch_size=64, augment=recipe)

Call an op with images and a seed: `recipe(images, seed=(1, 2))`. The same seed gives the same
pixels. Ops that mix images need labels too. Boxes and masks among the labels move with the pixels.
uint8 stays uint8, and floats stay between 0 and 1. Unlike `shardprep.reader`, this package imports
TensorFlow.
"""

from __future__ import annotations

from shardprep.reader.validators import needing_tensorflow

with needing_tensorflow("reader.augment"):
    from shardprep.reader.augment.color import Color
    from shardprep.reader.augment.compose import Compose, Layer, classic
    from shardprep.reader.augment.geometry import (
        Flip,
        Letterbox,
        Mosaic,
        QuarterTurn,
        RandomResizedCrop,
        Zoom,
    )
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
