"""The viewer's server: whose requests it answers, unknown addresses, and how it ends."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import shardprep
from shardprep.api.json_types import ViewJson
from tests.support.command import NARROW
from tests.support.json_page import check
from tests.support.paths import DATA
from tests.support.viewing import Client, Got, Served, answer, served

PROTECTION = {
    "content-security-policy": "default-src 'none'; img-src 'self'; style-src 'self'; script-src "
    "'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "server": "shardprep",
}
REQUESTS = tomllib.loads((DATA / "viewer_requests.toml").read_text(encoding="utf-8"))
PAGES = ("/", "/findings", "/item/0", "/tile/0", "/image/0", "/mask/0", "/static/view.css")


@pytest.fixture(name="one", scope="module")
def _one(path: Path) -> Iterator[Served]:
    with served(path) as one:
        yield one


def protected(found: Got) -> Got:
    assert found.headers.items() >= PROTECTION.items()
    assert found.headers["cache-control"].startswith("private")
    assert not [name for name in found.headers if name.startswith("access-control")]
    return found


@pytest.mark.parametrize(("host", "status"), REQUESTS["hosts"].items())
def test_only_this_machine_is_served(one: Served, host: str, status: int) -> None:
    """Another name that resolves to this machine is refused."""
    for page in PAGES:
        found = protected(one.client.get(page, host=host.format(port=one.client.port)))
        assert found.status == status, page


def test_a_request_without_a_host_is_refused(one: Served) -> None:
    for version in (" HTTP/1.1", " HTTP/1.0", ""):
        found = one.client.send(f"GET /{version}\r\nCookie: {one.client.cookie}\r\n\r\n".encode())
        assert protected(found).status == 421


@pytest.mark.parametrize("page", PAGES)
def test_a_client_without_the_cookie_gets_nothing(one: Served, page: str) -> None:
    name, _, secret = one.client.cookie.partition("=")
    for cookie in ("", f"{name}=", f"{name}={secret[:-1]}", f"{name}=é", f"other={secret}"):
        stranger = Client(one.client.port, cookie)
        assert protected(stranger.get(page)).status == 403
        assert stranger.get(f"{page}?token={secret}").status == 403
        assert stranger.get(f"{page}?token=").status == 403
    assert Client(one.client.port, f"a=b; {one.client.cookie}; c=d").get(page).status == 200


def test_the_printed_address_gives_access_to_every_browser(planted: Path) -> None:
    """A reload and a second browser too."""
    with shardprep.view(planted / "tfrecords") as viewer:
        address = urlsplit(viewer.url)
        client = Client(address.port or 0)
        target = f"/?{address.query}"
        assert len(address.query) == len("token=") + 32
        assert client.get(target, method="HEAD").status == 403
        assert client.get(f"/findings?{address.query}").status == 403
        assert client.get(target[:-1]).status == 403
        found = protected(client.get(target))
        assert (found.status, found.headers["location"], found.body) == (303, "/", b"")
        cookie, *attributes = found.headers["set-cookie"].split("; ")
        assert attributes == ["HttpOnly", "SameSite=Lax", "Path=/"]
        assert str(client.port) in cookie
        assert address.query.partition("=")[2] not in cookie
        assert protected(client.get(target)).headers["set-cookie"] == found.headers["set-cookie"]
        client.cookie = cookie
        assert client.get("/").status == 200
        assert client.get(target).headers["location"] == "/"


@pytest.mark.parametrize("page", [*PAGES, "/nowhere"])
def test_only_get_and_head_are_allowed(one: Served, page: str) -> None:
    whole, head = (one.client.get(page, method=method) for method in ("GET", "HEAD"))
    assert (head.status, head.body) == (whole.status, b"")
    assert head.headers["content-length"] == str(len(whole.body))
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW", "get"]:
        found = protected(one.client.get(page, method=method))
        assert (found.status, found.headers["allow"]) == (405, "GET, HEAD")
        assert found.headers["connection"] == "close"


@pytest.mark.parametrize("target", REQUESTS["missing"])
def test_other_addresses_are_not_found(one: Served, target: str) -> None:
    found = protected(one.client.get(target))
    assert (found.status, found.headers["content-type"]) == (404, "text/plain; charset=utf-8")


def test_unknown_fields_are_ignored_up_to_a_number(one: Served) -> None:
    assert one.client.get("/image/0?size=../../etc/passwd%00/../x/../").status == 200
    assert one.client.get("/?" + "&".join(f"a{i}=1" for i in range(30))).status == 404


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\0\x01\0\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", 505),
        (b"GET / HTTP/1.x\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"Host: localhost\r\n" * 101 + b"\r\n", 431),
    ],
)
def test_malformed_requests_get_an_error_and_the_connection_ends(
    one: Served, data: bytes, status: int
) -> None:
    found = protected(one.stranger.send(data))
    assert (found.status, found.headers["connection"]) == (status, "close")


def test_a_body_is_never_the_next_request(one: Served) -> None:
    inner = asking("/item/0", one.client.cookie)
    for method in ("GET", "POST"):
        for length in (f"Content-Length: {len(inner)}", "Transfer-Encoding: chunked"):
            head = f"{method} / HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n".encode()
            with opened(one.client.port, head + inner) as connection:
                answer(connection)
                assert connection.recv(1) == b""


def test_requests_are_answered_in_sequence_and_in_parallel(one: Served) -> None:
    with opened(one.client.port) as connection:
        for _ in range(3):
            connection.sendall(asking("/tile/0", one.client.cookie))
            assert answer(connection).status == 200
    targets = [f"/tile/{i}" for i in range(10)] + [f"/item/{i}" for i in range(10)]
    with ThreadPoolExecutor(20) as pool:
        assert {found.status for found in pool.map(one.client.get, targets)} == {200}


def test_a_client_that_sends_slowly_is_disconnected(
    one: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout applies to the whole request."""
    monkeypatch.setattr(one.server, "request_s", 0.3)
    with opened(one.client.port, b"GET / HTTP/1.1\r\nX: ") as slow:
        ended = threading.Event()

        def drip() -> None:
            while not ended.wait(0.02):
                try:
                    slow.sendall(b"a")
                except OSError:
                    return

        sender = threading.Thread(target=drip)
        sender.start()
        try:
            assert is_cut(slow)
        finally:
            ended.set()
            sender.join()
    monkeypatch.undo()
    assert one.client.get("/").status == 200


def opened(port: int, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 20)
    connection.sendall(data)
    return connection


def asking(target: str, cookie: str = "") -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n".encode()


def is_cut(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_client_without_the_cookie_gets_one_answer_per_connection(one: Served) -> None:
    with opened(one.client.port, asking("/", "a=b") * 3) as connection:
        assert answer(connection).status == 403
        assert is_cut(connection)


def test_only_connections_without_the_cookie_are_replaced(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest connection is replaced first."""
    monkeypatch.setattr("shardprep.reporter.viewer.server.MOST_CONNECTIONS", 3)
    with served(path) as one, ExitStack() as ending:

        def another(data: bytes = b"") -> socket.socket:
            return ending.enter_context(opened(one.client.port, data))

        known = another(asking("/tile/0", one.client.cookie))
        assert answer(known).status == 200
        first, second = another(), another()
        third = another(asking("/tile/0", one.client.cookie))
        assert answer(third).status == 200
        assert is_cut(first)
        fourth = another(asking("/tile/0", one.client.cookie))
        assert answer(fourth).status == 200
        assert is_cut(second)
        assert is_cut(another()), "all others have the cookie"
        for connection in (known, third, fourth):
            connection.sendall(asking("/tile/0", one.client.cookie))
            assert answer(connection).status == 200


def test_a_viewer_that_is_closed_leaves_nothing(planted: Path) -> None:
    before = threading.active_count()
    with shardprep.view(planted / "tfrecords") as viewer:
        port = urlsplit(viewer.url).port
        assert "planted 1.0.0" in repr(viewer)
        with pytest.raises(shardprep.RecipeError, match=f"port: cannot listen on port {port}"):
            shardprep.view(planted / "tfrecords", port=port)
    viewer.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port or 0), 1)
    assert threading.active_count() <= before


@pytest.mark.parametrize(
    ("variable", "name"), [("KAGGLE_KERNEL_RUN_TYPE", "Kaggle"), ("COLAB_RELEASE_TAG", "Colab")]
)
def test_in_a_hosted_notebook_an_error_names_report(
    planted: Path, monkeypatch: pytest.MonkeyPatch, variable: str, name: str
) -> None:
    monkeypatch.setenv(variable, "Interactive")
    with pytest.raises(shardprep.RecipeError, match=rf"{name} notebook.*; use shardprep report"):
        shardprep.view(planted / "tfrecords")


@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_its_address_and_ends_by_ctrl_c(
    planted: Path, way: signal.Signals
) -> None:
    """The output is not buffered in a pipe."""
    is_json = way == signal.SIGTERM
    with started(str(planted / "tfrecords"), *(["--json"] if is_json else [])) as process:
        assert process.stdout
        said = process.stdout.readline()
        while is_json and not said.endswith("}\n"):
            said += process.stdout.readline()
        if is_json:
            found = json.loads(said)
            check(found, ViewJson)
            url = found["url"]
            assert (found["num_records"], found["num_items"]) == (60, 61)
        else:
            url = said.split(" is at ")[1].split()[0]
            assert said == f"planted 1.0.0 is at {url} until Ctrl-C\n"
        address = urlsplit(url)
        assert Client(address.port or 0).get(f"/?{address.query}").status == 303
        process.send_signal(way)
        rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest, errors) == (0, "", "ended\n")


def started(*arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "shardprep", "view", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, env={**NARROW, **(env or {})},
                            text=True)  # fmt: skip


@pytest.mark.parametrize("is_known", [False, True])
def test_clients_that_pipeline_and_do_not_read_block_nobody(
    planted: Path, *, is_known: bool
) -> None:
    """A later client with the cookie is served, and Ctrl-C ends the server."""
    with started(str(planted / "tfrecords"), "--port", "0") as process, ExitStack() as ending:
        assert process.stdout
        address = urlsplit(process.stdout.readline().split(" is at ")[1].split()[0])
        client = Client(address.port or 0)
        found = client.get(f"/?{address.query}")
        client.cookie = found.headers["set-cookie"].partition(";")[0]
        for number in range(100 - is_known):
            connection = ending.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", client.port))
            connection.settimeout(0.01)
            cookie = client.cookie if is_known else ""
            with suppress(OSError):
                while True:
                    connection.sendall(asking(f"/image/{number % 60}", cookie) * 100)
        assert client.get("/").status == 200
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "ended\n")


def test_closing_does_not_wait_for_a_store_or_findings(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads may still read after that."""
    asked, goes_on = threading.Event(), threading.Event()

    def silent(*_: object) -> list[object]:
        asked.set()
        goes_on.wait(60)
        raise OSError

    monkeypatch.setattr("shardprep.reporter.pixels.StoredImages.payloads", silent)
    monkeypatch.setattr("shardprep.reporter.report.known_report", silent)
    try:
        with served(path) as one:
            one.client.get("/")
            with ExitStack() as ending:
                for target in ("/tile/0", "/tile/1", "/image/2", "/findings", "/?finding=dark"):
                    ending.enter_context(opened(one.client.port, asking(target, one.client.cookie)))
                assert asked.wait(20)
                one.viewer.close()
                assert not goes_on.is_set()
    finally:
        goes_on.set()


def test_a_port_is_any_free_one_or_named(planted: Path) -> None:
    named = 0
    for port in (None, 0):
        with shardprep.view(planted / "tfrecords", port=port) as viewer:
            named = urlsplit(viewer.url).port or 0
        assert named
    with shardprep.view(planted / "tfrecords", port=named) as viewer:
        assert urlsplit(viewer.url).port == named
    for wrong in (-1, 65_536):
        with pytest.raises(shardprep.RecipeError, match=r"port: .* number from 0 to 65,535"):
            shardprep.view(planted / "tfrecords", port=wrong)


def test_open_shows_no_secret_to_other_users(planted: Path, tmp_path: Path) -> None:
    """The arguments of the browser, which all users can list, name a private file."""
    (tmp_path / "tmp").mkdir()
    env = {"TMPDIR": str(tmp_path / "tmp"), "BROWSER": f"{tmp_path}/browser %s"}
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(
        f'#!/bin/sh\necho "$@" > {seen}.part\nfile=${{1#file://}}\n'
        f'stat -c %a "${{file%/*}}" >> {seen}.part\ncat "$file" >> {seen}.part\n'
        f"mv {seen}.part {seen}\n"
    )
    browser.chmod(0o755)
    with started(str(planted / "tfrecords"), "--open", env=env) as process:
        assert process.stdout
        url = process.stdout.readline().split(" is at ")[1].split()[0]
        token = urlsplit(url).query.partition("=")[2]
        while not seen.exists():
            assert process.poll() is None
            time.sleep(0.01)
        arguments, mode, page = seen.read_text().splitlines()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert arguments.startswith("file://")
    assert token not in arguments
    assert mode == "700"
    assert f'content="0;url={url}"' in page
    assert not [*(tmp_path / "tmp").iterdir()]
