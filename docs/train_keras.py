"""Train MobileNetV2 from scratch on a dataset of shardprep, with Keras.

    python docs/train_keras.py tfrecords/dogs_vs_cats --epochs 20

Images stay uint8 until they are on the device: casting and augmenting are layers of the model.
"""

import argparse

import keras
import tensorflow as tf
from keras import layers

from shardprep import reader


def make_model(height: int, width: int, num_classes: int) -> keras.Model:
    """Return a compiled model of uint8[batch, height, width, 3] images."""
    backbone = keras.applications.MobileNetV2((height, width, 3), include_top=False, weights=None)
    model = keras.Sequential(
        [
            keras.Input((height, width, 3), dtype="uint8"),
            layers.Rescaling(1 / 127.5, -1),
            layers.RandomFlip("horizontal"),
            backbone,
            layers.GlobalAveragePooling2D(),
            layers.Dropout(0.2),
            layers.Dense(num_classes, activation="softmax", dtype="float32"),
        ]
    )
    model.compile(
        keras.optimizers.AdamW(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def main() -> None:
    """Train, and say what bounds the training."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", help="folder that shardprep build has written")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, help="of an epoch; by default all")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--diagnose", type=float, metavar="SECONDS", help="instead of training")
    options = parser.parse_args()

    if tf.config.list_physical_devices("GPU"):
        keras.mixed_precision.set_global_policy("mixed_float16")
    schema = reader.Dataset(options.dataset).schema
    train = reader.load(
        options.dataset, "train[:90%]", batch_size=options.batch_size, drop_remainder=True
    )
    if not len(train):
        count = len(reader.Dataset(options.dataset, "train[:90%]"))
        parser.error(f"--batch-size {options.batch_size}: there are {count} images to train on")
    valid = reader.load(
        options.dataset, "train[90%:]", batch_size=options.batch_size, shuffle=False
    )
    model = make_model(*schema.image_size, len(schema.labels))
    if options.diagnose:
        print(reader.diagnose(train, model, seconds=options.diagnose))
        return
    if options.steps:
        train, valid = train.repeat(), valid.take(1)
    model.fit(
        train,
        validation_data=valid,
        epochs=options.epochs,
        steps_per_epoch=options.steps,
        callbacks=[reader.StallMeter()],
        verbose=2,
    )


if __name__ == "__main__":
    main()
