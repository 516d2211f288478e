"""Builds from Parquet, HDF5, .npy and TFRecord, against the same images in a zip, a loop and `cp`.

All are whole processes with two workers. Memory is the sum of the peaks of the parent and its
processes.
"""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import photos, rivals
from benchmarks.measure import Measure, Row, interleaved, run, shardprep
from benchmarks.memory import peak_bytes
from benchmarks.table import alone
from shardprep.dataset.example import encode
from shardprep.dataset.tfrecord import frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.measure import Cost

PARQUET = Measure("25,000 JPEGs in Parquet / the same in a zip", ">= 0.95")
PARQUET_MEMORY = Measure("the same, peak memory / that of the zip", "<= 1.1")
NPY = Measure("60,000 images of 28x28 in .npy / one-process loop", ">= 3")
HDF5 = Measure("the same in HDF5 / one-process loop", ">= 3")
NPY_GROWTH = Measure("peak memory of 60,000 − of 1,000 in .npy", "< 150 MB", "MB")
KEEP = Measure("25,000 JPEGs in TFRecord, `--format keep` / `cp` and `sha256sum`", ">= 0.9")
MEASURES = (PARQUET, PARQUET_MEMORY, NPY, HDF5, NPY_GROWTH, KEEP)
_LOOP = Path(rivals.__file__).with_name("arrays.py")
_ROW_GROUP = 1000
_WORKERS = ("--workers", 2)


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return ratios of times and of peaks; one run of each peak, since peaks hardly scatter."""
    num_photos, num_digits = (200, 500) if quick else (25_000, 60_000)
    out = folder / "out"
    _write_photos(folder, num_photos)
    _write_digits(folder, num_digits)
    _write_digits(folder, 1000)

    def build(source: str, *options: object) -> Callable[[], Cost]:
        def built() -> Cost:
            shutil.rmtree(out, ignore_errors=True)
            more = ("--out", out, "--name", "d", *_WORKERS, *options)
            return shardprep(folder, "build", folder / source, *more)

        return built

    def loop(source: str) -> Callable[[], Cost]:
        return lambda: run([sys.executable, _LOOP, folder / source, folder / "loop"], folder)

    def peak(source: str, *options: object) -> float:
        shutil.rmtree(out, ignore_errors=True)
        more = ("--out", out, "--name", "d", *_WORKERS, *options)
        return peak_bytes("build", folder / source, *more) / 1e6

    small = ("--size", "none")
    keep = ("--format", "keep", "--labels", "column:label")
    copy = ("sh", "-c", 'cp "$0" "$1" && sha256sum "$1"', folder / "p.tfrecord", folder / "copy")
    npy, hdf5 = f"{num_digits}.npy", f"{num_digits}.h5"
    cost = interleaved(
        {
            "parquet": build("p.parquet"),
            "zip": build("p.zip"),
            "npy": build(npy, *small),
            "npy loop": loop(npy),
            "hdf5": build(hdf5, *small),
            "hdf5 loop": loop(hdf5),
            "keep": build("p.tfrecord", *keep),
            "copy": lambda: run(copy, folder),
        },
        rounds,
    )
    peaks = {name: peak(f"p.{name}") for name in ("parquet", "zip")}
    few, many = peak("1000.npy", *small), peak(npy, *small)

    def row(measure: Measure, ours: str, theirs: str) -> Row:
        one, two = cost[ours].wall_s, cost[theirs].wall_s
        return measure.came_to(two / one, f"{one:.2f} / {two:.2f} s")

    return [
        row(PARQUET, "parquet", "zip"),
        PARQUET_MEMORY.came_to(
            peaks["parquet"] / peaks["zip"], f"{peaks['parquet']:,.0f} / {peaks['zip']:,.0f} MB"
        ),
        row(NPY, "npy", "npy loop"),
        row(HDF5, "hdf5", "hdf5 loop"),
        NPY_GROWTH.came_to(many - few, f"{many:,.0f} − {few:,.0f} MB"),
        row(KEEP, "keep", "copy"),
    ]


def _photos(number: int) -> Iterator[tuple[int, bytes]]:
    """Yield class and file of photos; bytes after the end of the image make all files different."""
    originals = photos.originals()
    for i in range(number):
        yield i % 2, originals[i % len(originals)] + b"%06d" % i


def _write_photos(folder: Path, number: int) -> None:
    with zipfile.ZipFile(folder / "p.zip", "w", zipfile.ZIP_STORED) as archive:
        for i, (label, data) in enumerate(_photos(number)):
            archive.writestr(f"{label}/{i:06d}.jpg", data)
    schema = pa.schema({"image": pa.struct({"bytes": pa.binary()}), "label": pa.int64()})
    with pq.ParquetWriter(folder / "p.parquet", schema) as writer:
        some: list[dict[str, object]] = []
        for label, data in _photos(number):
            some.append({"image": {"bytes": data}, "label": label})
            if len(some) == _ROW_GROUP:
                writer.write_table(pa.Table.from_pylist(some, schema))
                some.clear()
        writer.write_table(pa.Table.from_pylist(some, schema))
    with (folder / "p.tfrecord").open("wb") as file:
        for label, data in _photos(number):
            file.write(frame(encode({"image": [data], "label": [label]})))


def _write_digits(folder: Path, number: int) -> None:
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (number, 7, 7), np.uint8)
    images = coarse.repeat(4, axis=1).repeat(4, axis=2)
    np.save(folder / f"{number}.npy", images)
    with h5py.File(folder / f"{number}.h5", "w") as file:
        file.create_dataset("x", data=images, chunks=(256, 28, 28), compression="gzip")


if __name__ == "__main__":
    alone(rows, __doc__)
