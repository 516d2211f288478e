"""A spawn pool around Pillow, TFRecordWriter in the parent: pool.py FOLDER OUT WORKERS."""

from __future__ import annotations

import io
import multiprocessing
import sys
from pathlib import Path

from PIL import Image

SIZE = 224
NUM_SHARDS = 8


def encode(path: str) -> tuple[bytes, int]:
    image = Image.open(path).convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    image = image.crop((left, top, left + side, top + side))
    image = image.resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=90)
    return out.getvalue(), int("dog" in path)


def main(folder: str, out: str, workers: int) -> None:
    import tensorflow as tf

    paths = sorted(map(str, Path(folder).glob("**/*.jpg")))
    Path(out).mkdir(parents=True, exist_ok=True)
    writers = [
        tf.io.TFRecordWriter(f"{out}/train.tfrecord-{i:05d}-of-{NUM_SHARDS:05d}")
        for i in range(NUM_SHARDS)
    ]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for i, (data, label) in enumerate(pool.imap(encode, paths, chunksize=16)):
            features = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[data])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writers[i % NUM_SHARDS].write(example.SerializeToString())
    for writer in writers:
        writer.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
