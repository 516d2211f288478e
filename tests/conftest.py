"""Fixtures of several test modules."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from tests.support.object_store import Bucket, ObjectStore, Proxy, environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(name="object_store", scope="session")
def _object_store() -> Iterator[ObjectStore]:
    """An S3 on loopback; each process of pytest has its own."""
    pytest.importorskip("obstore")
    pytest.importorskip("moto.server")
    with ObjectStore() as store:
        yield store


@pytest.fixture(name="bucket")
def _bucket(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bucket:
    """A new bucket; the environment leads there, and the cache is empty."""
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path / "cache"))
    for name, value in environment(object_store.endpoint).items():
        monkeypatch.setenv(name, value)
    return Bucket(object_store, f"b-{uuid.uuid4().hex[:20]}")


@pytest.fixture(name="proxy")
def _proxy(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy before the store; the environment leads there."""
    with Proxy(bucket.store) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy
