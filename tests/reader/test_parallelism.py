"""Calls at the same time: what cores can do, memory holds, and the user asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import tensorflow as tf

from shardprep import reader
from shardprep.reader.config import Request
from shardprep.reader.records.open import open_request
from shardprep.reader.tf import pipeline
from shardprep.reader.tf.records import Cursor
from tests.reader.datasets import pets
from tests.support.builders import animals

if TYPE_CHECKING:
    from pathlib import Path

CORES = 64
GIB = 1 << 30
BATCH_BYTES = 256 * 12 * 16 * 3 * 4
"""Bytes of 256 images of 16x12 in float32."""


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pets(tmp_path_factory, animals(4), shards=1, size="16x12")


def calls(folder: Path, monkeypatch: pytest.MonkeyPatch, free: int, **options: Any) -> int:
    monkeypatch.setattr(pipeline, "usable_cores", lambda: CORES)
    monkeypatch.setattr(pipeline, "free_bytes", lambda: free)
    request = Request(str(folder), **{"batch_size": 256, "dtype": "float32", **options})
    source = pipeline.Source(open_request(request))
    return pipeline._Stages(source, request, Cursor).calls.batches


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        (512 * GIB, CORES),
        (0, CORES),  # no estimate
        (16 * 5 * BATCH_BYTES, 5),
        (BATCH_BYTES, 2),
    ],
)
def test_batches_are_made_on_all_cores_as_far_as_a_sixteenth_of_the_memory_holds_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, free: int, expected: int
) -> None:
    assert calls(folder, monkeypatch, free) == expected


def test_a_crop_and_bytes_take_less_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 16 * 5 * BATCH_BYTES

    assert calls(folder, monkeypatch, free, dtype="uint8") == 20
    assert calls(folder, monkeypatch, free, center_crop=reader.CenterCrop((6, 16))) == 10


def test_single_images_are_made_by_the_threads_of_the_pipeline(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = reader.ReadConfig(private_threadpool_size=7)

    assert calls(folder, monkeypatch, BATCH_BYTES, batch_size=None, read_config=config) == 7


def test_the_user_s_number_is_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = reader.ReadConfig(num_parallel_calls_for_decode=3)

    assert calls(folder, monkeypatch, BATCH_BYTES, read_config=config) == 3


def test_workers_of_a_service_tune_themselves(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = reader.ReadConfig(service="grpc://host:5000")

    assert calls(folder, monkeypatch, GIB, read_config=config) == tf.data.AUTOTUNE
