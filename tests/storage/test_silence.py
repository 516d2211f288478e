"""A store that does not answer: a warning, a time limit, and calls that can be interrupted."""

import itertools
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shardprep.errors import StorageError
from shardprep.storage import objects, store
from shardprep.storage.cache import cache_root
from shardprep.storage.store import NoAnswerError
from shardprep.storage.url import ObjectUrl
from tests.support.builders import animals, build, tree, write, zip_bytes
from tests.support.object_store import Bucket, Fault, Proxy, Request, process_environment
from tests.support.processes import wait_until

TIMEOUT_S = 2.0
BODY = bytes(range(256)) * 4096
CALLS: dict[str, Callable[[ObjectUrl], object]] = {
    "get": objects.get,
    "get_range": lambda url: objects.get_range(url, 0, len(BODY)),
    "get_ranges": lambda url: objects.get_ranges(url, [0, 9], [len(BODY), 9]),
    "read_range": lambda url: objects.read_range(url, "", 0, len(BODY)),
    "read_whole": lambda url: list(objects.read_whole(url, "")),
    "sha256": objects.sha256,
    "head": objects.head,
    "listing": objects.listing,
    "put": lambda url: objects.put(url, b"bytes"),
    "create": lambda url: objects.create(url, b"bytes"),
    "delete": lambda url: objects.delete([url]),
}


@pytest.fixture(name="url")
def _url(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> ObjectUrl:
    monkeypatch.setenv(store.TIMEOUT_VARIABLE, str(TIMEOUT_S))
    return ObjectUrl.parse(bucket.put("key", BODY))


@pytest.fixture(name="never")
def _never() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def seconds_of(call: Callable[[ObjectUrl], object], url: ObjectUrl) -> float:
    """Return the seconds after which a call raises `NoAnswerError`."""
    begun = time.monotonic()
    with pytest.raises(NoAnswerError, match=r"cannot be (read|written) \(no answer from 127"):
        call(url)
    return time.monotonic() - begun


def all_seconds(url: ObjectUrl, names: list[str]) -> dict[str, float]:
    """Return the seconds of each call, each in a thread of its own, all at once."""
    with ThreadPoolExecutor(len(names)) as pool:
        found = pool.map(lambda name: seconds_of(CALLS[name], url), names)
        return dict(zip(names, found, strict=True))


def slowest(url: ObjectUrl, names: list[str]) -> float:
    """Return the seconds of the slowest of these calls and of one of the main thread."""
    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(all_seconds, url, names)
        found = {"main thread": seconds_of(objects.get, url), **others.result()}
    assert min(found.values()) > 0.4 * TIMEOUT_S, found
    return max(found.values())


@pytest.mark.thorough
def test_every_call_ends_at_the_time_limit_after_one_warning(
    url: ObjectUrl, proxy: Proxy, never: threading.Event,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(store, "_TOLD_AFTER_S", 0.5)
    monkeypatch.setattr(store, "_told", {})
    stalling = ObjectUrl.parse(str(url).replace("key", "stalling"))
    objects.put(stalling, BODY)
    assert not caplog.messages
    proxy.rule = lambda r: Fault(stall_at=100) if "stalling" in r.path else Fault(hold=never)
    with_body = ["get", "get_range", "get_ranges", "read_range", "read_whole", "sha256", "listing"]
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(all_seconds, stalling, with_body)
        assert slowest(url, list(CALLS)) < 2 * TIMEOUT_S
        found = other.result().values()
    assert 0.4 * TIMEOUT_S < min(found) <= max(found) < 2 * TIMEOUT_S
    host = proxy.endpoint.removeprefix("http://")
    (line,) = caplog.messages
    expected = rf"waiting for the store at {host}, no answer for \d s; gives up after 2 s"
    assert re.fullmatch(expected, line)
    assert {record.name for record in caplog.records} == {"shardprep.storage"}
    proxy.rule = lambda _: None
    assert objects.get(url) == BODY


@pytest.mark.thorough
def test_a_slow_store_is_not_silent(
    url: ObjectUrl, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request of an upload is answered in time; the bytes of a read arrive slowly."""
    monkeypatch.setenv(store.TIMEOUT_VARIABLE, "4")
    assert objects.head(url)
    slow = Fault(bytes_per_s=len(BODY) / 4.8)
    proxy.rule = lambda r: slow if r.method == "GET" else Fault(delay_s=1.4)

    def timed(call: Callable[[], object]) -> float:
        begun = time.monotonic()
        call()
        return time.monotonic() - begun

    with ThreadPoolExecutor(1) as pool:
        other = ObjectUrl.parse(str(url).replace("key", "other"))
        upload = pool.submit(timed, lambda: objects.put(other, bytes(objects._UPLOAD_BYTES + 1)))
        assert timed(lambda: objects.get(url)) > 4
        assert upload.result() > 4


@pytest.mark.thorough
def test_reading_continues_after_a_short_silence(
    url: ObjectUrl, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers in between take long too where many others share the cores."""
    monkeypatch.setenv(store.TIMEOUT_VARIABLE, str(4 * TIMEOUT_S))
    other = ObjectUrl.parse(str(url).replace("key", "other"))
    objects.put(other, BODY)
    turns = {name: itertools.cycle([Fault(stall_at=100), None]) for name in ("key", "other")}
    proxy.rule = lambda r: next(turns[r.path.rpartition("/")[2]])
    with ThreadPoolExecutor(1) as pool:
        whole = pool.submit(lambda: b"".join(objects.read_whole(other, "")))
        assert objects.get(url) == BODY
        assert whole.result() == BODY


@pytest.mark.parametrize("said", ["soon", "0.5", "-3", "nan", "inf"])
def test_a_time_out_is_a_number_of_seconds(
    url: ObjectUrl, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv(store.TIMEOUT_VARIABLE, said)
    line = r"SHARDPREP_STORE_TIMEOUT: .* is not a number of at least 1"
    with pytest.raises(StorageError, match=line):
        objects.get(url)


def test_a_warning_is_logged_once_for_all_calls_and_repeated_rarely(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After 5 seconds of silence, then every 30; a call that moves is not silent."""
    assert (store._TOLD_AFTER_S, store._TOLD_EVERY_S) == (5, 30)
    monkeypatch.setattr(store, "_told", {})
    told = {}
    waits = [store.Wait(lambda: "127.0.0.1", 180, 1000.0 + i / 8) for i in range(8)]
    moving = store.Wait(lambda: "127.0.0.1", 180, 0.0)
    for quarter in range(4 * 70):
        now = 1000 + quarter / 4
        moving.since_s = now - 0.25
        store._tell([*waits, moving], now)
        if caplog.messages:
            told[now] = caplog.messages.copy()
            caplog.clear()
    line = "waiting for the store at 127.0.0.1, no answer for {} s; gives up after 180 s"
    assert told == {1000.0 + age: [line.format(age)] for age in (5, 35, 65)}


# --- programs ------------------------------------------------------------------------------------


@pytest.fixture(name="pets")
def _pets(bucket: Bucket, tmp_path: Path) -> str:
    source = write(tmp_path / "pets.zip", zip_bytes(animals(40)))
    built = build(source, tmp_path / "out", size="32x24", labels="prefix", shards=2).path
    for name, data in tree(built).items():
        bucket.put(f"pets/1.0.0/{name}", data)
    return f"{bucket.url}/pets"


def is_shard(request: Request) -> bool:
    return ".tfrecord-" in request.path and "/index/" not in request.path


def program(proxy: Proxy, *arguments: str, **more: str) -> subprocess.Popen[str]:
    """Start Python with an environment that leads to the store."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=process_environment(proxy.endpoint, SHARDPREP_CACHE=str(cache_root()), **more),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


AGAIN = "try again when the store answers"

COMMAND = """
import sys
from shardprep.cli.app import main
from shardprep.storage import store

store._TOLD_AFTER_S = 1.0  # not 5: that leaves the line three seconds before the end
sys.exit(main())
"""


@pytest.mark.thorough
def test_a_command_warns_of_a_silent_store_and_then_ends(
    pets: str, proxy: Proxy, never: threading.Event
) -> None:
    proxy.rule = lambda _: Fault(hold=never)
    host = proxy.endpoint.removeprefix("http://")
    one = program(proxy, "-c", COMMAND, "inspect", pets, "--store-timeout", "4")
    wait_until(lambda: proxy.requests)  # the start of an interpreter has its own seconds
    begun = time.monotonic()
    _, errors = one.communicate(timeout=120)
    assert time.monotonic() - begun < 20
    assert one.returncode == 1
    waited, failed = errors.splitlines()
    # The delay between the warning and the check depends on the machine.
    waiting = rf"waiting for the store at {host}, no answer for [1-3] s; gives up after 4 s"
    assert re.fullmatch(waiting, waited)
    assert failed == f"{pets}: cannot be read (no answer from {host}); {AGAIN}"


@pytest.mark.parametrize("command", ["inspect", pytest.param("fetch", marks=pytest.mark.thorough)])
def test_a_wait_can_be_interrupted(
    pets: str, proxy: Proxy, never: threading.Event, tmp_path: Path, command: str
) -> None:
    """`inspect` waits in its main thread, `fetch` in the middle of shards in others."""
    proxy.rule = lambda one: (
        (Fault(stall_at=100) if is_shard(one) else None)
        if command == "fetch"
        else Fault(hold=never)
    )
    to = ("--to", str(tmp_path)) if command == "fetch" else ()
    one = program(proxy, "-m", "shardprep", command, pets, *to)
    wait_until(lambda: any(map(is_shard, proxy.requests)) or (proxy.requests and not to))
    time.sleep(0.5)  # the answer's first bytes are there
    begun = time.monotonic()
    one.send_signal(signal.SIGINT)
    _, errors = one.communicate(timeout=120)
    assert time.monotonic() - begun < 6, "of 180"
    assert (one.returncode, errors.count("\n")) == (130, 1), errors


@pytest.mark.thorough
def test_a_program_ends_while_shards_are_silent(pets: str, proxy: Proxy) -> None:
    proxy.rule = lambda one: (
        Fault(stall_at=100) if is_shard(one) and "range" not in one.headers else None
    )
    code = "import sys; from shardprep.reader import Dataset; Dataset(sys.argv[1])[0]; print(1)"
    one = program(proxy, "-c", code, pets)
    assert one.stdout is not None
    assert one.stdout.readline() == "1\n"
    begun = time.monotonic()
    _, errors = one.communicate(timeout=120)
    assert (one.returncode, errors) == (0, "")
    assert time.monotonic() - begun < 6, "of 180"


# --- the document --------------------------------------------------------------------------------


def test_the_document_has_the_numbers_of_the_code() -> None:
    page = Path(__file__).parents[2] / "docs" / "object_storage.md"
    text = " ".join(page.read_text().split())
    later = store.timeouts(is_known=True, writing=True)
    first = store.timeouts(is_known=False, writing=False)
    assert f"for {store.DEFAULT_TIMEOUT_S:.0f} seconds" in text
    assert f"after {first.total_s:.0f} seconds" in text
    assert f"after {store._TOLD_AFTER_S:.0f} seconds" in text
    assert f"every {store._TOLD_EVERY_S:.0f}" in text
    assert f"`{store.TIMEOUT_VARIABLE}`" in text
    megabytes = objects._UPLOADS_AT_ONCE * objects._UPLOAD_BYTES >> 20
    assert f"{megabytes} MiB in {later.answer_s:.0f} seconds" in text
