"""Limits of a source: beyond one, an error of one line names archive, figure and flag."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path
from typing import Any

import pytest

from shardprep.dataset.manifest import fingerprint_differences
from shardprep.errors import RecipeError, ShardprepError, SourceError, printable, shown
from shardprep.recipe.recipe import Recipe, make_recipe
from shardprep.source.byte_range import MemberError
from shardprep.source.limits import SourceLimits
from shardprep.source.listing import Listing, list_source
from shardprep.writer.plan.fingerprint import make_fingerprint
from tests.source.hostile import GOOD, patched, sevenzip, stating
from tests.support.builders import build, jpeg, tar_bytes, write, write_folder, zip_bytes

_PLENTY = bytes(65_000_000)
"""Just above what any ratio is allowed for."""


def listed(folder: Path, data: bytes | Path, **limits: Any) -> Listing:
    """List an archive of these bytes, or a folder."""
    source = write(folder / "source.zip", data) if isinstance(data, bytes) else data
    return list_source(source, folder / "work", lambda _: None, limits=SourceLimits(**limits))


def recipe(**keys: object) -> Recipe:
    return make_recipe({"source": "x.zip", **keys}, "test")


@pytest.mark.parametrize("data", [zip_bytes(GOOD), tar_bytes(GOOD)], ids=["zip", "tar"])
def test_members_are_counted(tmp_path: Path, data: bytes) -> None:
    assert len(listed(tmp_path, data, max_members=2).images) == 2
    with pytest.raises(SourceError, match=r"^source\.zip: .*more than 1 members; .*--max-members"):
        listed(tmp_path, data, max_members=1)


def test_members_of_all_archives_and_skipped_ones_count(tmp_path: Path) -> None:
    data = zip_bytes({"in.zip": zip_bytes(GOOD), "../evil.jpg": b"", "Thumbs.db": b""})
    listed(tmp_path, data, max_members=5)
    with pytest.raises(SourceError, match=r"^in\.zip: .*more than 4 members"):
        listed(tmp_path, data, max_members=4)


def test_files_of_a_folder_are_counted(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "photos", GOOD)
    with pytest.raises(SourceError, match=r"^photos: .*more than 1 members"):
        listed(tmp_path, folder, max_members=1)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_image_that_is_too_large_is_rejected_and_others_are_not(
    tmp_path: Path, method: int
) -> None:
    large = jpeg(64, 64)
    data = zip_bytes({**GOOD, "large.jpg": large}, method=method)
    *good, one = listed(tmp_path, data, max_member_size=len(large) - 1).images
    assert [member.extent.read() for member in good] == list(GOOD.values())
    with pytest.raises(MemberError, match=rf"larger than --max-member-size .*\({len(large):,} by"):
        one.extent.read()


@pytest.mark.parametrize("stated", [2**32, 2**63 - 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("name", ["evil.jpg", "evil.txt", "../evil.jpg", "Thumbs.db"])
def test_a_size_that_no_table_can_hold_is_a_counted_rejection(
    tmp_path: Path, name: str, stated: int
) -> None:
    source = write(tmp_path / "s.zip", stating(stated, name=name, packed=False))
    for size, fit in (("8x8", "crop"), ("none", "none")):
        out = tmp_path / fit
        made = build(source, out, size=size, fit=fit, format="png", max_rejected="50%")
        assert made.manifest.totals.num_written == 2
        assert made.manifest.totals.num_rejected + made.manifest.totals.num_skipped == 1


def test_what_is_unpacked_is_added_up(tmp_path: Path) -> None:
    inner = tar_bytes(GOOD)
    data = zip_bytes({"a.tgz": gzip.compress(inner), "b.tgz": gzip.compress(inner)})
    packed = 2 * len(gzip.compress(inner))
    listed(tmp_path, data, max_unpacked=2 * len(inner) + packed)
    with pytest.raises(SourceError, match=r"^b\.tgz: .* more than 20\.5 kB; raise --max-unpacked"):
        listed(tmp_path, data, max_unpacked=2 * len(inner) - 1)


def test_what_packed_images_state_is_added_up(tmp_path: Path) -> None:
    most = sum(map(len, GOOD.values()))
    listed(tmp_path, zip_bytes(GOOD), max_unpacked=most)
    listed(tmp_path, zip_bytes(GOOD, method=zipfile.ZIP_STORED), max_unpacked=1)
    with pytest.raises(SourceError, match=r"^dog/0\.jpg: the source unpacks to more .*unpacked"):
        listed(tmp_path, zip_bytes(GOOD), max_unpacked=most - 1)


def test_a_larger_source_may_unpack_to_more(tmp_path: Path) -> None:
    """A stated size is enough to see it: 1.9 GB times six is more than 10 GB and 100 times this."""
    data = zip_bytes({f"{i}.jpg": jpeg(8, 8) for i in range(6)})
    for index in range(6):
        data = patched(data, index, size=1_900_000_000)
    with pytest.raises(SourceError, match=r"more than 10\.0 GB"):
        listed(tmp_path, data, max_ratio=10**9)
    with_ballast = b"\0" * 15_000_000 + data
    assert len(listed(tmp_path, with_ballast, max_ratio=10**9).images) == 6


@pytest.mark.thorough
@pytest.mark.parametrize("outer", ["gz", "zip"])
def test_the_ratio_of_an_archive_is_limited_above_64_mb(tmp_path: Path, outer: str) -> None:
    tar = tar_bytes({**GOOD, "zeros": _PLENTY})
    data = gzip.compress(tar) if outer == "gz" else zip_bytes({"in.tar": tar})
    assert len(listed(tmp_path, data, max_ratio=2000).images) == 2
    with pytest.raises(SourceError, match=r"bytes unpack to .*, past --max-ratio 100; raise"):
        listed(tmp_path, data, max_ratio=100)
    small = tar_bytes({**GOOD, "zeros": _PLENTY[:60_000_000]})
    data = gzip.compress(small) if outer == "gz" else zip_bytes({"in.tar": small})
    assert len(listed(tmp_path, data, max_ratio=1).images) == 2


def test_the_ratio_of_an_image_is_a_rejection(tmp_path: Path) -> None:
    one = listed(tmp_path, zip_bytes({"a.jpg": _PLENTY}), max_ratio=100).images[0]
    with pytest.raises(MemberError, match=r"bytes unpack to 65,000,000 or more, past --max-ratio"):
        one.extent.read()


def test_a_7z_meets_the_same_limits(tmp_path: Path) -> None:
    pytest.importorskip("py7zr")
    data = sevenzip(size=100_000)
    assert len(listed(tmp_path, data, max_members=3, max_unpacked=110_000).images) == 2
    for limits in ({"max_members": 2}, {"max_unpacked": 90_000}):
        flag = next(iter(limits)).replace("_", "-")
        with pytest.raises(SourceError, match=rf"^source\.zip: .*; raise --{flag}"):
            listed(tmp_path, data, **limits)


def test_the_depth_is_limited(tmp_path: Path) -> None:
    data = zip_bytes({"in.zip": zip_bytes({"in.zip": zip_bytes(GOOD)})})
    assert len(listed(tmp_path, data, max_depth=3).images) == 2
    with pytest.raises(SourceError, match=r"^in\.zip/in\.zip: .*more than 2 deep; raise --max-dep"):
        listed(tmp_path, data, max_depth=2)


def test_the_limits_of_a_recipe_are_those_of_the_build(tmp_path: Path) -> None:
    source = write(tmp_path / "s.zip", zip_bytes(GOOD))
    with pytest.raises(SourceError, match="more than 1 members"):
        build(source, tmp_path / "out", max_members=1)
    with pytest.raises(ShardprepError, match="2 of 2 images are rejected"):
        build(source, tmp_path / "out", max_member_size="100 B")


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        *(("500MB", 500_000_000), ("2 GB", 2_000_000_000), ("1.5TB", 1_500_000_000_000)),
        *(("2GiB", 2 << 30), ("64k", 64_000), ("123", 123), ("7B", 7)),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, num_bytes: int) -> None:
    assert recipe(max_unpacked=text).max_unpacked == num_bytes
    assert recipe(max_member_size=text).source_limits.max_member_size == num_bytes


@pytest.mark.parametrize("text", ["", "much", "-1", "5XB", "1,000", "0", "99999999TB"])
def test_what_is_no_size_is_an_error(text: str) -> None:
    with pytest.raises(RecipeError, match="max_unpacked: "):
        recipe(max_unpacked=text)


def test_a_limit_that_shapes_no_bytes_may_change_between_runs(tmp_path: Path) -> None:
    source = str(write(tmp_path / "s.zip", zip_bytes(GOOD)))
    before = make_fingerprint(recipe(source=source))
    free = recipe(source=source, max_members=9, max_unpacked="1GB", max_depth=2)
    assert fingerprint_differences(before, make_fingerprint(free)) == []
    rejecting = recipe(source=source, max_member_size="1GB", max_ratio=50)
    assert len(fingerprint_differences(before, make_fingerprint(rejecting))) == 2


@pytest.mark.parametrize(
    "text", ["a\nb", "\x1b[2J", "\x9b31m", "\r", "\u202egpj", "\u2028", "\udce9", "\0"]
)
def test_no_error_steers_a_terminal_or_takes_two_lines(text: str) -> None:
    line = str(SourceError(f"a{text}b.zip", f"has {text!s}", text))
    assert line.isprintable()
    assert len(line.splitlines()) == 1


def test_what_can_be_read_is_shown_as_it_is() -> None:
    for text in ("caf\u00e9 \u5199\u771f.jpg", "\u0641.jpg", "C:\\photos", "tab"):
        assert printable(text) == text == shown(text, 20)


def test_a_long_name_keeps_its_two_ends() -> None:
    line = str(SourceError("start" + "x" * 5000 + "end.zip", "is cut"))
    assert len(line) < 200
    assert line.startswith("start")
    assert line.endswith("end.zip: is cut")
