"""Downloads by the unmodified kaggle client from a server on loopback, with everything failing."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.console import Console

from shardprep.api import display
from shardprep.api.progress import Watch
from shardprep.errors import RecipeError, SourceError
from shardprep.source.kaggle import client_process
from shardprep.source.kaggle.archive_check import damage
from shardprep.source.kaggle.client_error import ClientError, RetryLimits
from shardprep.source.kaggle.credentials import credentials
from shardprep.source.kaggle.download import cache_folder, cached_archive, download
from shardprep.source.kaggle.ref import KaggleRef, is_ref, parse_ref
from tests.source.kaggle_clients import at_kaggle
from tests.source.kaggle_server import (
    KEY,
    LAST_MODIFIED,
    RULES,
    Answer,
    Archive,
    Body,
    KaggleServer,
)
from tests.support.builders import Quiet, tar_bytes, write, zip_bytes

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


# What a ref is.

REFS = {
    "kaggle:dogs-vs-cats": KaggleRef("competition", "", "dogs-vs-cats"),
    "dogs-vs-cats": KaggleRef("competition", "", "dogs-vs-cats"),
    "kaggle:zoe/birds": KaggleRef("dataset", "zoe", "birds"),
    "zoe/birds/3": KaggleRef("dataset", "zoe", "birds", 3),
    "kaggle:zoe/birds/versions/3": KaggleRef("dataset", "zoe", "birds", 3),
    "kaggle:competitions/pets": KaggleRef("competition", "", "pets"),
    "kaggle:datasets/zoe/birds": KaggleRef("dataset", "zoe", "birds"),
    "https://www.kaggle.com/c/pets": KaggleRef("competition", "", "pets"),
    "https://www.kaggle.com/competitions/pets/data?select=a": KaggleRef("competition", "", "pets"),
    "https://kaggle.com/datasets/zoe/birds/": KaggleRef("dataset", "zoe", "birds"),
    "https://www.kaggle.com/datasets/zoe/birds/versions/2": KaggleRef("dataset", "zoe", "birds", 2),
}
NO_REFS = (
    "kaggle:", "", "kaggle:a b", "kaggle:../x", "kaggle:zoe/birds/new", "kaggle:zoe/birds/0",
    "kaggle:a/b/3/4", "kaggle:zoe/..", "https://example.com/c/pets", "https://www.kaggle.com/",
    "https://www.kaggle.com/code/zoe/birds", "kaggle:pets\n", "kaggle:zoe/birds/²", "https://[",
)  # fmt: skip


@pytest.mark.parametrize("text", REFS)
def test_a_ref_is_read_from_what_people_write_and_paste(text: str) -> None:
    assert parse_ref(text) == REFS[text]
    assert parse_ref(str(REFS[text])) == REFS[text]


@pytest.mark.parametrize("text", NO_REFS)
def test_what_is_no_ref_shows_how_to_write_one(text: str) -> None:
    with pytest.raises(RecipeError, match="kaggle:OWNER/DATASET"):
        parse_ref(text)


def test_only_kaggle_s_own_names_and_pages_are_refs() -> None:
    assert all(map(is_ref, ("kaggle:pets", "https://www.kaggle.com/c/pets")))
    assert not any(map(is_ref, ("pets.zip", "/data/kaggle", "https://example.com/x.zip", "//[")))


def test_every_ref_has_a_place_of_its_own_in_the_cache() -> None:
    refs = {parse_ref(text) for text in ("a", "a/a", "a/a/1", "a/a/2", "b/a", "a-a")}
    assert len({ref.cache_path for ref in refs}) == len(refs)


# Downloading.


@pytest.mark.usefixtures("real_client")
def test_a_competition_is_downloaded_checked_and_used_again_without_a_request(
    world: World, capfd: pytest.CaptureFixture[str]
) -> None:
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
def test_a_public_dataset_needs_no_account(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAGGLE_KEY")
    assert fetch(world, BIRDS).read_bytes() == ZIP
    assert not [one for one in world.server.requests if "Authorization" in one.headers]


@pytest.mark.usefixtures("real_client")
def test_no_setting_of_the_client_moves_the_download(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAGGLE_PATH", str(world.home / "elsewhere"))
    monkeypatch.setenv("KAGGLE_COMPETITION", "titanic")
    fetch(world)
    assert not (world.home / "elsewhere").exists()


@pytest.mark.usefixtures("real_client")
def test_a_script_named_kaggle_in_this_folder_is_not_run(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "kaggle.py", b"raise SystemExit('not me')")
    monkeypatch.chdir(tmp_path)
    fetch(world)


@pytest.mark.thorough
def test_a_changed_archive_in_the_cache_is_downloaded_again(world: World) -> None:
    archive = fetch(world)
    archive.write_bytes(ZIP[:-1])
    assert cached_archive(PETS) is None
    assert fetch(world).read_bytes() == ZIP


def test_refresh_downloads_again_and_keeps_the_old_one_until_it_has(world: World) -> None:
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


def test_a_folder_of_the_user_s_keeps_the_archive(world: World, tmp_path: Path) -> None:
    there = tmp_path / "my data"
    archive = download(PETS, to=there, watcher=world.told)
    assert archive == there / "pets.zip"
    assert archive.read_bytes() == ZIP
    assert not world.cache.exists()
    num_requests = len(world.server.requests)
    assert download(PETS, to=there, watcher=world.told) == archive
    assert len(world.server.requests) == num_requests


def test_a_folder_of_the_user_s_is_served_from_the_cache(world: World, tmp_path: Path) -> None:
    fetch(world)
    num_requests = len(world.server.requests)
    archive = download(PETS, to=tmp_path / "here", watcher=world.told)
    assert archive.read_bytes() == ZIP
    assert len(world.server.requests) == num_requests
    assert world.told.phases[-1] == ("copying", len(ZIP))


def test_a_file_of_the_user_s_is_never_replaced_unasked(world: World, tmp_path: Path) -> None:
    mine = write(tmp_path / "pets.zip", b"mine")
    with pytest.raises(SourceError, match=r"exists already.*--refresh"):
        download(PETS, to=tmp_path, watcher=world.told)
    assert mine.read_bytes() == b"mine"
    download(PETS, to=tmp_path, watcher=world.told, refresh=True)
    assert mine.read_bytes() == ZIP


def test_a_folder_that_cannot_be_made_is_one_line(world: World, tmp_path: Path) -> None:
    write(tmp_path / "file", b"")
    with pytest.raises(SourceError, match="Not a directory; choose another --to"):
        download(PETS, to=tmp_path / "file" / "x", watcher=world.told)


# Credentials.


def give(world: World, name: str, content: str) -> Path:
    return write(world.home / name, content.encode())


def without_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAGGLE_USERNAME")
    monkeypatch.delenv("KAGGLE_KEY")


def test_no_credentials_list_every_way_to_give_them(
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


def test_a_dataset_that_is_not_public_asks_for_credentials(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_key(monkeypatch)
    world.server.answers = [Answer(403)]
    assert "no Kaggle credentials" in failure(world, BIRDS)


PAIR = json.dumps({"username": "u", "key": "k" * 32})
WAYS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "KAGGLE_API_TOKEN": ({"KAGGLE_API_TOKEN": "t" * 20}, {}),
    "~/.kaggle/access_token": ({}, {".kaggle/access_token": "t" * 20}),
    "~/.kaggle/access_token.txt": ({}, {".kaggle/access_token.txt": "t" * 20}),
    "KAGGLE_USERNAME and KAGGLE_KEY": ({"KAGGLE_USERNAME": "u", "KAGGLE_KEY": "k" * 32}, {}),
    "~/.kaggle/kaggle.json": ({}, {".kaggle/kaggle.json": PAIR}),
    "~/.config/kaggle/kaggle.json": ({}, {".config/kaggle/kaggle.json": PAIR}),
    "~/mine/kaggle.json": ({"KAGGLE_CONFIG_DIR": "~/mine"}, {"mine/kaggle.json": PAIR}),
    "~/.kaggle/credentials.json": ({}, {".kaggle/credentials.json": '{"refresh_token": "r"}'}),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_give_credentials_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    without_key(monkeypatch)
    variables, files = WAYS[way]
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("~", str(world.home)))
    for name, content in files.items():
        give(world, name, content)
    assert [one.source for one in credentials()] == [way]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"username": "u"}', "\xff"])
def test_a_file_without_credentials_is_none(
    world: World, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    without_key(monkeypatch)
    write(world.home / ".kaggle/kaggle.json", content.encode("latin-1"))
    give(world, ".kaggle/access_token", " \n")
    assert not credentials()


@pytest.mark.usefixtures("real_client")
def test_a_kaggle_json_or_a_token_is_enough(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    without_key(monkeypatch)
    give(world, ".kaggle/kaggle.json", PAIR)
    assert fetch(world).read_bytes() == ZIP
    monkeypatch.setenv("KAGGLE_API_TOKEN", "KGAT_0123456789")
    world.server.accepts = ("Bearer KGAT_0123456789",)
    assert fetch(world, refresh=True).read_bytes() == ZIP


def test_a_key_that_is_not_accepted_is_named_by_its_place(world: World) -> None:
    world.server.accepts = ("Bearer ",)
    line = failure(world, retries=HASTY)
    assert "does not accept the credentials of KAGGLE_USERNAME and KAGGLE_KEY (401)" in line
    assert "https://www.kaggle.com/settings" in line
    assert world.server.count("DownloadDataFiles") == 1


@pytest.mark.parametrize(
    "status", [200, *(pytest.param(status, marks=pytest.mark.thorough) for status in (404, 401))]
)
@pytest.mark.usefixtures("real_client")
def test_a_stale_token_that_hides_a_good_key_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    without_key(monkeypatch)
    give(world, ".kaggle/access_token", "KGAT_stale_0123456789")
    give(world, ".kaggle/kaggle.json", PAIR)
    world.server.token_answers = [Answer(status) if status != 200 else False] * 2
    world.server.accepts = ("Basic ",)
    line = failure(world)
    assert "credentials of ~/.kaggle/access_token (401)" in line
    assert "which have priority over those of ~/.kaggle/kaggle.json" in line
    assert "remove ~/.kaggle/access_token" in line


@pytest.mark.usefixtures("real_client")
def test_a_stale_token_alone_is_not_called_missing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_key(monkeypatch)
    monkeypatch.setenv("KAGGLE_API_TOKEN", "KGAT_stale_0123456789")
    world.server.token_answers = [False, False]
    assert "does not accept the credentials of KAGGLE_API_TOKEN" in failure(world)


@pytest.mark.usefixtures("real_client")
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

REFUSALS: dict[str, tuple[KaggleRef, Answer, tuple[str, ...]]] = {
    "rules": (
        PETS,
        Answer(403, RULES),
        ("rules", "https://www.kaggle.com/competitions/pets/rules"),
    ),
    "other 403": (PETS, Answer(403, "Denied by us"), ("403: Denied by us", "competitions/pets")),
    "private": (BIRDS, Answer(403, "Denied"), ("403", "https://www.kaggle.com/datasets/zoe/birds")),
    "no competition": (PETS, Answer(404), ("no such competition (404)", "kaggle:OWNER/NAME")),
    "no dataset": (BIRDS, Answer(404), ("no such dataset (404)", "private")),
    "bad request": (PETS, Answer(400, "What?"), ("400: What?", "competitions/pets")),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_is_one_line_with_the_next_step_and_is_not_repeated(
    world: World, case: str
) -> None:
    ref, answer, parts = REFUSALS[case]
    world.server.answers = [answer] * 2
    line = failure(world, ref, HASTY)
    assert all(part in line for part in parts), line
    assert len(world.server.answers) == 1
    assert not [line for line in world.told.lines if "trying again" in line]


def test_a_trouble_that_passes_is_waited_for(world: World) -> None:
    world.server.answers = [Answer(503), Answer(429, retry_after="0")]
    assert fetch(world).read_bytes() == ZIP
    assert [line for line in world.told.lines if "503" in line and "trying again in" in line]


@pytest.mark.parametrize(("status", "said"), [(429, "limits the number"), (500, "internal error")])
def test_a_trouble_that_stays_is_an_error(world: World, status: int, said: str) -> None:
    world.server.answers = [Answer(status)] * 9
    line = failure(world, retries=RetryLimits(attempts=2, backoff_s=0.01))
    assert f"{status}" in line
    assert said in line
    assert "run the same command again" in line
    assert len(world.server.answers) == 7


def test_retry_after_is_obeyed_unless_it_is_too_long(world: World) -> None:
    world.server.answers = [Answer(429, retry_after="1"), Answer(429, retry_after="3600")]
    start = time.monotonic()
    assert "wait 3,600 s" in failure(world, retries=HASTY)
    assert time.monotonic() - start > 1
    assert any("trying again in 1 s" in line for line in world.told.lines)


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
def test_a_name_that_does_not_resolve_ends_the_first_attempt(
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


def test_a_name_that_was_resolved_before_is_asked_for_again(
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
def test_a_client_that_cannot_be_loaded_says_what_to_install(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "broken/six.py", b"raise ModuleNotFoundError(\"No module named 'six'\")")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    line = failure(world, retries=HASTY)
    assert "cannot be loaded (No module named 'six')" in line
    assert "pip install 'kaggle>=2.2.4,<3' six" in line


def test_a_disk_that_is_too_small_is_said_before_it_is_full(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil._ntuple_diskusage(10**12, 0, len(ZIP) + (1 << 20) - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    world.server.bodies = [Body(hang=0)]
    line = failure(world)
    assert "does not fit" in line
    assert "SHARDPREP_CACHE" in line


# Transfers that break.


def test_a_cut_body_goes_on_where_it_stopped(world: World) -> None:
    world.server.bodies = [Body(cut=HALF)]
    assert fetch(world).read_bytes() == ZIP
    assert world.server.ranges() == ["bytes=196608-"]
    assert any("trying again" in line for line in world.told.lines)
    assert 196608 in world.told.done


@pytest.mark.thorough
def test_each_cut_that_brought_something_is_forgiven(world: World) -> None:
    world.server.bodies = [Body(cut=70_000), None] * 3
    assert fetch(world, retries=RetryLimits(attempts=2, backoff_s=0.01)).read_bytes() == ZIP
    assert len(world.server.ranges()) == 3


def test_the_next_run_goes_on_where_the_last_one_stopped(world: World) -> None:
    world.server.bodies = [Body(cut=HALF)]
    line = failure(world)
    assert "run the same command again later: it continues where it stopped" in line
    world.server.answers = [Answer(500), Answer(403)]
    failure(world)
    failure(world)
    assert fetch(world).read_bytes() == ZIP
    assert world.server.ranges() == ["bytes=196608-"]


@pytest.mark.thorough
def test_an_archive_that_has_changed_meanwhile_is_not_mixed(world: World) -> None:
    world.server.bodies = [Body(cut=HALF)]
    failure(world)
    changed = zip_bytes({"new.jpg": NOISE[::-1]}, method=zipfile.ZIP_STORED)
    world.server.archives["pets"] = Archive(changed, etag='"two"')
    assert fetch(world).read_bytes() == changed


@pytest.mark.thorough
def test_a_server_that_knows_no_ranges_starts_over(world: World) -> None:
    world.server.bodies = [Body(cut=HALF), None, Body(ignores_range=True)]
    assert fetch(world).read_bytes() == ZIP


def test_a_length_that_is_not_told_is_no_hindrance(world: World) -> None:
    world.server.bodies = [Body(tells_length=False)]
    assert fetch(world).read_bytes() == ZIP
    assert ("downloading", None) in world.told.phases


def test_a_cut_that_the_client_takes_for_the_end_is_found(world: World) -> None:
    world.server.bodies = [Body(tells_length=False, cut=HALF)]
    assert fetch(world).read_bytes() == ZIP
    assert any("arrived damaged" in line for line in world.told.lines)


@pytest.mark.thorough
def test_an_expired_address_does_not_spoil_the_file(world: World) -> None:
    """Kaggle 2.2.4 writes the error over the partial file; that is not gone on with."""
    world.server.bodies = [Body(cut=HALF), None, Body(status=403), Body(status=403)]
    assert fetch(world).read_bytes() == ZIP
    assert world.server.ranges() == ["bytes=196608-"]


@pytest.mark.thorough
def test_every_attempt_asks_for_a_new_address(world: World) -> None:
    world.server.bodies = [Body(cut=HALF)]
    fetch(world)
    addresses = [one.body["query"] for one in world.server.requests if one.what == "GET"]
    assert len(set(addresses)) == 2


@pytest.mark.thorough
def test_a_file_that_an_earlier_client_spoiled_is_found_and_replaced(world: World) -> None:
    """Its size will be right, its first bytes are wrong, and the client is content (exit 0)."""
    note = json.dumps({"validator": '"one"', "size": len(ZIP)}).encode()
    write(incoming() / "pets.zip", b"<Error/>")
    write(incoming() / "pets.zip.kaggle-partial", note)
    assert fetch(world).read_bytes() == ZIP
    assert world.server.ranges() == ["bytes=8-"]
    assert any("starting again from zero" in line for line in world.told.lines)


def test_wrong_bytes_in_the_middle_of_a_full_file_are_found(world: World) -> None:
    path = write(incoming() / "pets.zip", flipped(ZIP, HALF))
    os.utime(path, (LAST_MODIFIED + 9e7, LAST_MODIFIED + 9e7))
    assert fetch(world).read_bytes() == ZIP
    assert any("'train/dog.0.jpg'" in line for line in world.told.lines)


def test_a_full_file_that_was_not_checked_yet_is_checked_and_kept(world: World) -> None:
    """As a run leaves it that is killed at the end; the client's note may be there or not."""
    write(incoming() / "pets.zip", ZIP)
    write(incoming() / "pets.zip.kaggle-partial", b"{}")
    assert fetch(world).read_bytes() == ZIP
    assert [what for what, _ in world.told.phases] == ["checking"]
    assert world.server.count("GET") == 1


@pytest.mark.thorough
def test_damage_that_comes_again_is_an_error_that_names_the_member(world: World) -> None:
    world.server.archives["pets"] = Archive(flipped(ZIP, HALF))
    line = failure(world)
    assert "arrived damaged twice (member 'train/dog.0.jpg': Bad CRC-32" in line
    assert "in a browser" in line
    assert world.server.count("GET") == 2


def test_a_web_page_is_not_taken_for_an_archive(world: World) -> None:
    page = b"\n<!DOCTYPE html><html>Please log in</html>"
    world.server.archives["pets"] = Archive(page, content_type="text/html")
    line = failure(world, retries=HASTY)
    assert "a web page instead of an archive" in line
    assert "https://www.kaggle.com/competitions/pets" in line
    assert world.server.count("GET") == 1
    assert not list(incoming().iterdir())


SILENT = RetryLimits(silence_s=2, attempts=1)


@pytest.mark.parametrize("hang", [pytest.param(-1, marks=pytest.mark.thorough), HALF])
def test_a_silent_server_is_given_up(world: World, hang: int) -> None:
    world.server.bodies = [Body(hang=hang)]
    start = time.monotonic()
    line = failure(world, retries=SILENT)
    assert "no byte for 2 s" in line
    assert time.monotonic() - start < 30
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


def test_a_second_process_waits_and_takes_what_the_first_has_brought(world: World) -> None:
    world.server.bodies = [Body(hang=HALF), None]
    with start_process() as first:
        read_until(first, "196608")
        second = threading.Thread(target=fetch, args=(world,))
        second.start()
        while not world.told.lines:
            time.sleep(0.05)
        world.server.gate.set()
        second.join(60)
        assert not second.is_alive()
    assert "another process is downloading kaggle:pets: waiting for it" in world.told.lines
    assert world.server.count("DownloadDataFiles") == 2
    archive = cached_archive(PETS)
    assert archive is not None
    assert archive.read_bytes() == ZIP


@pytest.mark.thorough
@pytest.mark.usefixtures("real_client")
def test_a_second_refresh_takes_the_same_archive_from_the_first(world: World) -> None:
    fetch(world)
    world.server.bodies = [Body(hang=HALF)]
    watchers = Quiet(), Quiet()
    options = {"refresh": True, "retries": HASTY}
    runs = [
        threading.Thread(target=download, args=(PETS,), kwargs={**options, "watcher": watcher})
        for watcher in watchers
    ]
    runs[0].start()
    while 196608 not in watchers[0].done:
        time.sleep(0.05)
    runs[1].start()
    while not watchers[1].lines:
        time.sleep(0.05)
    world.server.gate.set()
    for run in runs:
        run.join(60)
    assert watchers[1].phases == []
    assert cached_archive(PETS) is not None


def test_a_killed_run_leaves_no_client_behind_and_is_gone_on_with(world: World) -> None:
    world.server.bodies = [Body(hang=HALF)]
    with start_process() as killed:
        read_until(killed, "196608")
        killed.send_signal(signal.SIGKILL)
    assert fetch(world).read_bytes() == ZIP
    assert world.server.ranges() == ["bytes=196608-"]


@pytest.mark.thorough
@pytest.mark.usefixtures("real_client")
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


@pytest.mark.parametrize("case", WHOLE)
def test_a_whole_archive_is_found_whole(tmp_path: Path, case: str) -> None:
    assert damage(write(tmp_path / "x", WHOLE[case]), Quiet()) == ""


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_archive_is_found_damaged(tmp_path: Path, case: str) -> None:
    assert damage(write(tmp_path / "x", DAMAGED[case]), Quiet())


def test_members_that_cannot_be_read_are_said_to_be_unchecked(tmp_path: Path) -> None:
    data = bytearray(zip_bytes(ONE))
    for header, offset in ((b"PK\3\4", 8), (b"PK\1\2", 10)):
        data[data.index(header) + offset] = 9  # Deflate64
    told = Quiet()
    assert damage(write(tmp_path / "x", bytes(data)), told) == ""
    assert told.lines[0].startswith("members not checked: 1, ")


# Progress.


def shown(monkeypatch: pytest.MonkeyPatch, size: int | None, *, terminal: bool = False) -> str:
    monkeypatch.setattr(display, "_LINE_EVERY_S", 0.0)
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


def test_without_a_terminal_there_are_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, 20_000_000).splitlines()
    assert lines[0] == "downloading [kaggle:pets]"
    assert lines[2].startswith("downloading: 10 of 20 MB, ")
    assert lines[2].endswith(" s left")
    assert lines[-1].startswith("checking: 20 of 20 MB")
    assert "downloading: 15 MB, " in shown(monkeypatch, None)


def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, 20_000_000, terminal=True)
    assert "20.0/20.0 MB" in text
    assert "s left" not in text


def test_lines_come_now_and_then() -> None:
    out = io.StringIO()
    with display.Bar(Console(file=out)) as bar:
        progress = Watch(bar)
        progress.start("downloading", 10, "bytes")
        progress.advance(5)
        progress.advance(5)
    assert out.getvalue() == ""
