"""Every call that leaves for object storage, against a server and a proxy that fails."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from shardprep.errors import ShardprepError, StorageError
from shardprep.storage import objects, store
from shardprep.storage.store import ENDPOINTS, timeouts
from shardprep.storage.url import ObjectUrl
from tests.support.builders import animals, write, zip_bytes
from tests.support.object_store import Bucket, Fault, Proxy, Request, nth, process_environment

DOCUMENT = Path(__file__).parents[2].joinpath("docs", "object_storage.md").read_text()


def url_of(bucket: Bucket, key: str) -> ObjectUrl:
    return ObjectUrl.parse(f"{bucket.url}/{key}")


def test_another_client_reads_what_was_put(bucket: Bucket) -> None:
    objects.put(url_of(bucket, "some/key"), b"bytes")
    assert bucket.tree() == {"some/key": b"bytes"}
    assert objects.get(url_of(bucket, "some/key")) == b"bytes"
    assert objects.get(url_of(bucket, "other")) is None


def is_get(request: Request) -> bool:
    return request.method == "GET"


@pytest.mark.parametrize(
    "fault", [Fault(status=503), Fault(status=500), Fault(is_reset=True), Fault(cut_at=2)]
)
def test_a_read_is_retried(bucket: Bucket, proxy: Proxy, fault: Fault) -> None:
    bucket.put("key", b"0123456789")
    proxy.rule = nth(0, fault, is_get)
    assert objects.get(url_of(bucket, "key")) == b"0123456789"
    assert proxy.count("GET") == 2


@pytest.mark.parametrize("size", [10, 20 << 20], ids=["at once", "in parts"])
@pytest.mark.parametrize(
    "fault",
    [Fault(status=503), Fault(is_reset=True), Fault(is_deaf=True)],
    ids=["503", "RST", "lost"],
)
def test_a_write_is_retried(bucket: Bucket, proxy: Proxy, fault: Fault, size: int) -> None:
    """A lost answer may belong to the last step, which cannot be repeated."""
    data = bytes(size)
    last = "POST" if size > 10 else "PUT"
    proxy.rule = nth(size > 10, fault, lambda request: request.method == last)
    mark = objects.put(url_of(bucket, "key"), data)
    assert bucket.read("key") == data
    facts = objects.head(url_of(bucket, "key"))
    assert facts is not None
    assert (facts.num_bytes, facts.etag) == (size, mark)


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "first"])
@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
def test_a_call_with_a_truncated_answer_is_repeated(
    bucket: Bucket, proxy: Proxy, method: str, *, is_known: bool
) -> None:
    """The client does not repeat a request after a part of its answer."""
    data = bytes(20 << 20)
    bucket.put("some/key", b"0123456789")
    if is_known:
        objects.head(url_of(bucket, "some/key"))
    number = method == "POST"  # of the two requests by POST, the second completes an upload
    proxy.rule = nth(number, Fault(cut_at=40), lambda request: request.method == method)
    if method == "GET":
        assert [facts.name for facts in objects.listing(url_of(bucket, "some"))] == ["key"]
    elif method == "PUT":
        assert objects.copy(url_of(bucket, "some/key"), url_of(bucket, "other"), 10)
        assert bucket.read("other") == b"0123456789"
    else:
        mark = objects.put(url_of(bucket, "large"), data)
        assert bucket.read("large") == data
        facts = objects.head(url_of(bucket, "large"))
        assert facts is not None
        assert facts.etag == mark


def test_a_read_that_the_client_abandons_is_repeated(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so early, now and then: where its process stood still while an answer came."""
    url = url_of(bucket, "some/key")
    bucket.put("some/key", b"0123456789")
    reads: list[tuple[object, Callable[[], object]]] = [
        (b"0123456789", lambda: objects.get(url)),
        (b"345", lambda: objects.get_range(url, 3, 3)),
        ([b"1", b"2"], lambda: objects.get_ranges(url, [1, 2], [1, 1])),
        (True, lambda: objects.head(url) is not None),
        (["key"], lambda: [facts.name for facts in objects.listing(url_of(bucket, "some"))]),
    ]
    apart = store._apart
    failing: list[str] = []

    def given_up(*arguments: Any) -> Any:
        if failing:
            raise OSError(failing.pop())
        return apart(*arguments)

    monkeypatch.setattr(store, "_apart", given_up)
    for expected, read in reads:
        failing.append("HTTP error: request or response body error, kind: Request")
        assert read() == expected
        assert not failing


@pytest.mark.thorough
@pytest.mark.parametrize("fault", [Fault(is_reset=True), Fault(is_deaf=True)], ids=["RST", "lost"])
def test_a_lost_answer_to_a_creation_is_not_taken_for_a_conflict(
    bucket: Bucket, proxy: Proxy, fault: Fault
) -> None:
    assert objects.get(url_of(bucket, "key")) is None
    proxy.rule = nth(0, fault, lambda request: request.method == "PUT")
    assert objects.create(url_of(bucket, "key"), b"mine")
    assert objects.create(url_of(bucket, "key"), b"mine"), "what is there is what was meant"
    assert not objects.create(url_of(bucket, "key"), b"another's")
    assert bucket.read("key") == b"mine"


def test_a_listing_ends_at_the_slash_of_the_key(bucket: Bucket) -> None:
    for key in ("a/1.0.0/x", "a/1.0.0/y/z", "a/1.0.0.incomplete/x", "a/1.0.00"):
        bucket.put(key, b"")
    assert [facts.name for facts in objects.listing(url_of(bucket, "a/1.0.0"))] == ["x", "y/z"]
    objects.delete([url_of(bucket, "a/1.0.0/x"), url_of(bucket, "a/1.0.0/absent")])
    assert bucket.tree("a/1.0.0") == {"y/z": b""}


SECRETS = ("AKIATESTACCESSKEY", "a-secret-that-nobody-may-see", "a-token-that-nobody-may-see")
DENIED = (
    "<Error><Code>AccessDenied</Code><AWSAccessKeyId>AKIATESTACCESSKEY</AWSAccessKeyId>"
    "<Message>a-token-that-nobody-may-see</Message></Error>"
)


@pytest.mark.thorough
def test_an_error_of_a_command_is_one_line_without_secrets(
    bucket: Bucket, proxy: Proxy, tmp_path: Path
) -> None:
    pets = write(tmp_path / "pets.zip", zip_bytes(animals(2)))
    proxy.rule = lambda r: Fault(status=403, body=DENIED) if r.method == "PUT" else None
    environment = process_environment(
        os.environ["AWS_ENDPOINT_URL"], RUST_LOG="trace", RUST_BACKTRACE="1",
        AWS_SESSION_TOKEN="a-token-that-nobody-may-see",
    )  # fmt: skip
    command = ["-m", "shardprep", "build", str(pets), "--profile", "--out", bucket.url]
    done = subprocess.run(
        [sys.executable, *command], check=False, cwd=tmp_path, text=True, env=environment,
        capture_output=True, timeout=60,
    )  # fmt: skip
    line = "cannot be written with these credentials (HTTP 403 Forbidden AccessDenied)"
    assert line in done.stderr
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    for secret in (*SECRETS, "Signature"):
        assert secret not in done.stdout + done.stderr


def line_of(address: str) -> str:
    """Return the one line of a read that fails."""
    with pytest.raises(ShardprepError) as caught:
        objects.get(ObjectUrl.parse(address))
    assert not [secret for secret in SECRETS if secret in str(caught.value)]
    return str(caught.value)


def test_an_error_names_the_problem(
    bucket: Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "s3://no-such-bucket: the bucket does not exist; create"
    with pytest.raises(StorageError, match=line):
        objects.put(ObjectUrl.parse("s3://no-such-bucket/key"), b"")
    address = f"{bucket.url}/key"
    proxy.rule = lambda _: Fault(status=403, body=DENIED)
    assert "cannot be read with these credentials (HTTP 403 Forbidden Acc" in line_of(address)
    proxy.rule = lambda _: Fault(status=400, body="<Error><Code>ExpiredToken</Code></Error>")
    assert "cannot be read (HTTP 400 Bad Request ExpiredToken)" in line_of(address)
    proxy.rule = lambda _: Fault(status=301)
    assert "the bucket is in another region; set AWS_REGION" in line_of(address)
    assert "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACC" in line_of("az://container/key")
    with monkeypatch.context() as without:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            without.delenv(name)
        without.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9/metadata")
        without.setenv("SHARDPREP_STORE_TIMEOUT", "1")
        line = "credentials are missing; set AWS_ACCESS_KEY_ID"
        assert line in line_of("s3://without-credentials/key")
    assert "has a user or a password" in line_of("s3://me:a-token-that-nobody-may-see@bucket/key")
    signed = "s3://bucket/key?X-Amz-Signature=a-token-that-nobody-may-see"
    assert "has a query" in line_of(signed)
    line = "AWS_ENDPOINT_URL: is not the address of a server; give htt"
    secret = "http://me:a-token-that-nobody-may-see@host"
    for endpoint in (secret, "nonsense", "http://[", "s3://x"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        assert line_of(address).startswith(line)


@pytest.mark.thorough
def test_a_server_that_was_never_there_is_not_waited_for(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = timeouts(is_known=False, writing=False)
    assert first.retry_s + store._CONNECT_S < 10 < timeouts(is_known=True, writing=False).retry_s
    monkeypatch.setenv("SHARDPREP_STORE_TIMEOUT", "2")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    start = time.monotonic()
    assert "no answer from 127.0.0.1:9" in line_of(f"{bucket.url}/key")
    assert time.monotonic() - start < 60


def test_an_error_says_how_to_install_obstore(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(StorageError, match=r"needs obstore; pip install 'shardprep\[cloud\]'"):
        objects.get(ObjectUrl.parse("s3://bucket/key"))


@pytest.mark.parametrize(
    ("address", "variables", "path"),
    [
        ("gs://bkt/some/key", {"GOOGLE_BASE_URL": "{}", "GOOGLE_SKIP_SIGNATURE": "true"},
         "/bkt/some/key"),
        ("az://bkt/some/key", {"AZURE_STORAGE_ENDPOINT": "{}/account",
         "AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": "c2VjcmV0"},
         "/account/bkt/some/key"),
    ],
)  # fmt: skip
def test_other_stores_use_the_variables_of_the_document(
    address: str, variables: dict[str, str], path: str, proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(proxy.endpoint))
        assert f"`{name}`" in DOCUMENT or name == "GOOGLE_SKIP_SIGNATURE"
    proxy.rule = lambda _: Fault(status=404)
    assert objects.get(ObjectUrl.parse(address)) is None
    assert unquote(proxy.requests[0].path.partition("?")[0]) == path


def test_the_document_names_the_endpoint_variables() -> None:
    assert all(any(f"`{name}`" in DOCUMENT for name in names) for names in ENDPOINTS.values())


def test_a_bucket_accepts_the_lifecycle_rule_of_the_document(bucket: Bucket) -> None:
    block = re.search(r"```json\n(.*?)```", DOCUMENT, re.DOTALL)
    assert block is not None
    bucket.client.put_bucket_lifecycle_configuration(
        Bucket=bucket.name, LifecycleConfiguration=json.loads(block[1])
    )
    rules = bucket.client.get_bucket_lifecycle_configuration(Bucket=bucket.name)["Rules"]
    assert rules[0]["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
