"""A pool that only decodes, and keeps nothing: decode_only.py FOLDER WORKERS."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import simplejpeg


def decode(path: str) -> int:
    pixels = simplejpeg.decode_jpeg(Path(path).read_bytes())
    return int(pixels.shape[0])


def main(folder: str, workers: int) -> None:
    paths = sorted(map(str, Path(folder).glob("**/*.jpg")))
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for _ in pool.imap_unordered(decode, paths, chunksize=16):
            pass


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
