"""Every call that leaves for object storage, against a server and a proxy that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardprep.storage import objects
from shardprep.storage.url import ObjectUrl
from tests.object_store import Fault, nth

if TYPE_CHECKING:
    from tests.object_store import Bucket, Proxy, Request


def url_of(bucket: Bucket, key: str) -> ObjectUrl:
    return ObjectUrl.parse(f"{bucket.url}/{key}")


def test_what_is_put_is_what_another_client_reads(bucket: Bucket) -> None:
    objects.put(url_of(bucket, "some/key"), b"bytes")
    assert bucket.tree() == {"some/key": b"bytes"}
    assert objects.get(url_of(bucket, "some/key")) == b"bytes"
    assert objects.get(url_of(bucket, "other")) is None


def is_get(request: Request) -> bool:
    return request.method == "GET"


@pytest.mark.parametrize(
    "fault", [Fault(status=503), Fault(status=500), Fault(is_reset=True), Fault(cut_at=2)]
)
def test_a_read_is_tried_again(bucket: Bucket, proxy: Proxy, fault: Fault) -> None:
    bucket.put("key", b"0123456789")
    proxy.rule = nth(0, fault, is_get)
    assert objects.get(url_of(bucket, "key")) == b"0123456789"
    assert proxy.count("GET") == 2
