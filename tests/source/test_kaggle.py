"""Downloads by the unmodified kaggle client from a server on loopback, with everything failing."""

import io
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from rich.console import Console

from shardprep.api import display
from shardprep.errors import RecipeError, SourceError
from shardprep.progress import Watch
from shardprep.source.kaggle import client_process
from shardprep.source.kaggle.archive_check import damage
from shardprep.source.kaggle.client_error import ClientError, RetryLimits
from shardprep.source.kaggle.credentials import credentials
from shardprep.source.kaggle.download import cache_folder, cached_archive, download
from shardprep.source.kaggle.ref import KaggleRef, is_ref, parse_ref
from tests.source.kaggle_clients import at_kaggle
from tests.source.kaggle_server import KEY, LAST_MODIFIED, Answer, Archive, Body, KaggleServer
from tests.support.builders import Quiet, tar_bytes, write, zip_bytes
from tests.support.paths import DATA
from tests.support.processes import wait_until

FORMS = tomllib.loads((DATA / "kaggle.toml").read_text())
PETS, BIRDS = parse_ref("kaggle:pets"), parse_ref("kaggle:zoe/birds")
NOISE = random.Random(0).randbytes(400_000)
MEMBERS = {"train/cat.0.jpg": NOISE[:150_000], "train/dog.0.jpg": NOISE[150_000:]}
ZIP = zip_bytes(MEMBERS, method=zipfile.ZIP_STORED)
HALF = 200_000
"""Offset at which a transfer is cut; a little less is then on the disk."""
ONCE = RetryLimits(attempts=1)
HASTY = RetryLimits(attempts=3, backoff_s=0.01)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


class World(NamedTuple):
    server: KaggleServer
    home: Path
    cache: Path
    told: Quiet


@pytest.fixture(name="world")
def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    archives = {"pets": Archive(ZIP), "zoe/birds": Archive(ZIP)}
    with at_kaggle(tmp_path, monkeypatch, archives) as (server, _):
        yield World(server, tmp_path / "home", tmp_path / "cache", Quiet())


@pytest.fixture(name="real_client")
def _real_client(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each client be a program of its own: it reads settings and paths when it is imported."""
    del world
    monkeypatch.setattr(client_process, "subprocess", subprocess)


def fetch(
    world: World, ref: KaggleRef = PETS, retries: RetryLimits = HASTY, *, refresh: bool = False
) -> Path:
    return download(ref, watcher=world.told, retries=retries, refresh=refresh)


def failure(world: World, ref: KaggleRef = PETS, retries: RetryLimits = ONCE) -> str:
    with pytest.raises(SourceError) as caught:
        fetch(world, ref, retries)
    line = str(caught.value)
    assert line.startswith(f"{ref}: ")
    assert "\n" not in line
    assert cached_archive(ref) is None
    return line


def incoming(ref: KaggleRef = PETS) -> Path:
    return cache_folder(ref) / ".shardprep" / ref.cache_path / "incoming"


# References


def ref_of(text: str) -> KaggleRef:
    """Return the reference of the short form "NAME" or "OWNER/NAME[/VERSION]"."""
    *owner, name = text.split("/")[:2]
    version = text.split("/")[2:]
    kind: Literal["competition", "dataset"] = "dataset" if owner else "competition"
    return KaggleRef(kind, "".join(owner), name, int(version[0]) if version else None)


def test_a_reference_is_parsed_from_what_people_write_and_paste() -> None:
    for text, short in FORMS["refs"].items():
        assert is_ref(text) or text == short
        assert parse_ref(text) == parse_ref(str(ref_of(short))) == ref_of(short)


@pytest.mark.parametrize("text", FORMS["no_refs"])
def test_an_invalid_reference_is_an_error_with_the_valid_forms(text: str) -> None:
    with pytest.raises(RecipeError, match="kaggle:OWNER/DATASET"):
        parse_ref(text)


def test_only_names_and_pages_of_kaggle_are_references() -> None:
    assert not any(map(is_ref, ("pets.zip", "/data/kaggle", "https://example.com/x.zip", "//[")))


def test_every_reference_has_its_own_folder_in_the_cache() -> None:
    refs = {parse_ref(text) for text in ("a", "a/a", "a/a/1", "a/a/2", "b/a", "a-a")}
    assert len({ref.cache_path for ref in refs}) == len(refs)


# Downloading.


@pytest.mark.usefixtures("real_client")
def test_a_competition_is_downloaded_checked_and_reused_without_a_request(
    world: World, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither settings of the client nor a script of its name in this folder change that."""
    monkeypatch.setenv("KAGGLE_PATH", str(world.home / "elsewhere"))
    monkeypatch.setenv("KAGGLE_COMPETITION", "titanic")
    write(tmp_path / "kaggle.py", b"raise SystemExit('not me')")
    monkeypatch.chdir(tmp_path)
    archive = fetch(world)
    assert archive == world.cache / "kaggle/competitions/pets/pets.zip"
    assert archive.read_bytes() == ZIP
    assert [what for what, _ in world.told.phases] == ["downloading", "checking"]
    assert ("downloading", len(ZIP)) in world.told.phases
    assert not incoming().exists()
    num_requests = len(world.server.requests)
    assert fetch(world) == cached_archive(PETS) == archive
    assert len(world.server.requests) == num_requests
    assert capfd.readouterr() == ("", "")
    assert "kaggle" not in sys.modules
    assert not list(world.home.iterdir())


@pytest.mark.thorough
def test_a_dataset_is_kept_by_version(world: World) -> None:
    world.server.archives["zoe/birds/3"] = Archive(zip_bytes({"old.jpg": b"3"}))
    old = fetch(world, parse_ref("zoe/birds/3"))
    assert old.read_bytes() == world.server.archives["zoe/birds/3"].data
    new = fetch(world, BIRDS)
    assert (new.read_bytes(), new.name) == (ZIP, "birds.zip")
    assert world.server.requests[0].body["datasetVersionNumber"] == 3


@pytest.mark.usefixtures("real_client")
def test_a_public_dataset_needs_no_account_and_other_archives_a_file_or_token(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_key(monkeypatch)
    assert fetch(world, BIRDS).read_bytes() == ZIP
    assert not [one for one in world.server.requests if "Authorization" in one.headers]
    give(world, ".kaggle/kaggle.json", PAIR)
    assert fetch(world).read_bytes() == ZIP
    monkeypatch.setenv("KAGGLE_API_TOKEN", "KGAT_0123456789")
    world.server.accepts = ("Bearer KGAT_0123456789",)
    assert fetch(world, refresh=True).read_bytes() == ZIP


def test_refresh_keeps_the_old_archive_until_the_new_one_is_complete(world: World) -> None:
    archive = fetch(world)
    newer = zip_bytes({"new.jpg": b"new"})
    world.server.archives["pets"] = Archive(newer, etag='"two"')
    world.server.answers = [Answer(403)]
    with pytest.raises(SourceError):
        fetch(world, refresh=True)
    assert archive == cached_archive(PETS)
    assert archive.read_bytes() == ZIP
    assert fetch(world, refresh=True) == archive
    assert archive.read_bytes() == newer
    archive.write_bytes(newer[:-1])
    assert cached_archive(PETS) is None
    assert fetch(world).read_bytes() == newer


def test_an_archive_is_downloaded_or_copied_into_a_folder_of_the_user(
    world: World, tmp_path: Path
) -> None:
    there = tmp_path / "my data"
    archive = download(PETS, to=there, watcher=world.told)
    assert archive == there / "pets.zip"
    assert archive.read_bytes() == ZIP
    assert not world.cache.exists()
    num_requests = len(world.server.requests)
    assert download(PETS, to=there, watcher=world.told) == archive
    assert len(world.server.requests) == num_requests
    fetch(world)
    num_requests = len(world.server.requests)
    archive = download(PETS, to=tmp_path / "here", watcher=world.told)
    assert archive.read_bytes() == ZIP
    assert len(world.server.requests) == num_requests
    assert world.told.phases[-1] == ("copying", len(ZIP))


def test_a_file_of_the_user_is_replaced_only_by_a_refresh(world: World, tmp_path: Path) -> None:
    mine = write(tmp_path / "pets.zip", b"mine")
    with pytest.raises(SourceError, match=r"exists already.*--refresh"):
        download(PETS, to=tmp_path, watcher=world.told)
    assert mine.read_bytes() == b"mine"
    download(PETS, to=tmp_path, watcher=world.told, refresh=True)
    assert mine.read_bytes() == ZIP
    with pytest.raises(SourceError, match=r"Not a directory\); choose another .*download: --to\)"):
        download(PETS, to=mine / "x", watcher=world.told)


# Credentials.


def give(world: World, name: str, content: str) -> Path:
    return write(world.home / name, content.encode())


def without_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAGGLE_USERNAME")
    monkeypatch.delenv("KAGGLE_KEY")


def test_missing_credentials_are_an_error_that_lists_every_way_to_set_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_key(monkeypatch)
    line = failure(world)
    for way in (
        "https://www.kaggle.com/settings", "KAGGLE_API_TOKEN", "~/.kaggle/access_token",
        "KAGGLE_USERNAME and KAGGLE_KEY", "kaggle.json", "~/.config/kaggle", "KAGGLE_CONFIG_DIR",
        "kaggle auth login",
    ):  # fmt: skip
        assert way in line
    assert not world.server.requests
    assert not world.cache.exists()
    world.server.answers = [Answer(403)]  # a dataset that is not public
    assert "no Kaggle credentials" in failure(world, BIRDS)


PAIR = json.dumps({"username": "u", "key": "k" * 32})


@pytest.mark.parametrize("way", FORMS["ways"])
def test_every_way_to_give_credentials_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    without_key(monkeypatch)
    for name, value in FORMS["ways"][way].get("variables", {}).items():
        monkeypatch.setenv(name, value.replace("~", str(world.home)))
    for name, content in FORMS["ways"][way].get("files", {}).items():
        give(world, name, content)
    assert [one.source for one in credentials()] == [way]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"username": "u"}', "\xff"])
def test_a_file_without_credentials_is_ignored(
    world: World, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    without_key(monkeypatch)
    write(world.home / ".kaggle/kaggle.json", content.encode("latin-1"))
    give(world, ".kaggle/access_token", " \n")
    assert not credentials()


def test_an_error_names_the_source_of_a_rejected_key(world: World) -> None:
    world.server.accepts = ("Bearer ",)
    line = failure(world, retries=HASTY)
    assert "does not accept the credentials of KAGGLE_USERNAME and KAGGLE_KEY (401)" in line
    assert "https://www.kaggle.com/settings" in line
    assert world.server.count("DownloadDataFiles") == 1


@pytest.mark.usefixtures("real_client")
def test_a_stale_token_is_named_with_the_credentials_that_it_hides(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_key(monkeypatch)
    give(world, ".kaggle/access_token", "KGAT_stale_0123456789")
    world.server.accepts = ("Basic ",)
    world.server.token_answers = [False, False, Answer(404), Answer(404)]
    assert "does not accept the credentials of ~/.kaggle/access_token" in failure(world)
    give(world, ".kaggle/kaggle.json", PAIR)
    line = failure(world)
    assert "credentials of ~/.kaggle/access_token (401)" in line
    assert "which have priority over those of ~/.kaggle/kaggle.json" in line
    assert "remove ~/.kaggle/access_token" in line


def test_no_secret_is_printed_logged_or_stored(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("KAGGLE_API_TOKEN", "KGAT_0123456789")
    world.server.answers = [
        Answer(403, f"key {KEY} and KGAT_0123456789\n are wrong \x1b[31m"),
        Answer(500, KEY),
    ]
    lines = [failure(world), failure(world)]
    assert "key *** and *** are wrong" in lines[0]
    world.server.bodies = [Body(status=403)]
    lines.append(failure(world))
    world.server.bodies = [Body(cut=HALF)]
    lines.append(failure(world))
    fetch(world)
    said = "\n".join([*lines, *world.told.lines, *capfd.readouterr()])
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in (KEY, "KGAT_", "Signature", "\x1b"):
        assert secret not in said
        assert secret.encode() not in kept.replace(ZIP, b"")


# What Kaggle answers.


@pytest.mark.parametrize("case", FORMS["refusals"], ids=lambda case: case["parts"][0])
def test_a_refusal_is_one_line_with_the_next_step_and_is_not_repeated(
    world: World, case: dict[str, Any]
) -> None:
    world.server.answers = [Answer(case["status"], case["message"])] * 2
    line = failure(world, parse_ref(case["ref"]), HASTY)
    assert all(part in line for part in case["parts"]), line
    assert len(world.server.answers) == 1
    assert not [line for line in world.told.lines if "trying again" in line]


def test_a_temporary_failure_is_retried_and_a_lasting_one_is_an_error(world: World) -> None:
    for status, said in ((429, "limits the number"), (500, "internal error")):
        world.server.answers = [Answer(status)] * 2
        line = failure(world, retries=RetryLimits(attempts=2, backoff_s=0.01))
        assert f"{status}" in line
        assert said in line
        assert "run the same command again" in line
        assert not world.server.answers
    world.server.answers = [Answer(503), Answer(429, retry_after="0")]
    assert fetch(world).read_bytes() == ZIP
    assert [line for line in world.told.lines if "503" in line and "trying again in" in line]


def test_retry_after_is_obeyed_unless_it_is_too_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("shardprep.source.kaggle.client_error.time.sleep", pauses.append)
    world.server.answers = [Answer(429, retry_after="7"), Answer(429, retry_after="3600")]
    assert "wait 3,600 s" in failure(world, retries=HASTY)
    assert pauses == [7]
    assert any("trying again in 7 s" in line for line in world.told.lines)


def test_no_network_is_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("http_proxy", f"http://secret:word@127.0.0.1:{port}")
    line = failure(world, retries=RetryLimits(attempts=2, backoff_s=0.01))
    assert "no connection to Kaggle (Connection refused)" in line
    assert "HTTPS_PROXY" in line
    assert "secret" not in line
    assert sum("trying again" in told for told in world.told.lines) == 1


@pytest.mark.parametrize("account", [{}, {"KAGGLE_API_TOKEN": "KGAT_0123456789"}])
@pytest.mark.parametrize("ref", [PETS, BIRDS])
def test_an_unresolved_name_is_not_retried(
    world: World, monkeypatch: pytest.MonkeyPatch, account: dict[str, str], ref: KaggleRef
) -> None:
    for name, value in {**account, "http_proxy": "http://a:b@kaggle.invalid:1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("https_proxy", os.environ["http_proxy"])
    line = failure(world, ref, retries=RetryLimits(attempts=5, backoff_s=100))
    assert "its name cannot be resolved" in line
    assert "turn the internet on or add the data as an input" in line
    assert not any("trying again" in told for told in world.told.lines)
    assert not world.server.requests


def test_an_unresolved_name_is_retried_after_an_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [ClientError("connection", in_body=True), ClientError("unresolved", "no name")]

    def receive(ref: KaggleRef, folder: Path, *_: object, **__: object) -> None:
        del ref
        with (folder / "pets.zip").open("ab") as file:
            file.write(ZIP[: len(ZIP) // 2] if len(faults) == 2 else b"")
        if faults:
            raise faults.pop(0)
        (folder / "pets.zip").write_bytes(ZIP)

    monkeypatch.setattr("shardprep.source.kaggle.download.receive", receive)
    assert fetch(world).read_bytes() == ZIP
    assert sum("trying again" in told for told in world.told.lines) == 2


@pytest.mark.usefixtures("real_client")
def test_an_error_says_how_to_install_a_missing_client(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "broken/six.py", b"raise ModuleNotFoundError(\"No module named 'six'\")")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    line = failure(world, retries=HASTY)
    assert "cannot be loaded (No module named 'six')" in line
    assert "pip install 'kaggle>=2.2.4,<3' six" in line


def test_an_archive_that_does_not_fit_the_disk_is_an_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil._ntuple_diskusage(10**12, 0, len(ZIP) + (1 << 20) - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    world.server.bodies = [Body(hang=0)]
    line = failure(world)
    assert "does not fit" in line
    assert "SHARDPREP_CACHE" in line


# Transfers that break.


HALF_RANGE = ["bytes=196608-"]
BROKEN: dict[str, tuple[list[Body | None], list[str]]] = {
    "cut": ([Body(cut=HALF)], HALF_RANGE),
    "expired address, whose error the client writes over the partial file": (
        [Body(cut=HALF), None, Body(status=403)],
        HALF_RANGE,
    ),
    "no ranges": ([Body(cut=HALF), None, Body(ignores_range=True)], HALF_RANGE),
    "no length": ([Body(tells_length=False)], []),
    "no length, cut": ([Body(tells_length=False, cut=HALF)], []),
}
"""Fault of transfers → bodies, and the ranges that the client requests."""


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_transfer_is_continued_or_repeated(world: World, fault: str) -> None:
    world.server.bodies, ranges = [*BROKEN[fault][0]], BROKEN[fault][1]
    assert fetch(world).read_bytes() == ZIP
    assert world.server.ranges() == ranges
    addresses = [one.body["query"] for one in world.server.requests if one.what == "GET"]
    if ranges:
        assert len(set(addresses)) >= 2  # a new address for each attempt
        assert any("trying again" in line for line in world.told.lines)
        assert 196608 in world.told.done
    elif "cut" in fault:  # the client takes the cut for the end
        assert any("arrived damaged" in line for line in world.told.lines)
    else:
        assert ("downloading", None) in world.told.phases


@pytest.mark.thorough
def test_an_attempt_that_brought_bytes_is_not_counted_as_a_failure(world: World) -> None:
    world.server.bodies = [Body(cut=70_000), None] * 3
    assert fetch(world, retries=RetryLimits(attempts=2, backoff_s=0.01)).read_bytes() == ZIP
    assert len(world.server.ranges()) == 3


def test_the_next_run_continues_unless_the_archive_has_changed(world: World) -> None:
    world.server.bodies = [Body(cut=HALF)]
    line = failure(world)
    assert "run the same command again later: it continues where it stopped" in line
    world.server.answers = [Answer(500), Answer(403)]
    failure(world)
    failure(world)
    assert fetch(world).read_bytes() == ZIP
    assert world.server.ranges() == HALF_RANGE
    world.server.bodies = [Body(cut=HALF)]
    with pytest.raises(SourceError):
        fetch(world, retries=ONCE, refresh=True)
    changed = zip_bytes({"new.jpg": NOISE[::-1]}, method=zipfile.ZIP_STORED)
    world.server.archives["pets"] = Archive(changed, etag='"two"')
    assert fetch(world, refresh=True).read_bytes() == changed


LEFT: dict[str, tuple[bytes, bytes | None, str]] = {
    "overwritten by an error": (
        b"<Error/>",
        json.dumps({"validator": '"one"', "size": len(ZIP)}).encode(),
        "downloading it again",
    ),
    "wrong bytes inside": (flipped(ZIP, HALF), None, "'train/dog.0.jpg'"),
    "complete": (ZIP, b"{}", ""),
}
"""Partial file of an earlier run → its bytes, the client's note, and a line about damage."""


@pytest.mark.parametrize("left", LEFT)
def test_a_partial_file_of_an_earlier_run_is_checked(world: World, left: str) -> None:
    data, note, line = LEFT[left]
    path = write(incoming() / "pets.zip", data)
    os.utime(path, (LAST_MODIFIED + 9e7, LAST_MODIFIED + 9e7))
    if note is not None:
        write(incoming() / "pets.zip.kaggle-partial", note)
    assert fetch(world).read_bytes() == ZIP
    assert any(line in told for told in world.told.lines)
    if not line:
        assert [what for what, _ in world.told.phases] == ["checking"]
        assert world.server.count("GET") == 1


@pytest.mark.thorough
def test_an_archive_that_is_damaged_twice_is_an_error_with_the_member(world: World) -> None:
    world.server.archives["pets"] = Archive(flipped(ZIP, HALF))
    line = failure(world)
    assert "arrived damaged twice (member 'train/dog.0.jpg': Bad CRC-32" in line
    assert "download the archive" in line
    assert world.server.count("GET") == 2


def test_a_web_page_instead_of_an_archive_is_an_error(world: World) -> None:
    page = b"\n<!DOCTYPE html><html>Please log in</html>"
    world.server.archives["pets"] = Archive(page, content_type="text/html")
    line = failure(world, retries=HASTY)
    assert "a web page instead of an archive" in line
    assert "https://www.kaggle.com/competitions/pets" in line
    assert world.server.count("GET") == 1
    assert not list(incoming().iterdir())


@pytest.mark.parametrize("hang", [pytest.param(-1, marks=pytest.mark.thorough), HALF])
def test_a_silent_transfer_is_an_error(world: World, hang: int) -> None:
    world.server.bodies = [Body(hang=hang)]
    line = failure(world, retries=RetryLimits(silence_s=1, attempts=1))
    assert "no byte for 1 s" in line
    fetch(world)
    assert world.server.ranges() == (["bytes=196608-"] if hang > 0 else [])


# Two processes, and a dead one.

PROGRAM = """
import sys
from shardprep.source.kaggle.download import download
from shardprep.source.kaggle.ref import parse_ref
from shardprep.source.kaggle.client_error import RetryLimits
class Say:
    done = 0
    def notice(self, line): print(line, flush=True)
    def start(self, what, total=None, unit="", num_done=0):
        self.done = num_done
        print(what, num_done, flush=True)
    def advance(self, number, num_rejected=0):
        self.done += number
        print(self.done, flush=True)
    def finish(self): pass
hasty = RetryLimits(backoff_s=0.01)
print("at", download(parse_ref("pets"), watcher=Say(), retries=hasty), flush=True)
"""


def start_process() -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)


def read_until(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    pytest.fail(f"{words!r} was never said")


def test_a_second_process_waits_and_uses_the_archive_of_the_first(world: World) -> None:
    world.server.bodies = [Body(hang=HALF), None]
    with start_process() as first, ThreadPoolExecutor(1) as pool:
        read_until(first, "196608")
        second = pool.submit(fetch, world)
        wait_until(lambda: world.told.lines)
        world.server.gate.set()
        assert second.result(60).read_bytes() == ZIP
    assert "another process is downloading kaggle:pets: waiting for it" in world.told.lines
    assert world.server.count("DownloadDataFiles") == 2


@pytest.mark.thorough
def test_a_second_refresh_uses_the_archive_of_the_first(world: World) -> None:
    fetch(world)
    world.server.bodies = [Body(hang=HALF), None]
    watchers = Quiet(), Quiet()
    with ThreadPoolExecutor(2) as pool:
        runs = []
        for watcher in watchers:
            runs.append(pool.submit(download, PETS, refresh=True, watcher=watcher, retries=HASTY))
            wait_until(lambda: 196608 in watchers[0].done)
        wait_until(lambda: watchers[1].lines)
        world.server.gate.set()
        assert runs[0].result(60) == runs[1].result(60)
    assert watchers[1].phases == []


def test_a_killed_run_leaves_no_client_and_can_be_continued(world: World) -> None:
    world.server.bodies = [Body(hang=HALF)]
    with start_process() as killed:
        read_until(killed, "196608")
        killed.send_signal(signal.SIGKILL)
    assert fetch(world).read_bytes() == ZIP
    assert world.server.ranges() == ["bytes=196608-"]


@pytest.mark.thorough
def test_a_watcher_that_raises_ends_the_client(world: World) -> None:
    class StoppedError(BaseException):
        pass

    class Stopping(Quiet):
        def start(self, what: str, *_: object) -> None:
            raise StoppedError(what)

    world.server.bodies = [Body(hang=0)]
    with pytest.raises(StoppedError):
        download(PETS, watcher=Stopping())
    assert fetch(world).read_bytes() == ZIP


# Checks of an archive.


ONE = {"a.jpg": NOISE[:5000]}
WHOLE = {
    "zip": zip_bytes(MEMBERS),
    "empty zip": zip_bytes({}),
    "bzip2": zip_bytes(ONE, method=zipfile.ZIP_BZIP2),
    "lzma": zip_bytes(ONE, method=zipfile.ZIP_LZMA),
    "tar": tar_bytes(ONE),
    "tar.gz": tar_bytes(ONE, "gz"),
    "tar.bz2": tar_bytes(ONE, "bz2"),
    "tar.xz": tar_bytes(ONE, "xz"),
    "7z": b"7z\xbc\xaf\x27\x1c" + bytes(40),
}
DAMAGED = {
    "nothing": b"",
    "an error": b"<Error/>",
    "a cut zip": WHOLE["zip"][:-100],
    "a zip after an error": b"<Error/>" + WHOLE["zip"][8:],
    "a deflated member": flipped(WHOLE["zip"], 90_000),
    "a stored member": flipped(ZIP, 90_000),
    "a bzip2 member": flipped(WHOLE["bzip2"], 2500),
    "an lzma member": flipped(WHOLE["lzma"], 2500),
    "a cut tar": WHOLE["tar"][:3000],
    "a cut tar.gz": WHOLE["tar.gz"][:-20],
    "a flipped tar.gz": flipped(WHOLE["tar.gz"], 2500),
    "a cut tar.bz2": WHOLE["tar.bz2"][:-20],
    "a flipped tar.bz2": flipped(WHOLE["tar.bz2"], 2500),
    "a cut tar.xz": WHOLE["tar.xz"][:-20],
    "a flipped tar.xz": flipped(WHOLE["tar.xz"], 2500),
}


def test_an_archive_is_damaged_if_a_checksum_is_wrong(tmp_path: Path) -> None:
    for case, data in WHOLE.items():
        assert damage(write(tmp_path / "x", data), Quiet()) == "", case
    for case, data in DAMAGED.items():
        assert damage(write(tmp_path / "x", data), Quiet()), case


def test_the_number_of_unchecked_members_is_reported(tmp_path: Path) -> None:
    data = bytearray(zip_bytes(ONE))
    for header, offset in ((b"PK\3\4", 8), (b"PK\1\2", 10)):
        data[data.index(header) + offset] = 9  # Deflate64
    told = Quiet()
    assert damage(write(tmp_path / "x", bytes(data)), told) == ""
    assert told.lines[0].startswith("members not checked (encrypted, ")


# Progress.


def shown(
    monkeypatch: pytest.MonkeyPatch,
    size: int | None,
    *,
    terminal: bool = False,
    every_s: float = 0.0,
) -> str:
    monkeypatch.setattr(display, "_LINE_EVERY_S", every_s)
    out = io.StringIO()
    with display.Bar(Console(file=out, force_terminal=terminal, width=90)) as bar:
        progress = Watch(bar)
        progress.notice("downloading [kaggle:pets]")
        progress.start("downloading", size, "bytes", 5_000_000)
        for num_bytes in (5_000_000, -10_000_000, 15_000_000):
            progress.advance(num_bytes)
        progress.start("checking", 20_000_000, "bytes")
        progress.advance(20_000_000)
    return out.getvalue()


def test_progress_is_shown_in_lines_or_on_a_terminal_as_a_bar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert shown(monkeypatch, 20_000_000, every_s=60).splitlines() == ["downloading [kaggle:pets]"]
    lines = shown(monkeypatch, 20_000_000).splitlines()
    assert lines[0] == "downloading [kaggle:pets]"
    assert lines[2].startswith("downloading: 10 of 20 MB, ")
    assert lines[2].endswith(" s left")
    assert lines[-1].startswith("checking: 20 of 20 MB")
    assert "downloading: 15 MB, " in shown(monkeypatch, None)
    text = shown(monkeypatch, 20_000_000, terminal=True)
    assert "20.0/20.0 MB" in text
    assert "s left" not in text
