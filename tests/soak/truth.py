"""Contents of a source, read without shardprep: zipfile, csv, Pillow and hashes."""

from __future__ import annotations

import csv
import hashlib
import io
import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from tests.soak.source import SIDE

_MOST_DIFFERENCE = {"images.zip": 2.0, "photos.zip": 12.0}
"""Mean absolute difference of pixels between two decoders; photos are also resampled and
encoded again. It is about 60 for two different photos."""


class Fact(NamedTuple):
    label: str
    sha256: bytes


@dataclass
class Truth:
    """The images of a source by key, and the number of its other members."""

    source: Path
    images: dict[str, Fact] = field(default_factory=dict)
    num_others: int = 0

    @classmethod
    def of(cls, source: Path) -> Truth:
        found = cls(source)
        with zipfile.ZipFile(source) as archive:
            text = archive.read("labels.csv").decode()
            labels = {row["id"]: row["label"] for row in csv.DictReader(io.StringIO(text))}
            others = [name for name in archive.namelist() if not name.endswith(".zip")]
            found.num_others = len(others) - 1  # a table that is read is not skipped
        for key, data in found.members():
            found.images[key] = Fact(labels[Path(key).stem], hashlib.sha256(data).digest())
        return found

    def members(self) -> Iterator[tuple[str, bytes]]:
        with zipfile.ZipFile(self.source) as archive, tempfile.TemporaryDirectory() as folder:
            for name in archive.namelist():
                if not name.endswith(".zip"):
                    continue
                copy = Path(folder, name)
                with archive.open(name) as packed, copy.open("wb") as file:
                    shutil.copyfileobj(packed, file)
                with zipfile.ZipFile(copy) as inner:
                    for member in inner.infolist():
                        yield f"{name}/{member.filename}", inner.read(member)
                copy.unlink()


@dataclass
class Tally:
    """Compares records with the source, each key once."""

    truth: Truth
    seen: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    pixels: dict[str, Any] = field(default_factory=dict)
    """Some decoded images by key, uint8[height, width, 3]."""

    def add(self, key: str, label: str) -> None:
        self.seen[key] += 1
        fact = self.truth.images.get(key)
        if fact is None or fact.label != label:
            self.wrong.append(f"{key}: {label}, not {fact and fact.label}")

    def add_bytes(self, key: str, data: bytes) -> None:
        """Compare a stored image with its original, if it is stored unchanged."""
        if key.startswith("images.zip/"):
            fact = self.truth.images[key]
            if hashlib.sha256(data).digest() != fact.sha256:
                self.wrong.append(f"{key}: not its bytes")

    def lost(self, rejected: set[str]) -> list[str]:
        """Return keys that were not read exactly once, and rejected keys that were read."""
        expected = self.truth.images.keys() - rejected
        return sorted(
            key for key in expected | self.seen.keys() if self.seen[key] != (key in expected)
        )


def is_whole(data: bytes) -> bool:
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
    except OSError:
        return False
    return True


def looks_alike(key: str, original: bytes, stored: np.ndarray[Any, np.dtype[np.uint8]]) -> bool:
    """Return whether a stored image shows its original, cropped to a square."""
    with Image.open(io.BytesIO(original)) as image:
        square = ImageOps.fit(image.convert("RGB"), (SIDE, SIDE), Image.Resampling.BILINEAR)
    difference = np.abs(np.asarray(square, np.int16) - stored).mean()
    return bool(difference < _MOST_DIFFERENCE[key.partition("/")[0]])
