"""From a slug to shards with one command, the client unmodified, the server on loopback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardprep.api.transfers import Download, Upload
from tests.source.kaggle_clients import fork_clients
from tests.source.kaggle_server import Archive, KaggleServer
from tests.support import command
from tests.support.builders import animals, build, tree, write, zip_bytes
from tests.support.command import Done
from tests.support.json_page import printed


def environment(server: KaggleServer, here: Path) -> dict[str, str]:
    home = here / "home"
    home.mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {**kept, **server.environment(home), "COLUMNS": "80", "NO_COLOR": "1"}


def run(server: KaggleServer, here: Path, *arguments: str) -> Done:
    return command.run(*arguments, cwd=here, environment=environment(server, here))


def test_a_build_downloads_once(tmp_path: Path) -> None:
    inner = {"train.zip": zip_bytes(animals(20)), "sampleSubmission.csv": b"id,label\n1,0\n"}
    command = ("build", "kaggle:dogs-vs-cats", "--size", "32x32")
    with KaggleServer({"dogs-vs-cats": Archive(zip_bytes(inner))}) as server:
        built = subprocess.run(
            [sys.executable, "-m", "shardprep", *command],
            cwd=tmp_path, env=environment(server, tmp_path),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert built.returncode == 0, built.stderr
        assert "tfrecords/dogs_vs_cats/1.0.0" in built.stdout
        asked = len(server.requests)
        assert asked > 0
        again = run(server, tmp_path, *command, "--json")
        assert json.loads(again.stdout)["was_there"]
        assert len(server.requests) == asked
        done = run(server, tmp_path, "build", "kaggle:no-such-thing")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("kaggle:no-such-thing: ")


@pytest.mark.thorough
def test_download_init_build_and_inspect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fork_clients(monkeypatch)
    with KaggleServer({"owner/pets/3": Archive(zip_bytes(animals(20)))}) as server:
        as_json = run(server, tmp_path, "download", "owner/pets/3", "--json")
        path = run(server, tmp_path, "download", "owner/pets/3")
        assert path.returncode == 0, path.stderr
        assert path.stdout.strip().endswith("pets.zip")
        assert printed(as_json.stdout, Download)["path"] == path.stdout.strip()
        for arguments in (("init", "kaggle:owner/pets/3"), ("build", "--shards", "2")):
            done = run(server, tmp_path, *arguments)
            assert done.returncode == 0, done.stderr
        assert 'source = "kaggle:owner/pets/3"' in (tmp_path / "shardprep.toml").read_text()
        seen = run(server, tmp_path, "inspect")
        assert "pets 1.0.0" in seen.stdout
        assert server.count("DownloadDataset") == 1


@pytest.mark.thorough
def test_an_upload_prints_the_address_and_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork_clients(monkeypatch)
    source = write(tmp_path / "pets.zip", zip_bytes(animals(12)))
    build(source, tmp_path / "tfrecords", name="pets", size="32x32", shards=2)
    with KaggleServer() as server:
        done = run(server, tmp_path, "upload", "tfrecords/pets", "somebody/pets-small")
        assert done.returncode == 0, done.stderr
        page, line = done.stdout.splitlines()
        assert page == "https://www.kaggle.com/datasets/somebody/pets-small"
        assert line.startswith("version 1, private: 10 files, ")
        assert line.endswith("; every byte is equal")
        files = tree(tmp_path / "tfrecords/pets/1.0.0")
        assert server.uploads.datasets["somebody/pets-small"].versions == [files]
        again = run(server, tmp_path, "upload", "tfrecords/pets", "somebody/pets-small", "--json")
    assert printed(again.stdout, Upload)["slug"] == "kaggle:somebody/pets-small/2"
