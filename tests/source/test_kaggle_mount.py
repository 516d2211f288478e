"""What Kaggle has mounted in a notebook is read in place: no request, no credentials, no copy."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shardprep
from shardprep.errors import SourceError
from shardprep.source.kaggle import download as kaggle_download
from shardprep.source.kaggle.ref import parse_ref
from tests.source.kaggle_server import Archive, KaggleServer
from tests.support.builders import animals, tree, write_folder, zip_bytes
from tests.support.command import run

COMPETITION, DATASET = "kaggle:dogs-vs-cats", "kaggle:owner/pets"
PLACES = [
    (COMPETITION, "competitions/dogs-vs-cats"),
    (COMPETITION, "dogs-vs-cats"),
    (DATASET, "datasets/owner/pets"),
    (DATASET, "pets"),
    ("https://www.kaggle.com/competitions/dogs-vs-cats/data", "competitions/dogs-vs-cats"),
    ("https://www.kaggle.com/datasets/owner/pets", "datasets/owner/pets"),
]
SMALL: dict[str, Any] = {"size": "8x8", "shards": 1}


@pytest.fixture(name="root", autouse=True)
def _root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that replaces /kaggle/input, on a machine without an account."""
    for name in ("KAGGLE_API_TOKEN", "KAGGLE_USERNAME", "KAGGLE_KEY", "KAGGLE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kaggle_download, "MOUNT_ROOT", tmp_path / "input")
    return tmp_path / "input"


def mounted_at(folder: Path) -> Path:
    return write_folder(folder, {"train.zip": zip_bytes(animals(8)), "test/1.txt": b"no image"})


def said(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    lines: list[str] = []
    call(*arguments, **options, progress=lambda report: lines.append(report.notice))
    return "\n".join(lines)


@pytest.mark.parametrize(("source", "place"), PLACES)
def test_a_mount_is_read_in_place(
    source: str, place: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = mounted_at(root / place)
    line = f"is read in place from {folder}: nothing is downloaded"
    assert line in said(shardprep.download, source)
    found = shardprep.download(source)
    assert (found.path, found.num_bytes, found.is_mounted) == (folder, 0, True)
    if source.startswith("https") or "/" not in place:
        return
    before = tree(root)
    monkeypatch.chdir(tmp_path)
    assert line in said(shardprep.build, source, tmp_path / "dry", dry_run=True, **SMALL)
    assert line in said(shardprep.build, source, tmp_path / "out", **SMALL)
    built = shardprep.build(source, tmp_path / "out", **SMALL)
    assert built.manifest.name == place.rpartition("/")[2].replace("-", "_")
    assert built.manifest.totals.num_written == 8
    assert line in said(shardprep.init, source)
    assert f'source = "{source}"' in (tmp_path / "shardprep.toml").read_text()
    assert tree(root) == before
    assert not (tmp_path / "cache" / "kaggle").exists()


def test_the_command_line_says_that_a_download_is_not_needed(root: Path, tmp_path: Path) -> None:
    folder = mounted_at(root / "competitions" / "dogs-vs-cats")
    done = run("download", "dogs-vs-cats", cwd=tmp_path)
    assert done.returncode == 0
    assert "".join(done.stdout.split()) == str(folder)
    assert "nothing is downloaded" in " ".join(done.stderr.split())
    as_json = json.loads(run("download", "dogs-vs-cats", "--json", cwd=tmp_path).stdout)
    assert as_json == {"path": str(folder), "num_bytes": 0, "is_mounted": True}


def test_new_mount_places_have_priority(root: Path) -> None:
    old = mounted_at(root / "pets")
    assert kaggle_download.mounted(parse_ref(DATASET)) == old
    assert kaggle_download.mounted(parse_ref("kaggle:other/pets")) == old
    new = mounted_at(root / "datasets" / "owner" / "pets")
    assert kaggle_download.mounted(parse_ref(DATASET)) == new


@pytest.mark.parametrize("name", ["competitions", "datasets", "models"])
def test_the_parent_folder_of_mounts_is_not_a_mount(name: str, root: Path) -> None:
    mounted_at(root / name / "owner" / "pets")
    assert kaggle_download.mounted(parse_ref(f"kaggle:{name}")) is None
    assert kaggle_download.mounted(parse_ref(f"kaggle:owner/{name}")) is None


def test_a_file_or_another_name_is_not_a_mount(root: Path) -> None:
    write_folder(root, {"dogs-vs-cats": b"a file", "cats/1.jpg": b""})
    with pytest.raises(SourceError, match="no Kaggle credentials found"):
        shardprep.build(COMPETITION, dry_run=True)


def test_the_version_of_a_mount_is_reported_as_unknown(root: Path, tmp_path: Path) -> None:
    mounted_at(root / "datasets" / "owner" / "pets")
    line = said(shardprep.build, f"{DATASET}/3", tmp_path / "out", dry_run=True, **SMALL)
    assert "its version is unknown, 3 was asked for" in line


def test_a_folder_or_refresh_forces_a_download(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted_at(root / "datasets" / "owner" / "pets")
    with KaggleServer({"owner/pets": Archive(zip_bytes(animals(4)))}) as server:
        for name, value in server.environment(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        into = shardprep.download(DATASET, to=tmp_path / "archives")
        assert into.path.parent == tmp_path / "archives"
        assert not into.is_mounted
        plan = shardprep.build(DATASET, tmp_path / "out", refresh=True, dry_run=True, **SMALL)
        assert sum(plan.images.values()) == 4
        assert server.requests
