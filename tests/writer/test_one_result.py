"""However a dataset is built, it is the same: every shard, and the manifest, byte for byte."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.builders import (
    animals,
    build,
    build_part,
    finalize,
    in_process,
    in_workers,
    jpeg,
    tree,
    write,
    zip_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEYS: dict[str, Any] = {
    "shards": 4,
    "size": "32x24",
    "split": "train=0.7,validation=0.3",
    "max_rejected": "10%",
    "seed": 5,
}
MEMBERS = {
    **animals(40),
    **{f"test/{i}.jpg": jpeg(seed=i) for i in range(6)},
    "train/cat.90.jpg": jpeg()[:-300],
    "train/dog.91.jpg": b"not an image",
    "readme.txt": b"hello",
}


def in_one_process(source: Path, out: Path) -> None:
    build(source, out, engine=in_process, **KEYS)


def by_the_local_pool(source: Path, out: Path) -> None:
    build(source, out, engine=in_workers, **KEYS)


def by_parts(source: Path, out: Path) -> None:
    for number in (3, 1, 2):
        build_part(source, out, f"{number}/3", engine=in_workers, **KEYS)
    finalize(out)


WAYS: dict[str, Callable[[Path, Path], None]] = {
    "one process": in_one_process,
    "the local pool": by_the_local_pool,
    "--part I/N, then finalize": by_parts,
}


@pytest.fixture(scope="module", name="source")
def _source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    return write(folder / "pets.zip", zip_bytes({"inner.zip": zip_bytes(MEMBERS)}))


@pytest.fixture(scope="module", name="expected")
def _expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("expected")
    in_one_process(source, out)
    return hashes(out)


def hashes(out: Path) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in tree(out).items()}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_build_gives_the_same_shards_and_manifest(
    way: str, source: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    WAYS[way](source, tmp_path / "out")
    found = hashes(tmp_path / "out")
    assert "pets/1.0.0/manifest.json" in found
    assert sum("/pets-" in name for name in found) >= 6
    assert found == expected
