"""Uploads by the unmodified kaggle client to a server on loopback, with everything failing."""

import json
import random
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import shardprep
from shardprep import reader
from shardprep.errors import BusyError, DatasetError, RecipeError, SourceError
from shardprep.progress import Unit
from shardprep.source.kaggle import upload
from shardprep.source.kaggle.ref import parse_ref
from shardprep.source.kaggle.upload import KaggleState, Uploader, check_target
from shardprep.storage.cache import cache_root
from shardprep.storage.lock import locked
from shardprep.storage.regular_file import sha256_of
from tests.source.kaggle_clients import ForkedClient, at_kaggle
from tests.source.kaggle_server import KEY, USER, Answer, KaggleServer, Transfer
from tests.support.builders import Quiet, animals, build, tree, write, write_folder, zip_bytes

SLUG = f"{USER}/pets-small"
REF = parse_ref(SLUG)
SHARD = "pets-train.tfrecord-00000-of-00001"
INDEX = f"index/{SHARD}.idx"
FILES = {
    SHARD: random.Random(0).randbytes(9000),
    INDEX: b"0 9000\n",
    "items.parquet": b"PAR1",
    "schema.json": b'{"features": []}',
}
"""Files to send where they need not be a dataset."""
CUT = 2000
"""Bytes of the first file of more that arrive before a transfer is cut."""


class Told(Quiet):
    stop_at = ""
    """Phase that is interrupted."""

    def start(
        self, what: str, total: int | None = None, unit: Unit = "", num_done: int = 0
    ) -> None:
        super().start(what, total, unit, num_done)
        if what == self.stop_at and not unit:
            raise KeyboardInterrupt

    def advance(self, number: int, num_rejected: int = 0) -> None:
        super().advance(number, num_rejected)
        if self.phases[-1][0] == self.stop_at:
            raise KeyboardInterrupt


class World(NamedTuple):
    """A machine with credentials and a dataset, and a Kaggle server."""

    server: KaggleServer
    folder: Path
    told: Told
    clients: list[ForkedClient]


def pets(folder: Path) -> Path:
    """Build a dataset; return its folder."""
    source = write(folder / "pets.zip", zip_bytes(animals(12)))
    build(source, folder / "out", name="pets", size="32x32", shards=2)
    return folder / "out/pets/1.0.0"


@pytest.fixture(name="world")
def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(upload, "_POLL_S", 0.02)
    with at_kaggle(tmp_path, monkeypatch) as (server, clients):
        yield World(server, write_folder(tmp_path / "pets", FILES), Told(), clients)


def send(world: World, **more: Any) -> KaggleState:
    """Upload the files like a verified dataset."""
    sizes = {name: len(data) for name, data in tree(world.folder).items()}
    hashes = {name: sha256_of(world.folder / name) for name in sizes}
    wanted = Uploader(**{"ref": REF, "folder": world.folder, "num_bytes": sum(sizes.values()),
                         "hashes": hashes, "license": None, "message": "pets 1.0.0",
                         "is_public": False, "watcher": world.told, **more})  # fmt: skip
    check_target(wanted.ref)
    return wanted.upload()


def failure(world: World) -> str:
    with pytest.raises(SourceError) as caught:
        send(world)
    line = str(caught.value)
    assert line.startswith(f"kaggle:{SLUG}")
    assert "\n" not in line
    assert KEY not in line
    assert "secret" not in line
    return line


def versions(world: World) -> list[dict[str, bytes]]:
    dataset = world.server.uploads.datasets.get(SLUG)
    return dataset.versions if dataset else []


def work() -> Path:
    """Return the folder of the upload in the cache."""
    return cache_root() / "kaggle/uploads" / SLUG / "work"


def sent(world: World) -> int:
    """Return the number of transfers of files, without questions for what has arrived."""
    asked = [one for one in world.server.uploads.ranges if one.startswith("bytes */")]
    return world.server.count("PUT") - len(asked)


# What Kaggle has then.


def test_an_uploaded_dataset_is_private_and_can_be_downloaded_and_read(
    world: World, tmp_path: Path
) -> None:
    folder = pets(tmp_path)
    before = tree(folder)
    done = shardprep.upload(folder, f"kaggle:{SLUG}")
    dataset = world.server.uploads.datasets[SLUG]
    assert (dataset.title, dataset.license, dataset.is_private) == ("pets small", "unknown", True)
    assert dataset.versions == [before]
    assert (done.slug, done.version, done.is_private) == (f"kaggle:{SLUG}/1", 1, True)
    assert (done.num_files, done.num_bytes) == (len(before), sum(map(len, before.values())))
    assert tree(folder) == before
    with zipfile.ZipFile(shardprep.download(done.slug, to=tmp_path / "back").path) as archive:
        archive.extractall(tmp_path / "input")
    assert shardprep.verify(tmp_path / "input", workers=1).problems == ()
    assert len(reader.Dataset(tmp_path / "input", "train")) == 12


def test_a_changed_dataset_is_a_new_version_with_notes(world: World, tmp_path: Path) -> None:
    send(world, license="CC-BY-4.0", is_public=True)
    dataset = world.server.uploads.datasets[SLUG]
    assert (dataset.license, dataset.is_private) == ("CC-BY-4.0", False)
    other = write_folder(tmp_path / "other", {**tree(world.folder), "schema.json": b"{}"})
    changed = world._replace(folder=other)
    with pytest.raises(RecipeError, match=r"is public on Kaggle.*add --public.*/settings"):
        send(changed)
    done = send(changed, message="fewer bytes", is_public=True)
    assert (done.version, done.is_private) == (2, False)
    assert dataset.notes == ["fewer bytes"]
    assert versions(world) == [tree(world.folder), tree(other)]


def test_a_private_dataset_does_not_become_public(world: World) -> None:
    send(world)
    with pytest.raises(RecipeError, match=r"is private on Kaggle.*leave out --public"):
        send(world, is_public=True, license="CC0-1.0")
    assert len(versions(world)) == 1


def test_a_version_of_somebody_else_is_not_mistaken_for_this_upload(world: World) -> None:
    send(world)
    becomes("FAILED")(world)
    failure(world)
    dataset = world.server.uploads.datasets[SLUG]
    dataset.versions.append({})
    dataset.statuses = ["READY"]
    assert "is missing" in failure(world)
    becomes("READY")(world)
    assert send(world).version == 4
    assert versions(world)[3] == tree(world.folder)


# Refusals before a byte is sent.

NO_TARGETS = ("pets", f"{USER}/pets-small/3", f"{USER}/Pets_Small", f"{USER}/pets--small")


def test_an_invalid_target_is_an_error_without_a_request(world: World) -> None:
    for text in NO_TARGETS:
        with pytest.raises(RecipeError, match=r"target for an upload; write kaggle:OWNER/NAME"):
            send(world, ref=parse_ref(text))
    assert not world.server.requests


def test_a_new_dataset_needs_a_long_name_and_in_public_a_licence(world: World) -> None:
    with pytest.raises(SourceError, match="must be between 6 and 50 characters"):
        send(world, ref=parse_ref(f"{USER}/pets"))
    with pytest.raises(RecipeError, match=r"license: is missing.*such as CC-BY-4.0"):
        send(world, is_public=True)
    assert not world.server.count("StartBlobUpload")


def test_without_credentials_or_a_local_dataset_nothing_is_sent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DatasetError, match=r"shardprep fetch s3://bucket/pets`, then upload"):
        shardprep.upload("s3://bucket/pets", SLUG)
    monkeypatch.delenv("KAGGLE_KEY")
    with pytest.raises(SourceError, match="no Kaggle credentials found"):
        send(world)
    assert not world.server.requests


def test_a_damaged_dataset_is_not_sent(world: World, tmp_path: Path) -> None:
    folder = pets(tmp_path)
    shard = next(folder.glob("*-of-00002"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    with pytest.raises(DatasetError, match=rf"{shard.name}: .*shardprep verify .* --repair"):
        shardprep.upload(folder, SLUG)
    assert not world.server.requests


# What goes wrong on the way: a line, nothing called done, and a second run that finishes.


def no(call: str, *answers: Answer | dict[str, Any]) -> Callable[[World], None]:
    return lambda world: world.server.uploads.answers.update({call: [*answers]})


def transfers(*faults: Transfer) -> Callable[[World], None]:
    return lambda world: world.server.uploads.transfers.extend(faults)


def comes_back(change: Callable[[dict[str, bytes]], object]) -> Callable[[World], None]:
    def apply(world: World) -> None:
        def once(files: dict[str, bytes]) -> None:
            change(files)
            world.server.uploads.change = lambda _: None

        world.server.uploads.change = once

    return apply


def becomes(*statuses: str) -> Callable[[World], None]:
    return lambda world: setattr(world.server.uploads, "statuses", [*statuses])


def killed(world: World) -> None:
    def kill() -> None:
        world.clients[-1].kill()

    transfers(Transfer(cut=CUT, then=kill))(world)


def unknown(world: World) -> None:
    world.server.accepts = ("Bearer ",)


def said(text: str) -> dict[str, Any]:
    return {"status": "error", "error": text, "url": ""}


TAKEN = 'The requested title "pets small" is already in use by a dataset.'
FAULTS: dict[str, tuple[Callable[[World], None], str]] = {
    "400": (no("StartBlobUpload", Answer(400, "bad name")), r"upload \(400: bad name\)"),
    "401": (unknown, r"does not accept the credentials of KAGGLE_USERNAME and KAGGLE_KEY"),
    "403": (no("CreateDataset", Answer(403, "denied")), r"\(403: denied\); check that somebody"),
    "404": (no("StartBlobUpload", Answer(404, "gone")), r"upload \(404: gone\)"),
    "409": (no("CreateDataset", Answer(409, TAKEN)), r"409: The req.*choose another name"),
    "title taken": (no("CreateDataset", said(TAKEN)), r"already in use.*choose another name"),
    "500": (no("StartBlobUpload", Answer(500, "oh")), r"internal error \(500: oh\).*later"),
    "500 at the end": (no("CreateDataset", Answer(500, "oh")), r"internal error \(500: oh\)"),
    "refused file": (transfers(Transfer(403)), r"client failed \(ValueError: Upload unsuccessful"),
    "killed": (killed, "the kaggle client was killed by the system or a user"),
    "quota": (no("CreateDataset", said("Private quota exceeded")), r"\(Private quota exceeded\)"),
    "endless": (becomes("BLOBS_RECEIVED"), r"has not processed the version \(blobs_received\)"),
    "failed": (becomes("FAILED"), r"has not processed the version \(failed\)"),
    "wrong bytes": (comes_back(lambda files: files.update({"schema.json": b"{}"})),
                    "differs from the sent files: schema.json has other bytes"),
    "missing file": (comes_back(lambda files: files.pop("items.parquet")),
                     "differs from the sent files: items.parquet is missing"),
    "packed folder": (comes_back(lambda files: files.update({"index.zip": files.pop(INDEX)})),
                      f"differs from the sent files: {INDEX} is missing"),
}  # fmt: skip
MADE_ANEW = {"wrong bytes", "missing file", "packed folder", "failed"}
"""Faults after which a new version is made."""
NOT_SENT = {"409", "403", "500 at the end"}
"""Faults after all has arrived, which the client tells from a success."""


@pytest.mark.parametrize("fault", FAULTS)
def test_after_a_one_line_error_the_next_run_completes_the_upload(
    world: World, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply, line = FAULTS[fault]
    apply(world)
    if fault == "endless":
        monkeypatch.setattr(upload, "_PROCESSING_S", 0.3)
    assert re.search(line, failure(world))
    num_sent, num_versions = sent(world), len(versions(world))
    if fault == "refused file":
        assert not world.server.count("CreateDataset")
    assert num_versions == (fault in MADE_ANEW or fault == "endless")
    world.server.accepts = ("Basic ",)
    world.server.uploads.statuses = ["READY"]
    for dataset in world.server.uploads.datasets.values():
        dataset.statuses = ["FAILED" if fault == "failed" else "READY"]
    done = send(world)
    assert done.version == len(versions(world)) == num_versions + (fault != "endless")
    assert versions(world)[-1] == tree(world.folder)
    if fault in NOT_SENT:
        assert sent(world) == num_sent + 1  # the folder, packed anew
    if fault == "endless":
        assert sent(world) == num_sent


def test_an_interrupted_transfer_continues_at_its_byte_in_the_next_run(world: World) -> None:
    killed(world)
    failure(world)
    assert send(world).version == 1
    starts = [one.partition("-")[0] for one in world.server.uploads.ranges if "*" not in one]
    assert starts == [f"bytes {CUT}"]


@pytest.mark.thorough
def test_a_passing_fault_does_not_end_the_upload(world: World) -> None:
    """The client repeats the request."""
    no("StartBlobUpload", Answer(429, retry_after="1"))(world)
    transfers(Transfer(503), Transfer(cut=CUT))(world)
    assert send(world).version == 1


@pytest.mark.thorough
def test_a_silent_server_is_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    transfers(Transfer(cut=CUT, then=lambda: world.server.gate.wait(20)))(world)
    with monkeypatch.context() as patch:
        patch.setattr(upload, "_SILENCE_S", 2)
        assert "no data from Kaggle" in failure(world)
    world.server.gate.set()
    assert send(world).version == 1


@pytest.mark.parametrize("phase", ["uploading", "waiting for Kaggle", "comparing"])
def test_an_interrupted_upload_leaves_no_client_and_continues(world: World, phase: str) -> None:
    world.server.uploads.statuses = ["BLOBS_RECEIVED", "READY"]
    world.told.stop_at = phase
    with pytest.raises(KeyboardInterrupt):
        send(world)
    assert world.clients
    assert all(client.has_ended for client in world.clients)
    world.told.stop_at = ""
    assert send(world).version == 1
    assert versions(world) == [tree(world.folder)]
    assert {path.name for path in work().parent.iterdir()} == {".lock"}


def test_two_uploads_to_one_dataset_do_not_run_at_once(world: World) -> None:
    with locked(work().parent, who="upload"), pytest.raises(BusyError, match="another upload is"):
        send(world)
    assert not world.server.requests


def test_upload_addresses_are_readable_only_by_the_owner(world: World) -> None:
    killed(world)
    failure(world)
    folder = work() / "notes"
    assert folder.stat().st_mode & 0o077 == 0
    notes = [json.loads(path.read_text()) for path in folder.rglob("*.json")]
    assert any("upload_id=secret" in json.dumps(note) for note in notes)
    assert not any(str(folder.parent) in note["path"] for note in notes)  # short anywhere
