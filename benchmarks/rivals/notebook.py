"""The loop of a notebook, one process: notebook.py FOLDER OUT."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import tensorflow as tf
from PIL import Image

SIZE = 224


def main(folder: str, out: str) -> None:
    Path(out).mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(f"{out}/train.tfrecord") as writer:
        for path in sorted(Path(folder).glob("**/*.jpg")):
            image = Image.open(path).convert("RGB")
            side = min(image.size)
            left, top = (image.width - side) // 2, (image.height - side) // 2
            image = image.crop((left, top, left + side, top + side))
            image = image.resize((SIZE, SIZE), Image.Resampling.BICUBIC)
            data = io.BytesIO()
            image.save(data, "JPEG", quality=90)
            features = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[data.getvalue()])),
                "label": tf.train.Feature(
                    int64_list=tf.train.Int64List(value=[int("dog" in str(path))])
                ),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
