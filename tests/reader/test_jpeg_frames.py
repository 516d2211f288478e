"""Records with every kind of JPEG frame: none ends the process."""

import io
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

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

FRAMES = {**READ, **UNREAD}
CROP = reader.CenterCrop((4, 5))
"""So small that every image is decoded at a smaller scale."""


@pytest.fixture(scope="module", name="frames")
def _frames(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return a dataset with a record for each frame, and the names of the frames in its order."""
    folder, members = tmp_path_factory.mktemp("set"), {}
    for i, (name, stored) in enumerate(FRAMES.items()):
        ordinary = jpeg(seed=i)
        members[name] = ordinary + bytes(max(0, len(stored) - len(ordinary)))
    keys = {f"train/a/{i}.jpg": data for i, data in enumerate(members.values())}
    source = write(folder / "photos.zip", zip_bytes(keys))
    options: dict[str, Any] = {"size": "none", "format": "keep", "labels": "folder", "shards": 1}
    path = build(source, folder / "out", **options).path
    (shard,) = path.glob("*-train.tfrecord*")
    with shard.open("rb") as file:
        payloads = [bytes(record.payload) for record in read_records(file, shard.name)]
    names = [next(one for one in members if members[one] in payload) for payload in payloads]
    with tf.io.TFRecordWriter(str(shard)) as writer:
        for name, payload in zip(names, payloads, strict=True):
            stored = FRAMES[name] + bytes(len(members[name]) - len(FRAMES[name]))
            writer.write(payload.replace(members[name], stored))
    return path, names


def seen(data: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def outcome(read: Callable[[], Any]) -> Any:
    """Return the image, or None if reading it is an error."""
    with suppress(RecordError, tf.errors.OpError):
        return np.asarray(read())
    return None


@pytest.mark.parametrize("name", FRAMES)
def test_both_readers_read_a_frame_or_refuse_the_record(
    name: str, frames: tuple[Path, list[str]]
) -> None:
    path, at = frames[0], frames[1].index(name)
    own = f"train[{at}:{at + 1}]"
    crop: dict[str, Any] = {"batch_size": 1, "center_crop": CROP}
    arrays = outcome(lambda: reader.Dataset(path, own, as_supervised=False)[0]["image"])
    graph = outcome(lambda: next(iter(reader.load(path, own)))[0])
    cropped = [
        outcome(lambda: next(iter(reader.Dataset(path, own).batches(**crop)))[0]),
        outcome(lambda: next(iter(reader.load(path, own, **crop)))[0]),
    ]
    is_read = name in READ and name != "lossless, grey"
    assert (arrays is not None) == is_read
    assert (graph is not None) == (is_read and name not in LOSSLESS)
    for pixels in (arrays, graph):
        assert pixels is None or (pixels == seen(FRAMES[name])).all()
    assert [one is not None for one in cropped] == [is_read] * 2
    if is_read:
        assert (cropped[0] == cropped[1]).all()


def test_report_view_and_verify_survive_every_frame(
    frames: tuple[Path, list[str]], tmp_path: Path
) -> None:
    path, names = frames
    shardprep.report(path, output=tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size
    problems = shardprep.verify(path, decode=True).problems
    undecodable = {one.record for one in problems if "does not decode" in one.what}
    with served(path) as one:
        for number, name in enumerate(names):
            tile, image = one.client.get(f"/tile/{number}"), one.client.get(f"/image/{number}")
            assert (tile.headers["content-type"] == "image/webp") == (name in READ), name
            if name in READ:
                is_common = name not in LOSSLESS and "arithmetic" not in name
                assert image.headers["content-type"] == f"image/{'jpeg' if is_common else 'png'}"
                assert (seen(image.body) == seen(FRAMES[name])).all()
    wanted = {number for number, name in enumerate(names) if name in {*UNREAD, "lossless, grey"}}
    assert undecodable == wanted


def test_a_build_rejects_frames_that_no_decoder_reads(tmp_path: Path) -> None:
    members = {f"train/a/{i}.jpg": data for i, data in enumerate(FRAMES.values())}
    source = write(tmp_path / "photos.zip", zip_bytes(members))
    common: dict[str, Any] = {"labels": "folder", "max_rejected": "90%", "workers": 1}
    for size, form in (("8x8", "jpeg"), ("none", "keep")):
        options: dict[str, Any] = {"size": size, "format": form, **common}
        result = shardprep.build(source, out=tmp_path / form, **options)
        assert result.manifest.totals.num_written == len(READ)
        assert result.manifest.totals.rejected == {"undecodable": len(UNREAD)}
        found = [image for image, _ in reader.load(result.path)]
        assert len(found) == len(READ)
        assert len(list(reader.Dataset(result.path))) == len(READ)
