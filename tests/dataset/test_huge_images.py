"""No reader decodes a stored image with a huge stated size; memory stays bounded."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import simplejpeg

from shardprep.dataset.schema import IMAGE, MASK
from shardprep.image.process import Rejection, process_image
from shardprep.image.spec import MAX_STORED_PIXELS, ImageSpec
from tests.dataset.resigned import Signed, huge_png
from tests.support.annotated import annotated
from tests.support.builders import build, png, write, zip_bytes
from tests.support.processes import Program

SIDE = 30_000
"""Sides of the image: 900 million pixels, 2.7 GB in three channels."""
MOST_MEGABYTES = 250
"""Memory that a process may take more than it took for a dataset without the image."""
SAID = re.compile(f"more (pixels )?than the limit of {MAX_STORED_PIXELS:,}")


@cache
def huge(form: str) -> bytes:
    if form == "png":
        return huge_png(SIDE, SIDE)
    data = bytearray(simplejpeg.encode_jpeg(np.zeros((64, 64, 3), np.uint8)))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = SIDE.to_bytes(2) * 2
    return bytes(data)


@pytest.fixture(name="sets", scope="module")
def _sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Return an intact dataset and one with a huge image or mask, by the kind of image."""
    folder = tmp_path_factory.mktemp("huge")
    found = {}
    for form in ("png", "jpeg"):
        images = zip_bytes({f"{'ab'[i % 2]}/{i}.png": png(20 + i, 30, i) for i in range(6)})
        source = write(folder / form / "photos.zip", images)
        whole = Signed.read(
            build(source, folder / form, size="none", format=form, shards=1, split="train=1").path
        )
        (shard,) = whole.payloads
        whole.replace(shard, 3, whole.features(shard, 3) | {IMAGE: [huge(form)]})
        found[form] = whole.folder, whole.write(folder / form / "signed")
    whole = Signed.read(annotated(folder / "masks", MASK, shards=1))
    shard = next(name for name in whole.payloads if "-train." in name)
    whole.replace(shard, 3, whole.features(shard, 3) | {MASK: [huge("png")]})
    found["mask"] = whole.folder, whole.write(folder / "masks" / "signed")
    return found


USES = """
import os, resource, sys
import shardprep
from shardprep import reader
from shardprep.dataset.open_dataset import open_dataset
from shardprep.reporter.record_columns import read_contents
from shardprep.reporter.viewer.pictures import RecordPictures

def tried(name, work):
    try:
        found = work()
    except Exception as error:
        found = f"{type(error).__module__} {error}"
    print(name, " ".join(str(found).split())[:2000], sep=": ")

def used(folder, out):
    data = reader.Dataset(folder, as_supervised=False)
    tried("items", lambda: [one["image"].shape for one in data])
    tried("batches", lambda: sum(len(one) for one, *_ in data.batches(2, ragged=True)))
    tried("crops", lambda: sum(len(one) for one, *_ in data.batches(2, center_crop=(8, 8))))
    tried("report", lambda: shardprep.report(folder, output=f"{out}.html").findings)
    tried("inspect", lambda: shardprep.inspect(folder, boxes=f"{out}.png"))
    tried("verify", lambda: shardprep.verify(folder, decode=True).problems)
    for layout in ("parquet", "webdataset", "folder"):
        tried("export", lambda: shardprep.export(folder, to=layout, out=f"{out}-{layout}"))
    pictures = RecordPictures(read_contents(open_dataset(folder)))
    for number in range(len(data)):
        tried("tile", lambda: len(pictures.tile(number)))
        tried("view", lambda: pictures.record(number).problem)
    pictures.close()
    tried("mean_std", lambda: reader.mean_std(folder))
    crops = {"center_crop": (8, 8), "batch_size": 2}
    tried("load", lambda: sum(1 for _ in reader.load(folder)))
    tried("load crops", lambda: sum(1 for _ in reader.load(folder, **crops)))
    tried("diagnose", lambda: reader.diagnose(reader.load(folder, **crops), seconds=0.1))

out, *folders = sys.argv[1:]
for number, folder in enumerate(folders):
    print("dataset", number, sep=": ")
    used(folder, f"{out}/{number}")
    print("megabytes", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10, sep=": ")
"""


DECODERS = {
    "png": {"items", "batches", "crops", "report", "verify", "tile", "view", "mean_std"},
    "jpeg": {"items", "crops", "report", "verify", "tile", "mean_std"},
    "mask": {"items", "crops"},
}
"""Huge image or mask → uses that must report it."""


def test_a_huge_image_is_a_one_line_error_and_takes_no_memory(
    sets: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    whole, huge_sets = zip(*(sets[what] for what in DECODERS), strict=True)
    done = Program(USES, tmp_path, *whole, *huge_sets, SHARDPREP_CACHE=str(tmp_path)).wait()
    assert done.returncode == 0, done.stderr[-2000:]
    megabytes, reports = [], list[set[str]]()
    for name, text in (line.split(": ", 1) for line in done.stdout.splitlines()):
        if name == "dataset":
            reports.append(set())
        elif name == "megabytes":
            megabytes.append(int(text))
        elif SAID.search(text):
            reports[-1].add(name)
    assert megabytes[-1] - megabytes[len(whole) - 1] < MOST_MEGABYTES
    assert reports[: len(whole)] == [set()] * len(whole)
    for what, reported in zip(DECODERS, reports[len(whole) :], strict=True):
        assert reported >= DECODERS[what], what


def test_no_build_stores_an_image_that_no_reader_decodes() -> None:
    spec = ImageSpec(size=None, max_pixels=10**9)
    refused = process_image(huge_png(20_000, 10_000), spec)
    assert isinstance(refused, Rejection)
    assert refused.kind == "too_many_pixels"
    assert "a stored image may have 178,956,970 pixels" in refused.reason
