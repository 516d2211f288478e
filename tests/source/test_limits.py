"""Limits of a source: an error names the archive, the limit and its flag."""

import gzip
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardprep.dataset.manifest import fingerprint_differences
from shardprep.errors import RecipeError, ShardprepError, SourceError, printable, shown
from shardprep.recipe.recipe import Recipe, make_recipe
from shardprep.source.byte_range import MemberError
from shardprep.source.limits import Budget, SourceLimits
from shardprep.source.listing import Listing, list_source
from shardprep.writer.plan.fingerprint import make_fingerprint
from tests.source.hostile import GOOD, patched, sevenzip, stating
from tests.support.builders import build, jpeg, tar_bytes, write, write_folder, zip_bytes


def listed(folder: Path, data: bytes | Path, **limits: Any) -> Listing:
    """List an archive of these bytes, or a folder."""
    source = write(folder / "source.zip", data) if isinstance(data, bytes) else data
    return list_source(source, folder / "work", lambda _: None, limits=SourceLimits(**limits))


def recipe(**keys: object) -> Recipe:
    return make_recipe({"source": "x.zip", **keys}, "test")


@pytest.mark.parametrize("pack", [zip_bytes, tar_bytes, None], ids=["zip", "tar", "folder"])
def test_members_are_counted(tmp_path: Path, pack: Callable[..., bytes] | None) -> None:
    data = pack(GOOD) if pack else write_folder(tmp_path / "source.zip", GOOD)
    assert len(listed(tmp_path, data, max_members=2).images) == 2
    with pytest.raises(SourceError, match=r"^source\.zip: .*more than 1 members; .*--max-members"):
        listed(tmp_path, data, max_members=1)


def test_members_of_inner_archives_and_skipped_members_count(tmp_path: Path) -> None:
    data = zip_bytes({"in.zip": zip_bytes(GOOD), "../evil.jpg": b"", "Thumbs.db": b""})
    listed(tmp_path, data, max_members=5)
    with pytest.raises(SourceError, match=r"^in\.zip: .*more than 4 members"):
        listed(tmp_path, data, max_members=4)


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


@pytest.mark.parametrize(
    ("name", "stated"),
    [
        *(("evil.jpg", stated) for stated in (2**32, 2**63 - 1, 2**63, 2**64 - 1)),
        *((name, 2**64 - 1) for name in ("evil.txt", "../evil.jpg", "Thumbs.db")),
    ],
)
def test_a_size_of_64_bits_is_a_counted_rejection(tmp_path: Path, name: str, stated: int) -> None:
    source = write(tmp_path / "s.zip", stating(stated, name=name, packed=False))
    for size, fit in (("8x8", "crop"), ("none", "none"))[: 1 if "/" in name else 2]:
        out = tmp_path / fit
        made = build(source, out, size=size, fit=fit, format="png", max_rejected="50%")
        assert made.manifest.totals.num_written == 2
        assert made.manifest.totals.num_rejected + made.manifest.totals.num_skipped == 1


def test_unpacked_bytes_of_archives_are_added_up(tmp_path: Path) -> None:
    inner = tar_bytes(GOOD)
    data = zip_bytes({"a.tgz": gzip.compress(inner), "b.tgz": gzip.compress(inner)})
    packed = 2 * len(gzip.compress(inner))
    listed(tmp_path, data, max_unpacked=2 * len(inner) + packed)
    with pytest.raises(SourceError, match=r"^b\.tgz: .* more than 20\.5 kB; raise --max-unpacked"):
        listed(tmp_path, data, max_unpacked=2 * len(inner) - 1)


def test_stated_sizes_of_packed_images_are_added_up(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("outer", ["gz", "zip"])
def test_the_ratio_of_a_large_archive_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outer: str
) -> None:
    budget = Budget(SourceLimits(max_ratio=1))
    budget.check_ratio(1, 64_000_000, "a.zip")
    with pytest.raises(SourceError, match=r"64,000,001 or more, above --max-ratio 1; raise"):
        budget.check_ratio(1, 64_000_001, "a.zip")
    monkeypatch.setattr("shardprep.source.limits._SMALL_BYTES", 6_400_000)

    def packed(num_zeros: int) -> bytes:
        tar = tar_bytes({**GOOD, "zeros": bytes(num_zeros)})
        return gzip.compress(tar) if outer == "gz" else zip_bytes({"in.tar": tar})

    assert len(listed(tmp_path, packed(6_500_000), max_ratio=2000).images) == 2
    with pytest.raises(SourceError, match=r"bytes unpack to .*, above --max-ratio 100; raise"):
        listed(tmp_path, packed(6_500_000), max_ratio=100)
    assert len(listed(tmp_path, packed(6_000_000), max_ratio=1).images) == 2


def test_an_image_above_the_ratio_is_a_rejection(tmp_path: Path) -> None:
    """The size is just above 64 MB, up to which any ratio is allowed."""
    one = listed(tmp_path, zip_bytes({"a.jpg": bytes(65_000_000)}), max_ratio=100).images[0]
    with pytest.raises(MemberError, match=r"bytes unpack to 65,000,000 or more, above --max-ratio"):
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
    with pytest.raises(
        SourceError, match=r"^in\.zip/in\.zip: .*more than 2 levels deep; raise --max"
    ):
        listed(tmp_path, data, max_depth=2)


def test_a_build_uses_the_limits_of_its_recipe(tmp_path: Path) -> None:
    source = write(tmp_path / "s.zip", zip_bytes(GOOD))
    with pytest.raises(SourceError, match="more than 1 members"):
        build(source, tmp_path / "out", max_members=1)
    with pytest.raises(ShardprepError, match="2 of 2 images are rejected"):
        build(source, tmp_path / "out", max_member_size="100 B")


def test_sizes_have_decimal_or_binary_units() -> None:
    for text, num_bytes in (
        *(("500MB", 500_000_000), ("2 GB", 2_000_000_000), ("1.5TB", 1_500_000_000_000)),
        *(("2GiB", 2 << 30), ("64k", 64_000), ("123", 123), ("7B", 7)),
    ):
        assert recipe(max_unpacked=text).max_unpacked == num_bytes
        assert recipe(max_member_size=text).source_limits.max_member_size == num_bytes
    for text in ("", "much", "-1", "5XB", "1,000", "0", "99999999TB"):
        with pytest.raises(RecipeError, match="max_unpacked: "):
            recipe(max_unpacked=text)


def test_only_limits_that_reject_images_are_in_the_fingerprint(tmp_path: Path) -> None:
    source = str(write(tmp_path / "s.zip", zip_bytes(GOOD)))
    before = make_fingerprint(recipe(source=source))
    free = recipe(source=source, max_members=9, max_unpacked="1GB", max_depth=2)
    assert fingerprint_differences(before, make_fingerprint(free)) == []
    rejecting = recipe(source=source, max_member_size="1GB", max_ratio=50)
    assert len(fingerprint_differences(before, make_fingerprint(rejecting))) == 2


@pytest.mark.parametrize(
    "text", ["a\nb", "\x1b[2J", "\x9b31m", "\r", "\u202egpj", "\u2028", "\udce9", "\0"]
)
def test_an_error_is_one_line_without_control_characters(text: str) -> None:
    line = str(SourceError(f"a{text}b.zip", f"has {text!s}", text))
    assert line.isprintable()
    assert len(line.splitlines()) == 1


def test_printable_text_is_shown_unchanged() -> None:
    for text in ("caf\u00e9 \u5199\u771f.jpg", "\u0641.jpg", "C:\\photos", "tab"):
        assert printable(text) == text == shown(text, 20)


def test_a_long_name_is_shortened_in_the_middle() -> None:
    line = str(SourceError("start" + "x" * 5000 + "end.zip", "is cut"))
    assert len(line) < 200
    assert line.startswith("start")
    assert line.endswith("end.zip: is cut")
