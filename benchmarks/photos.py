"""The photographs that are measured on: real ones where they are at hand, else drawn alike."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

_ARCHIVE = Path(__file__).parents[2] / "shared" / "data" / "dogs-vs-cats.zip"


def originals() -> list[bytes]:
    """Return some 1,800 JPEG files of about 405x361 pixels and 25 to 45 KB."""
    if not _ARCHIVE.is_file():
        return [_drawn(seed) for seed in range(300)]
    with zipfile.ZipFile(_ARCHIVE) as outer:
        inner = zipfile.ZipFile(io.BytesIO(outer.read("train.zip")))
        return [inner.read(name) for name in inner.namelist() if name.endswith(".jpg")]


def write_folder(folder: Path, number: int) -> Path:
    """Write `number` photos as class folders; they repeat when there are fewer originals."""
    data = originals()
    for i in range(number):
        path = folder / ("cat", "dog")[i % 2] / f"{i:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data[i % len(data)])
    return folder


def write_large_folder(folder: Path, number: int) -> Path:
    """Write `number` photos of 12 megapixels, enlarged from the originals."""
    folder.mkdir(parents=True)
    data = originals()
    for i in range(number):
        image = Image.open(io.BytesIO(data[i % len(data)])).convert("RGB")
        image = image.resize((4000, 3000), Image.Resampling.BICUBIC)
        image.save(folder / f"{i:04d}.jpg", quality=90)
    return folder


def _drawn(seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 14, 3), np.uint8)).resize((405, 361))
    noise = rng.normal(0, 14, (361, 405, 3))
    pixels = np.clip(np.asarray(coarse) + noise, 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=90)
    return out.getvalue()
