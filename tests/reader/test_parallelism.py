"""Number of parallel calls, from cores, memory and options."""

from pathlib import Path
from typing import Any

import pytest

from shardprep import reader
from shardprep.reader.config import ReadConfig, Request
from shardprep.reader.records.subset import open_request
from shardprep.reader.tf import finish, pipeline
from shardprep.reader.tf.records import Cursor
from tests.reader.datasets import pets
from tests.support.builders import animals

CORES = 64
GIB = 1 << 30
BATCH_BYTES = 256 * 12 * 16 * 3 * 4
"""Bytes of 256 images of 16x12 in float32."""


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pets(tmp_path_factory, animals(4), shards=1, size="16x12")


@pytest.mark.parametrize(
    ("free", "options", "expected"),
    [
        (512 * GIB, {}, CORES),
        (0, {}, CORES),  # no estimate
        (16 * 5 * BATCH_BYTES, {}, 5),
        (BATCH_BYTES, {}, 2),
        (16 * 5 * BATCH_BYTES, {"dtype": "uint8"}, 20),
        (16 * 5 * BATCH_BYTES, {"center_crop": reader.CenterCrop((6, 16))}, 10),
        (
            BATCH_BYTES,
            {"batch_size": None, "read_config": ReadConfig(private_threadpool_size=7)},
            7,
        ),
        (BATCH_BYTES, {"read_config": ReadConfig(num_parallel_calls_for_decode=3)}, 3),
    ],
)
def test_calls_follow_from_the_size_of_a_batch_and_the_users_number(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    free: int,
    options: dict[str, Any],
    expected: int,
) -> None:
    """All cores make batches if these fit in a sixteenth of the memory.

    Single images use the threads of the pipeline.
    """
    monkeypatch.setattr(finish, "usable_cores", lambda: CORES)
    monkeypatch.setattr(finish, "free_bytes", lambda: free)
    request = Request(str(folder), **{"batch_size": 256, "dtype": "float32", **options})
    source = pipeline.Source(open_request(request))
    assert pipeline._Stages(source, request, Cursor).calls.batches == expected
