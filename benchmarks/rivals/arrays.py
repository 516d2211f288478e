"""The loop of a notebook over an array of images, one process: arrays.py SOURCE OUT."""

from __future__ import annotations

import io
import sys

import h5py
import numpy as np
import tensorflow as tf
from PIL import Image


def main(source: str, out: str) -> None:
    is_npy = source.endswith(".npy")
    images = np.load(source, mmap_mode="r") if is_npy else h5py.File(source)["x"]
    with tf.io.TFRecordWriter(out) as writer:
        for i in range(len(images)):
            data = io.BytesIO()
            Image.fromarray(images[i]).convert("RGB").save(data, "JPEG", quality=90)
            features = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[data.getvalue()])),
                "image/filename": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[b"%06d" % i])
                ),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
