"""A dataset that is replaced while it is read: its own content, the other's, or one error.

A build with `--overwrite` replaces the folder by a rename. Here another dataset takes its place
before each opening of a file in turn, and what is read must never be of both.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pytest

import shardprep
from shardprep import reader
from shardprep.dataset.open_dataset import open_dataset
from shardprep.errors import ShardprepError
from shardprep.reporter.record_columns import read_contents
from shardprep.reporter.viewer.pictures import RecordPictures
from tests.support.annotated import outlined
from tests.support.builders import build, png, tree, write, zip_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

CHANGED = "has changed since it was found; open the dataset again"

_running: list[Replacement] = []


class Replacement:
    """Puts `other` in the place of `folder` right before its file number `at` is opened.

    Folders are renamed as a build with `--overwrite` renames them. Only openings in this process
    count.
    """

    def __init__(self, folder: Path, other: Path, at: int) -> None:
        self.num_opened = 0
        """Files of the folder that were opened."""
        self.folder, self._other, self._at = folder, other, at
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        _listen()
        _running.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _running.remove(self)

    def opens(self, path: str) -> None:
        """Count the opening of a file."""
        if path.startswith(f"{self.folder}/") and not os.path.isdir(path):  # noqa: PTH112
            with self._lock:
                if self.num_opened == self._at:
                    self.replace()
                self.num_opened += 1

    def replace(self) -> None:
        """Put the other dataset into its place."""
        old = self.folder.with_name(f"{self.folder.name}.old")
        self.folder.rename(old)
        self._other.rename(self.folder)
        shutil.rmtree(old)


@cache
def _listen() -> None:
    sys.addaudithook(_heard)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _running and isinstance(arguments[0], (str, os.PathLike)):
        path = os.fspath(arguments[0])
        for one in [*_running]:
            one.opens(path)


def _classes(folder: Path, seed: int) -> Path:
    """Return a dataset whose shards have the same sizes for any seed, with other classes."""
    members = {f"{i}.png": png(20, 20, seed + i) for i in range(8)}
    names = ("cat", "dog") if seed == 0 else ("dog", "cat")
    rows = "".join(f"{i},{names[i % 2]}\n" for i in range(8))
    members["labels.csv"] = f"id,label\n{rows}".encode()
    source = write(folder / "pets.zip", zip_bytes(members))
    return build(source, folder, labels="csv:labels.csv", **OPTIONS).path


def _objects(folder: Path, seed: int) -> Path:
    members = outlined({f"{i}.png": png(20, 20, seed + i) for i in range(8)}, seed)
    source = write(folder / "pets.zip", zip_bytes(members))
    return build(source, folder, boxes="coco", masks="coco", **OPTIONS).path


ONCE: dict[str, Any] = {"seed": 1, "epochs": 1, "as_supervised": False}
OPTIONS: dict[str, Any] = {"size": "16x16", "format": "raw", "shards": 2, "split": "train=1"}
KINDS = {"classes": _classes, "objects": _objects}


class Sets:
    """Two datasets, with copies to replace one by the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = {
            kind: [make(folder / kind / str(seed), seed) for seed in (0, 50)]
            for kind, make in KINDS.items()
        }
        self._number = 0

    def pair(self, kind: str) -> tuple[Path, Path]:
        """Return a fresh copy of the first, to be replaced, and one of the second."""
        self._number += 1
        place = self._folder / f"copies/{self._number}/pets"
        one, two = self._made[kind]
        return shutil.copytree(one, place / "1.0.0"), shutil.copytree(two, place / "other")


@pytest.fixture(name="sets", scope="module")
def _sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    return Sets(tmp_path_factory.mktemp("sets"))


# --- what reads a dataset, and what comes of it ---------------------------------------------------


def opened(path: Path) -> reader.Dataset:
    return reader.Dataset(path, as_supervised=False)


def plain(items: Iterable[dict[str, Any]]) -> list[Any]:
    return [{name: np.asarray(one).tolist() for name, one in item.items()} for item in items]


def tensors(path: Path, _out: Path, **options: Any) -> Any:
    return plain(reader.load(path, as_supervised=False, seed=3, **options).as_numpy_iterator())


def cached(path: Path, out: Path) -> Any:
    """Return the content of the decoded copies, which belong to one dataset."""
    tensors(path, out, cache=str(out))
    return tensors(path, out, cache=str(out))


def report(path: Path, out: Path) -> Any:
    shardprep.report(path, output=out / "page.html")
    return (out / "page.html").read_bytes()


def inspected(path: Path, out: Path) -> Any:
    facts = shardprep.inspect(path, boxes=out / "sheet.png")
    return facts.manifest.sha256, facts.formats, (out / "sheet.png").read_bytes()


def viewed(path: Path, _out: Path) -> Any:
    contents = read_contents(open_dataset(path))
    pictures = RecordPictures(contents)
    try:
        found = zip(contents.keys_of(range(len(contents))), contents.label.tolist(), strict=True)
        return [
            (*one, pictures.image(number), pictures.tile(number))
            for number, one in enumerate(found)
        ]
    finally:
        pictures.close()
        contents.items.close()


def exported(path: Path, out: Path, **options: Any) -> Any:
    return tree(shardprep.export(path, to="folder", out=out / "export", **options).path)


def repacked(path: Path, out: Path, **options: Any) -> Any:
    return tree(shardprep.repack(path, out, shards=2, **options).path)


def reused(path: Path, out: Path) -> Any:
    """Return a build with reuse; images that cannot be copied are encoded."""
    source = path.parents[3] / "classes" / "0" / "pets.zip"
    return tree(build(source, out, labels="csv:labels.csv", reuse=path, **OPTIONS).path)


def verified(path: Path, _out: Path) -> Any:
    found = shardprep.verify(path, decode=True)
    return found.problems, found.unknown, found.num_bytes


def compared(path: Path, _out: Path) -> Any:
    found = shardprep.diff(path, path.parents[3] / "classes" / "0")
    return found.is_equal, found.num_changes


READS: dict[str, Callable[[Path, Path], Any]] = {
    "Dataset": lambda path, _: plain(opened(path)),
    "Dataset.batches": lambda path, _: plain(opened(path).batches(4, **ONCE)),
    "Dataset.batches with weights": lambda path, _: plain(
        opened(path).batches(4, weights="balanced", **ONCE)
    ),
    "load": tensors,
    "load with a cache in a folder": cached,
    "report": report,
    "view": viewed,
    "export": exported,
    "export of a part": partial(exported, split="train[2:6]"),
    "repack": repacked,
    "repack of a part": partial(repacked, split="train[2:6]"),
    "reuse": reused,
    "verify": verified,
    "diff": compared,
    "mean_std": lambda path, _: reader.mean_std(path),
    "folds": lambda path, _: [pickle.dumps(fold.numbers) for fold, _ in reader.folds(path, 3)],
    "inspect": inspected,
}


def ended(read: Callable[[Path, Path], Any], path: Path, out: Path) -> Any:
    """Return what `read` returns, or `CHANGED` for the error of a replacement."""
    out.mkdir()
    try:
        return read(path, out)
    except Exception as error:
        line = str(error)
        is_one = isinstance(error, ShardprepError) and "\n" not in line
        is_said_by_tensorflow = type(error).__module__.startswith("tensorflow.")
        if CHANGED in line and (is_one or is_said_by_tensorflow):
            return CHANGED
        raise


@pytest.mark.parametrize("name", READS)
def test_a_dataset_replaced_at_any_time_is_never_mixed_with_its_successor(
    name: str, sets: Sets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, read = "objects" if name == "inspect" else "classes", READS[name]
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path / "cache"))
    whole = []
    for at in (-1, 0):
        with Replacement(*sets.pair(kind), at=-1) as replacement:
            if at == 0:
                replacement.replace()
            whole.append(ended(read, replacement.folder, tmp_path / f"whole{at}"))
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path / "other"))
    with Replacement(*sets.pair(kind), at=-1) as never:
        ended(read, never.folder, tmp_path / "counted")
    assert never.num_opened > 3, "the hook hears of what is opened"
    ends = []
    for at in range(never.num_opened):
        monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path / f"cache{at}"))
        with Replacement(*sets.pair(kind), at=at) as replacement:
            ends.append(ended(read, replacement.folder, tmp_path / f"out{at}"))
    assert all(end == CHANGED or end in whole for end in ends)
    assert CHANGED in ends


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_a_worker_that_opens_its_shards_late_does_not_read_the_successor(
    context: str, sets: Sets
) -> None:
    folder, other = sets.pair("classes")
    data = opened(folder)
    with Replacement(folder, other, at=-1) as replacement:
        replacement.replace()
    with ProcessPoolExecutor(1, get_context(context)) as pool:
        error = pool.submit(itemgetter(0), data).exception()
    assert isinstance(error, ShardprepError)
    assert CHANGED in str(error)


def test_open_shards_stay_readable_and_equal_shards_may_replace_them(sets: Sets) -> None:
    folder, other = sets.pair("classes")
    data, again = opened(folder), folder.with_name("again")
    whole = plain(opened(folder))
    shutil.copytree(folder, again)
    (first,) = plain([data[0]])
    with Replacement(folder, again, at=-1) as replacement:
        replacement.replace()
    assert plain(data) == whole
    with Replacement(folder, other, at=-1) as replacement:
        replacement.replace()
    assert plain(data) == whole
    assert plain([data[0]]) == [first]


def test_a_removed_dataset_is_the_same_error(sets: Sets) -> None:
    folder, _ = sets.pair("classes")
    data = opened(folder)
    shutil.rmtree(folder)
    with pytest.raises(ShardprepError, match=CHANGED):
        data[0]
