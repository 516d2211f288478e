"""Records that hold JPEGs of every kind of frame: none ends the process."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import shardprep
from shardprep import reader
from shardprep.dataset.tfrecord import read_records
from shardprep.errors import RecordError
from tests.support.builders import build, jpeg, write, zip_bytes
from tests.support.jpeg_frames import LOSSLESS, READ, UNREAD
from tests.support.viewing import served

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FRAMES = {**READ, **UNREAD}
CROP = reader.CenterCrop((4, 5))
"""So small that a scaled decode is wanted of every image."""


def dataset_of(folder: Path, stored: bytes) -> Path:
    """Return a dataset of one record that stores these bytes as its image."""
    ordinary = jpeg()
    filled = ordinary + bytes(max(0, len(stored) - len(ordinary)))
    stored += bytes(len(filled) - len(stored))
    source = write(folder / "photos.zip", zip_bytes({"train/a/1.jpg": filled}))
    path = build(source, folder / "out", size="none", format="keep", labels="folder").path
    (shard,) = path.glob("*-train.tfrecord*")
    with shard.open("rb") as file:
        (record,) = read_records(file, shard.name)
    assert filled in record.payload
    with tf.io.TFRecordWriter(str(shard)) as writer:
        writer.write(bytes(record.payload).replace(filled, stored))
    return path


@pytest.fixture(scope="module", name="datasets")
def _datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: dataset_of(tmp_path_factory.mktemp("set"), data) for name, data in FRAMES.items()}


def seen(data: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def outcome(read: Callable[[], Any]) -> Any:
    """Return the image that is read, or None where the record is refused."""
    with suppress(RecordError, tf.errors.OpError):
        return np.asarray(read())
    return None


@pytest.mark.parametrize("name", FRAMES)
def test_both_readers_read_a_frame_or_refuse_the_record(
    name: str, datasets: dict[str, Path]
) -> None:
    path = datasets[name]
    crop: dict[str, Any] = {"batch_size": 1, "center_crop": CROP}
    arrays = outcome(lambda: reader.Dataset(path, as_supervised=False)[0]["image"])
    graph = outcome(lambda: next(iter(reader.load(path)))[0])
    cropped = [
        outcome(lambda: next(iter(reader.Dataset(path).batches(**crop)))[0]),
        outcome(lambda: next(iter(reader.load(path, **crop)))[0]),
    ]
    is_read = name in READ and name != "lossless, grey"
    assert (arrays is not None) == is_read
    assert (graph is not None) == (is_read and name not in LOSSLESS)
    for pixels in (arrays, graph):
        assert pixels is None or (pixels == seen(FRAMES[name])).all()
    assert [one is not None for one in cropped] == [is_read] * 2
    if is_read:
        assert (cropped[0] == cropped[1]).all()


@pytest.mark.parametrize("name", FRAMES)
def test_report_view_and_verify_outlive_every_frame(
    name: str, datasets: dict[str, Path], tmp_path: Path
) -> None:
    path = datasets[name]
    shardprep.report(path, output=tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size
    with served(path) as one:
        tile, image = one.client.get("/tile/0"), one.client.get("/image/0")
    assert (tile.headers["content-type"] == "image/webp") == (name in READ)
    if name in READ:
        is_common = name not in LOSSLESS and "arithmetic" not in name
        assert image.headers["content-type"] == ("image/jpeg" if is_common else "image/png")
        assert (seen(image.body) == seen(FRAMES[name])).all()
    problems = [str(one) for one in shardprep.verify(path, decode=True).problems]
    does_not_decode = any("does not decode" in one for one in problems)
    assert does_not_decode == (name in UNREAD or name == "lossless, grey")


def test_a_build_of_every_frame_rejects_those_that_no_decoder_reads(tmp_path: Path) -> None:
    members = {f"train/a/{i}.jpg": data for i, data in enumerate(FRAMES.values())}
    source = write(tmp_path / "photos.zip", zip_bytes(members))
    kinds: list[dict[str, Any]] = [{"size": "8x8"}, {"size": "none", "format": "keep"}]
    for i, options in enumerate(kinds):
        result = shardprep.build(
            source, out=tmp_path / str(i), labels="folder", max_rejected="90%", workers=1, **options
        )
        assert result.manifest.totals.num_written == len(READ)
        assert result.manifest.totals.rejected == {"undecodable": len(UNREAD)}
        found = [image for image, _ in reader.load(result.path)]
        assert len(found) == len(READ)
        assert len(list(reader.Dataset(result.path))) == len(READ)
