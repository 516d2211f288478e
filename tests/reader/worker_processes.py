"""Worker processes of readers in tests."""

import hashlib
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shardprep.dataset.schema import BOX, BOX_LABEL, MASK
from tests.reader.datasets import of_form
from tests.support.annotated import Marked, annotated
from tests.support.builders import build, encoded, pixels, write_folder

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "jpeg": ("jpeg", {}),
    "raw": ("raw", {"drop_remainder": True}),
    "crops": ("keep", {"random_resized_crop": 8}),
    "weights": ("jpeg", {"weights": "balanced"}),
    "boxes": ("boxes", {}),
    "boxes in pixels": ("boxes", {"box_format": "xywh", "max_boxes": 2}),
    "masks": ("masks", {"random_resized_crop": 8}),
    "stacks": ("stacks", {}),
    "cut stacks": ("stacks", {"max_length": 2}),
    "texts": ("text", {}),
    "all features": ("multilabel", {"as_supervised": False}),
}
"""Ways to read a dataset of `worker_sets`, with options of both readers."""


def flat(value: Any) -> Iterator[bytes]:
    """Yield the type, shape and content of each array, tensor, number or text of a batch."""
    if isinstance(value, dict):
        for name in sorted(value):
            yield from (name.encode(), *flat(value[name]))
    elif isinstance(value, list | tuple):
        yield f"{len(value)}".encode()
        for one in value:
            yield from flat(one)
    elif (array := np.asarray(value)).dtype.kind in "OSU":
        texts = [one.decode() if isinstance(one, bytes) else str(one) for one in array.ravel()]
        yield f"{array.shape}{texts}".encode()
    else:
        yield f"{array.dtype}{array.shape}".encode()
        yield array.tobytes()


def digests(batches: Iterable[Any]) -> list[str]:
    """Return the SHA-256 of each batch or item."""
    return [hashlib.sha256(b"".join(flat(batch))).hexdigest() for batch in batches]


def all_same(some: Iterable[Any], others: Iterable[Any]) -> bool:
    """Return whether batches or items have equal keys, dtypes, shapes and values."""
    return digests(some) == digests(others)


def gone(pids: Sequence[int | None]) -> bool:
    """Wait until the processes have ended; return False after 20 seconds."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if not any(is_running(pid) for pid in pids if pid):
            return True
        time.sleep(0.02)
    return False


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def run(code: str, folder: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    script = folder / "program.py"
    script.write_text(textwrap.dedent(code))
    command = f"{before}exec {sys.executable} {script}"
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False
    )


def worker_sets(factory: pytest.TempPathFactory, forms: Sequence[str]) -> dict[str, Path]:
    """Return small datasets of these forms, and of boxes, masks and stacks."""
    boxes, labels = ((1, 2, 9, 12), (3, 0, 8, 5)), (0, 1)
    marked = {
        f"train/{'xy'[i % 2]}/{i}.png": Marked(boxes[: i % 3], labels[: i % 3]) for i in range(17)
    }
    images = {(i, n): pixels(9, 12, seed=9 * i + n) for i in range(8) for n in range(1 + i % 3)}
    stacks = {
        f"{'ab'[i % 2]}/s{i}/{n}.png": encoded(Image.fromarray(image), "PNG")
        for (i, n), image in images.items()
    }
    root = factory.mktemp("stacks")
    made = build(
        write_folder(root / "source", stacks), root / "out", shards=2, size="12x9", format="png",
        stack="{kind}/{id}/*.png", labels="folder",
    )  # fmt: skip
    own = {
        kind: annotated(factory.mktemp(kind), *features, marked=marked)
        for kind, features in {"boxes": (BOX, BOX_LABEL), "masks": (MASK,)}.items()
    }
    return {form: of_form(factory, form) for form in forms} | own | {"stacks": made.path}
