"""Good files, damaged at random: the result is right, or a reason in our words, and quick.

The damage is the same in every run. Archives with checksums have a perfect oracle: all bytes that
can be read were packed.
"""

import functools
import gzip
import tempfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from PIL import Image

from shardprep.errors import ShardprepError, SourceError
from shardprep.image.process import Rejection, process_image
from shardprep.image.spec import ImageSpec
from shardprep.source.byte_range import MemberError
from shardprep.source.listing import list_source
from tests.support.builders import build, encoded, jpeg, pixels, png, tar_bytes, write, zip_bytes
from tests.support.examples import DAMAGES, Damage, damaged, fuzzed, in_time

_MEMBERS = {"cat/0.jpg": jpeg(9, 8), "dog/0.png": png(8, 9), "labels.csv": b"id,label\n" * 9}
_INNER = {"in/1.jpg": jpeg(8, 8, seed=2), "in/2.jpg": jpeg(8, 9, seed=3)}
_STORED = partial(zip_bytes, method=zipfile.ZIP_STORED)
_ARCHIVES = {
    "in.zip": _STORED(_INNER),
    "in.tar": tar_bytes(_INNER),
    "in.tgz": gzip.compress(tar_bytes(_INNER), mtime=0),
}
_PACKED = {b"", *_MEMBERS.values(), *_INNER.values(), *_ARCHIVES.values()}
"""All that can come out: an archive whose name is damaged may count as an image."""
_WITH_CHECKSUMS: dict[str, Callable[[dict[str, bytes]], bytes]] = {
    "zip": zip_bytes,
    "zip, stored": _STORED,
    "zip, bzip2": partial(zip_bytes, method=zipfile.ZIP_BZIP2),
    "zip, lzma": partial(zip_bytes, method=zipfile.ZIP_LZMA),
    "tar.gz": lambda members: gzip.compress(tar_bytes(members), mtime=0),
    "tar.bz2": partial(tar_bytes, compression="bz2"),
    "tar.xz": partial(tar_bytes, compression="xz"),
    "archives in a zip": lambda members: zip_bytes({**members, **_ARCHIVES}),
    "archives in a stored zip": lambda members: _STORED({**members, **_ARCHIVES}),
}


@functools.cache
def _archives(form: str) -> tuple[bytes, bytes]:
    """Return two archives of a form, packed once: that takes longer than to read one."""
    pack = _WITH_CHECKSUMS[form]
    return pack(_MEMBERS), pack(_INNER)


def everything_in(data: bytes) -> list[bytes]:
    """Return the bytes of all readable members; the others must have a reason."""
    found, reasons = [], []
    with tempfile.TemporaryDirectory() as folder:
        source = write(Path(folder, "source"), data)
        try:
            listing = list_source(source, Path(folder, "work"), lambda _: None)
        except SourceError as error:
            return _none(error)
        for member in [*listing.images, *listing.others]:
            assert member.key.isprintable()
            try:
                found.append(member.extent.read())
            except MemberError as error:
                reasons.append(str(error))
    assert all(reasons)
    return found


def _none(error: ShardprepError) -> list[bytes]:
    assert str(error).isprintable()
    return []


@in_time
@pytest.mark.parametrize("form", _WITH_CHECKSUMS)
@given(damages=DAMAGES)
@fuzzed(25)
def test_a_damaged_archive_gives_what_was_packed_or_a_reason(
    form: str, damages: list[Damage]
) -> None:
    data = damaged(*_archives(form), damages)
    assert _PACKED.issuperset(everything_in(data))


@in_time
@given(damages=DAMAGES)
@fuzzed(50)
def test_a_damaged_tar_is_read_or_an_error(damages: list[Damage]) -> None:
    tar = tar_bytes({**_MEMBERS, **_ARCHIVES})
    everything_in(damaged(tar, _ARCHIVES["in.tar"], damages))


@in_time
@given(damages=DAMAGES)
@fuzzed(8)
def test_the_totals_of_a_damaged_archive_add_up(damages: list[Damage]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = damaged(_STORED(_MEMBERS), _STORED(_INNER), damages)
        source = write(Path(folder, "source.zip"), data)
        try:
            result = build(source, Path(folder, "out"), max_rejected="100%", size="8x8")
        except ShardprepError as error:
            _none(error)
            return
        totals = result.manifest.totals
        rows = pq.read_table(result.path / "items.parquet").to_pylist()
        assert len(rows) == totals.num_inputs
        assert totals.num_inputs == totals.num_written + totals.num_rejected + totals.num_skipped
        assert all(row["status"] == "written" or row["reason"] for row in rows)


_FORMS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "JPEG2000")


@functools.cache
def _images(form: str) -> tuple[bytes, bytes]:
    """Return two images of a form: of one frame, and where the form has it, of several."""
    frames = [Image.fromarray(pixels(24, 32, seed)) for seed in range(3)]
    several = form in ("PNG", "WEBP", "GIF", "TIFF")
    more = {"save_all": True, "append_images": frames[1:]} if several else {}
    return encoded(frames[0].resize((17, 9)), form), encoded(frames[0], form, **more)


@in_time
@pytest.mark.parametrize("form", _FORMS)
@given(damages=DAMAGES)
@fuzzed(40)
def test_a_damaged_image_is_an_image_or_a_rejection(form: str, damages: list[Damage]) -> None:
    spec = ImageSpec()
    image = process_image(damaged(*_images(form), damages), spec)
    if isinstance(image, Rejection):
        assert image.kind
        assert image.reason
    else:
        assert spec.size == (image.height, image.width)
        assert image.data.startswith(b"\xff\xd8")
