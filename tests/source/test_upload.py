"""Uploads by the unmodified kaggle client to a server on loopback, with everything failing."""

from __future__ import annotations

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
from shardprep.source.kaggle.ref import parse_ref
from shardprep.source.kaggle.upload import KaggleVersion, UploadFolder, UploadLimits, upload
from shardprep.source.kaggle.upload_metadata import Publication, check_publication
from shardprep.storage.regular_file import sha256_of
from tests.source.kaggle_clients import ForkedClient, at_kaggle
from tests.source.kaggle_server import KEY, USER, Answer, KaggleServer, Transfer
from tests.support.builders import Quiet, animals, build, tree, write, write_folder, zip_bytes

SLUG = f"{USER}/pets-small"
REF = parse_ref(SLUG)
ONCE = UploadLimits(attempts=1, silence_s=30, processing_s=0.3, poll_s=0.02)
HASTY = UploadLimits(attempts=3, backoff_s=0.01, processing_s=30, poll_s=0.02)
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
    with at_kaggle(tmp_path, monkeypatch) as (server, clients):
        yield World(server, write_folder(tmp_path / "pets", FILES), Told(), clients)


def send(
    world: World, limits: UploadLimits = ONCE, *, check: bool = True, **more: Any
) -> KaggleVersion:
    """Upload the files like a verified dataset."""
    sizes = {name: len(data) for name, data in tree(world.folder).items()}
    hashes = {name: sha256_of(world.folder / name) for name in sizes}
    wanted = Publication(**{"folder": world.folder, "sizes": sizes, "ref": REF,
                            "message": "pets 1.0.0", **more})  # fmt: skip
    check_publication(wanted)
    return upload(wanted, hashes, check=check, watcher=world.told, limits=limits)


def failure(world: World, limits: UploadLimits = ONCE) -> str:
    with pytest.raises(SourceError) as caught:
        send(world, limits)
    line = str(caught.value)
    assert line.startswith(f"kaggle:{SLUG}")
    assert "\n" not in line
    assert KEY not in line
    assert "secret" not in line
    return line


def versions(world: World) -> list[dict[str, bytes]]:
    dataset = world.server.uploads.datasets.get(SLUG)
    return dataset.versions if dataset else []


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
    assert (done.is_checked, done.was_there) == (True, False)
    assert (done.num_files, done.num_bytes) == (len(before), sum(map(len, before.values())))
    assert tree(folder) == before
    with zipfile.ZipFile(shardprep.download(done.slug, to=tmp_path / "back").path) as archive:
        archive.extractall(tmp_path / "input")
    assert shardprep.verify(tmp_path / "input", workers=1).problems == ()
    assert len(reader.Dataset(tmp_path / "input", "train")) == 12


def test_an_uploaded_dataset_is_not_sent_again(world: World) -> None:
    first = send(world, check=False)
    assert (first.was_there, first.is_checked) == (False, False)
    num_requests = len(world.server.requests)
    again = send(world, title="Pets, another title")
    assert (again.version, again.was_there, again.is_checked) == (1, True, True)
    asked = [one.what for one in world.server.requests[num_requests:]]
    assert asked == ["GetDatasetStatus", "GetDataset", "DownloadDataset", "GET"]
    assert send(world).is_checked
    assert world.server.count("GET") == 1  # what was checked once is
    assert {path.name for path in UploadFolder(REF).path.iterdir()} == {".lock", "note.json"}


def test_a_changed_dataset_is_a_new_version_with_notes(world: World, tmp_path: Path) -> None:
    send(world, title="Pets of the house", license="cc-by-4.0", is_public=True)
    dataset = world.server.uploads.datasets[SLUG]
    assert (dataset.title, dataset.license) == ("Pets of the house", "CC-BY-4.0")
    assert not dataset.is_private
    other = write_folder(tmp_path / "other", {**tree(world.folder), "schema.json": b"{}"})
    changed = world._replace(folder=other)
    with pytest.raises(RecipeError, match=r"is public on Kaggle.*add --public.*/settings"):
        send(changed)
    done = send(changed, message="fewer bytes", is_public=True, license="other")
    assert (done.version, done.is_private, done.is_checked) == (2, False, True)
    assert dataset.notes == ["fewer bytes"]
    assert versions(world) == [tree(world.folder), tree(other)]
    assert "has its title and licence already" in "\n".join(world.told.lines)


def test_a_private_dataset_does_not_become_public(world: World) -> None:
    send(world, check=False)
    world.server.uploads.datasets[SLUG].versions.append({})  # somebody else's
    with pytest.raises(RecipeError, match=r"is private on Kaggle.*leave --public out"):
        send(world, is_public=True, license="CC0-1.0")
    assert send(world).version == 3


def test_a_version_of_somebody_else_is_not_mistaken_for_this_upload(world: World) -> None:
    send(world, check=False)
    UploadFolder(REF).forget()
    transfers(Transfer(400))(world)
    failure(world)
    versions(world).append({})
    done = send(world, check=False)
    assert (done.version, done.was_there) == (3, False)


def test_a_failed_earlier_version_does_not_fail_the_next(world: World) -> None:
    becomes("FAILED")(world)
    failure(world)
    world.server.uploads.statuses, world.server.uploads.num_stale = ["READY"], 3
    assert send(world, HASTY).is_checked


def test_processing_is_reported_until_it_ends(world: World) -> None:
    world.server.uploads.statuses = ["BLOBS_RECEIVED", "BLOBS_RECEIVED", "BLOBS_COPIED_TO_SDS",
                                     "READY"]  # fmt: skip
    assert send(world, HASTY).is_checked
    said = [line for line in world.told.lines if line.startswith("Kaggle is processing")]
    assert [line.rpartition(": ")[2] for line in said] == ["blobs received", "blobs copied to sds"]


# Refusals before a byte is sent.

NO_TARGETS = {
    "pets": r"kaggle:pets: is a competition.*write kaggle:OWNER/NAME",
    f"{USER}/pets-small/3": "names version 3.*write kaggle:somebody/pets-small",
    f"{USER}/Pets_Small": "'Pets_Small' may contain only a-z.*write kaggle:somebody/pets-small",
    f"{USER}/pets--small": "single hyphens",
}
NO_OPTIONS: dict[str, dict[str, Any]] = {
    "a title must have 6 to 50 characters, 'pets' has 4": {"title": " pets "},
    "title: .*has 51": {"title": "p" * 51},
    "Kaggle has no licence 'MIT'.*CC0-1.0, ": {"license": "MIT"},
    "the dataset has 200 GB, Kaggle accepts 200 GB": {"sizes": {"a": 2 * 10**11, "b": 1}},
    "has 1,001 files.*fewer (--)?shards": {"sizes": {f"{i}": 1 for i in range(1001)}},
}


def test_an_invalid_target_or_option_is_an_error_without_a_request(world: World) -> None:
    for text, line in NO_TARGETS.items():
        with pytest.raises(RecipeError, match=line):
            send(world, ref=parse_ref(text))
    for line, options in NO_OPTIONS.items():
        with pytest.raises((RecipeError, SourceError), match=line):
            send(world, **options)
    assert not world.server.requests


def test_a_new_dataset_needs_a_long_name_and_in_public_a_licence(world: World) -> None:
    with pytest.raises(RecipeError, match="6 to 50 characters, this name has 4"):
        send(world, ref=parse_ref(f"{USER}/pets"))
    with pytest.raises(RecipeError, match=r"license: is missing.*add (--)?license CC-BY-4.0"):
        send(world, is_public=True)
    assert not world.server.count("StartBlobUpload")


def test_without_credentials_or_a_local_dataset_nothing_is_sent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DatasetError, match=r"shardprep fetch s3://bucket/pets, then upload"):
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


def test_a_foreign_owner_is_reported(world: World) -> None:
    send(world, ref=parse_ref("zoe/pets-small"), check=False)
    assert any("belong to somebody" in line and "zoe" in line for line in world.told.lines)


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
    "400": (no("StartBlobUpload", Answer(400, "bad name")), r"rejects it \(400: bad name\)"),
    "401": (unknown, r"does not accept the credentials of KAGGLE_USERNAME and KAGGLE_KEY"),
    "403": (no("CreateDataset", Answer(403, "denied")), r"\(403: denied\); is somebody you"),
    "404": (no("StartBlobUpload", Answer(404, "gone")), r"rejects it \(404: gone\)"),
    "409": (no("CreateDataset", Answer(409, TAKEN)), r"409: The req.*another --title"),
    "title taken": (no("CreateDataset", said(TAKEN)), r"already in use.*choose another --title"),
    "429": (no("StartBlobUpload", Answer(429, retry_after="9")), r"wait 9 s, then run the same"),
    "500": (no("StartBlobUpload", Answer(500, "oh")), r"internal error \(500: oh\).*later"),
    "500 at the end": (no("CreateDataset", Answer(500, "oh")), r"internal error \(500: oh\)"),
    "refused file": (transfers(Transfer(403)), r"rejects the upload \(403: Forbidden\)"),
    "store in trouble": (transfers(Transfer(503)), r"internal error \(503"),
    "cut": (transfers(Transfer(cut=CUT)), r"no connection to Kaggle \(.*continues where"),
    "killed": (killed, "the kaggle client was killed by the system or a user"),
    "quota": (no("CreateDataset", said("Private quota exceeded")), r"\(Private quota exceeded\)"),
    "endless": (becomes("BLOBS_RECEIVED"), r"still processing version 1 \(blobs received\)"),
    "failed": (becomes("FAILED"), r"could not process version 1 \(failed\)"),
    "wrong bytes": (comes_back(lambda files: files.update({"schema.json": b"{}"})),
                    "differs from the sent files: schema.json has other bytes"),
    "missing file": (comes_back(lambda files: files.pop("items.parquet")),
                     "differs from the sent files: items.parquet is missing"),
    "packed folder": (comes_back(lambda files: files.update({"index.zip": files.pop(INDEX)})),
                      f"differs from the sent files: {INDEX} is missing"),
}  # fmt: skip
MADE_ANEW = {"wrong bytes", "missing file", "packed folder", "failed"}
"""Faults after which all is sent again, to a new version."""
NOT_SENT = {"title taken", "409", "403", "quota", "500 at the end"}
"""Faults after all has arrived."""


@pytest.mark.parametrize("fault", FAULTS)
def test_after_a_one_line_error_the_next_run_completes_the_upload(world: World, fault: str) -> None:
    apply, line = FAULTS[fault]
    apply(world)
    assert re.search(line, failure(world))
    assert not UploadFolder(REF).note.is_checked
    num_sent, num_versions = sent(world), len(versions(world))
    if fault == "refused file":  # the client alone would create a dataset of the others
        assert not world.server.count("CreateDataset")
    assert num_versions == (fault in MADE_ANEW or fault == "endless")
    world.server.accepts = ("Basic ",)
    world.server.uploads.statuses = ["READY"]
    for dataset in world.server.uploads.datasets.values():
        dataset.statuses = ["FAILED" if fault == "failed" else "READY"]
    done = send(world, check=fault in MADE_ANEW)
    assert done.is_checked is (fault in MADE_ANEW)
    assert done.was_there is (fault == "endless")
    assert done.version == len(versions(world)) == num_versions + (fault != "endless")
    assert versions(world)[-1] == tree(world.folder)
    if fault in NOT_SENT:
        assert sent(world) == num_sent + 1  # the folder, packed anew


def test_an_interrupted_transfer_continues_at_its_byte(world: World) -> None:
    transfers(Transfer(cut=CUT), Transfer(cut=CUT), Transfer(503))(world)
    done = send(world, UploadLimits(attempts=4, backoff_s=0.01))
    assert (done.version, done.is_checked) == (1, True)
    starts = [one.partition("-")[0] for one in world.server.uploads.ranges if "*" not in one]
    assert starts == [f"bytes {CUT}", f"bytes {2 * CUT}", f"bytes {2 * CUT}"]
    assert sum("trying again" in line for line in world.told.lines) == 3


def test_an_expired_upload_address_is_replaced(world: World) -> None:
    transfers(Transfer(cut=CUT))(world)
    world.server.uploads.resumes = [404]
    failure(world)
    assert send(world, HASTY).is_checked
    assert any("the upload address has expired" in line for line in world.told.lines)


@pytest.mark.parametrize("call", ["CreateDataset", "CreateDatasetVersion"])
def test_a_lost_answer_does_not_create_a_version_twice(world: World, call: str) -> None:
    if call == "CreateDatasetVersion":
        send(world, check=False)
        UploadFolder(REF).forget()
    world.server.uploads.lost = {call: [Answer(502, "lost")]}
    done = send(world, HASTY)
    assert done.is_checked
    assert done.version == len(versions(world)) == 1 + (call == "CreateDatasetVersion")


@pytest.mark.thorough
def test_a_silent_server_is_an_error(world: World) -> None:
    transfers(Transfer(cut=CUT, then=lambda: world.server.gate.wait(20)))(world)
    line = failure(world, UploadLimits(attempts=1, silence_s=0.5))
    assert "no data from Kaggle" in line
    world.server.gate.set()
    assert send(world).is_checked


@pytest.mark.parametrize("phase", ["uploading", "waiting for Kaggle", "comparing"])
def test_an_interrupted_upload_leaves_no_client_and_continues(world: World, phase: str) -> None:
    world.server.uploads.statuses = ["BLOBS_RECEIVED", "READY"]
    world.told.stop_at = phase
    with pytest.raises(KeyboardInterrupt):
        send(world)
    assert world.clients
    assert all(client.has_ended for client in world.clients)
    world.told.stop_at = ""
    assert send(world).is_checked
    assert versions(world) == [tree(world.folder)]


def test_two_uploads_to_one_dataset_do_not_run_at_once(world: World) -> None:
    with UploadFolder(REF).held(), pytest.raises(BusyError, match="another upload is at work"):
        send(world)
    assert not world.server.requests


def test_upload_addresses_are_readable_only_by_the_owner(world: World) -> None:
    transfers(Transfer(cut=CUT))(world)
    failure(world)
    folder = UploadFolder(REF).path
    assert folder.stat().st_mode & 0o077 == 0
    notes = [json.loads(path.read_text()) for path in folder.glob(".kaggle*/**/*.json")]
    assert any("upload_id=secret" in json.dumps(note) for note in notes)
    assert not any(str(folder) in note["path"] for note in notes)  # short, wherever the cache is
