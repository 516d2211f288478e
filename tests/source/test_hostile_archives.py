"""No archive writes outside its folder, hangs, grows without limit, or silently loses an image."""

import os
import tarfile
from collections import Counter
from pathlib import Path, PurePosixPath

import pytest

from tests.source.hostile import GOOD, HOSTILE
from tests.source.ordeal import (
    COUNTED,
    ERROR,
    MIN_ARCHIVES_OF_OTHERS,
    WHOLE,
    Ordeal,
    archive_rows,
    outcome,
    put_to_ordeal,
)
from tests.support.builders import SHARED_DATA, write, zip_bytes
from tests.support.command import run

_TORTURE = SHARED_DATA / "torture-archives.tar"


def check_bounds(ordeal: Ordeal) -> None:
    """Check the ends, the time and the memory of all, and that nothing was written elsewhere."""
    for name, ending in ordeal.endings.items():
        assert ending.ended in ("built", "error"), (name, ending)
        assert ending.peak_bytes < 500 << 20, (name, ending)
        if ending.ended == "error":
            assert ending.line.isprintable(), (name, ending)
            assert len(ending.line) < 260, (name, ending)
    assert ordeal.after == ordeal.before
    assert not list(Path("/tmp").glob("*evil*"))


@pytest.mark.thorough
def test_every_archive_of_the_suite_ends_within_limits(ordeal: Ordeal) -> None:
    assert ordeal.endings.keys() == HOSTILE.keys()
    check_bounds(ordeal)


@pytest.mark.thorough
@pytest.mark.skipif(not _TORTURE.is_file(), reason="the hostile archives are not here")
def test_every_foreign_archive_ends_within_limits() -> None:
    archives = {}
    with tarfile.open(_TORTURE) as torture:
        for info in torture:
            if (file := torture.extractfile(info)) is not None:
                archives[info.name] = file.read()
    ordeal = put_to_ordeal(archives)
    assert len(ordeal.endings) > MIN_ARCHIVES_OF_OTHERS
    check_bounds(ordeal)
    built = Counter(ending.ended for ending in ordeal.endings.values())["built"]
    assert built > 25
    for name in ("xz_bomb_256MB.tar.xz", "two_zips_concatenated.zip"):
        assert ordeal.endings[f"archives/made-here/{name}"].ended == "error"


_WHOLE = ("junk: before a zip", "junk: behind a zip", "junk: behind a tar")
_BUILT = {"path", "member", "link", "size"}


def test_a_bad_member_does_not_affect_others(ordeal: Ordeal) -> None:
    for name, ending in ordeal.endings.items():
        kind = name.partition(":")[0]
        if (kind in _BUILT and not name.startswith("size")) or name in _WHOLE:
            assert ending.ended == "built", (name, ending)
            assert ending.num_written >= len(GOOD), (name, ending)
            assert (ending.num_left_out > 0) == (name not in _WHOLE), (name, ending)


def test_only_a_duplicate_name_is_an_error(ordeal: Ordeal) -> None:
    for name, ending in ordeal.endings.items():
        if name.startswith("name: ") and "letters" not in name:
            is_double = "twice" in name
            assert ending.ended == ("error" if is_double else "built"), (name, ending)
            assert ending.num_left_out == 0, (name, ending)
            assert is_double or ending.num_written >= len(GOOD) + 1, (name, ending)


def test_an_incomplete_archive_is_an_error_that_names_it(ordeal: Ordeal) -> None:
    kinds = {"cut", "damage", "hidden", "overlap", "depth", "time", "nothing"}
    endings = {n: e for n, e in ordeal.endings.items() if n.partition(":")[0] in kinds}
    assert {name.partition(":")[0] for name in endings} == kinds
    for name, ending in endings.items():
        assert ending.ended == "error", (name, ending)
        where = PurePosixPath(ending.line.split(": ")[0].replace("…", ""))
        assert where.parts[0] == "in" or where.name.endswith((".evil", "in.zip", "in.tar"))


def test_the_error_of_a_bomb_names_the_flag(ordeal: Ordeal) -> None:
    for name, ending in ordeal.endings.items():
        if name.startswith("bomb: ") and outcome(ending) == ERROR:
            assert "--max-ratio" in ending.line, (name, ending)
    if member := ordeal.endings.get("bomb: member"):  # `--quick` tries some of each kind
        assert member.num_left_out == 1


@pytest.mark.thorough
def test_the_rows_count_every_archive(ordeal: Ordeal) -> None:
    rows = archive_rows(ordeal)
    assert sum(tried for _, tried, _ in rows) == len(HOSTILE)
    assert all(tried == sum(counts.values()) for _, tried, counts in rows)
    assert {key for _, _, counts in rows for key in counts} == {WHOLE, COUNTED, ERROR}


def test_names_are_printed_without_control_characters(tmp_path: Path) -> None:
    names = ["\x1b[2J.jpg", "\u202egpj.jpg", "a.jpg", "b.jpg"]
    images = dict.fromkeys(names[:2], b"no image") | dict.fromkeys(names[2:], GOOD["cat/0.jpg"])
    table = "id,label\na.jpg,\x1b]0;cat\x07\nb.jpg,\u202egod\n"
    source = write(tmp_path / "s.zip", zip_bytes({**images, "labels.csv": table.encode()}))
    for command, code in (
        (f"build {source} --max-rejected 100%", 2),  # a question, which shows the labels
        (f"build {source} --max-rejected 100% --labels none", 0),
        ("inspect", 0),
        (f"init {source}", 0),  # shows the labels in the recipe
    ):
        done = run(*command.split(), cwd=tmp_path, environment=os.environ)
        assert done.returncode == code
        lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
        assert all(line.isprintable() for line in lines), (command, lines)
        shown = done.stderr if code else done.stdout
        if command.startswith("init"):
            shown = (tmp_path / "shardprep.toml").read_text(encoding="utf-8")
            assert all(map(str.isprintable, shown.splitlines()))
            assert r"\u202egod" in shown
        assert r"\x1b" in shown
