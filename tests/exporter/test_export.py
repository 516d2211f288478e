"""An export is complete or absent, and continues where it stopped."""

import errno
import io
import json
import os
import resource
import shutil
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest

import shardprep
from shardprep import reader
from shardprep.dataset import item_table
from shardprep.dataset.local_files import LocalFiles, read_index
from shardprep.dataset.manifest import load_manifest
from shardprep.dataset.open_dataset import open_dataset
from shardprep.dataset.schema import ANNOTATIONS, BOX, BOX_LABEL
from shardprep.errors import BuildError, DatasetError, RecordError
from shardprep.exporter import webdataset
from shardprep.exporter.export import LAYOUTS, Exported, export_dataset
from tests.support.annotated import HEIGHT, WIDTH, Marked, annotated, rewritten
from tests.support.builders import (
    StoppedError,
    Told,
    animals,
    build,
    tree,
    write,
    write_folder,
    zip_bytes,
)
from tests.support.command import error_of, run
from tests.support.examples import flipped
from tests.support.object_store import Bucket
from tests.support.processes import loaded, run_program
from tests.writer.faulty import GATE_STEP, QUICK_STEP


@pytest.fixture(name="marked", scope="module")
def _marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two splits with boxes and masks; do not change it."""
    return annotated(tmp_path_factory.mktemp("marked"), *ANNOTATIONS, shards=5)


@pytest.fixture(name="pets", scope="module")
def _pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with classes, and a box in every second image; do not change it."""
    folder, images = tmp_path_factory.mktemp("pets"), animals(24)
    source = write_folder(folder / "source", images)
    path = build(source, folder / "sets", name="pets", shards=2, size="24x24").path
    one = Marked(((0, 0, HEIGHT // 2, WIDTH // 2),), (1,))
    marked = {key: one if i % 2 else Marked() for i, key in enumerate(images)}
    return rewritten(path, (BOX, BOX_LABEL), marked)


def exported(dataset: str | Path, layout: str, out: Path, **options: Any) -> Exported:
    return export_dataset(open_dataset(dataset), layout, out, **{"watcher": Told(), **options})


def stored_images(files: dict[str, bytes], layout: str) -> list[bytes]:
    """Return the images in the files of an export, sorted."""
    found: list[bytes] = []
    for name, data in files.items():
        if layout in ("folder", "coco", "yolo") and name.endswith(".png") and "mask" not in name:
            found.append(data)
        elif name.endswith(".tar"):
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                members = {one.name: tar.extractfile(one) for one in tar}
            found += [file.read() for one, file in members.items()
                      if file and one.endswith(".png") and "mask" not in one]  # fmt: skip
        elif name.endswith(".parquet"):
            found += [one["bytes"] for one in pq.read_table(io.BytesIO(data))["image"].to_pylist()]
    return sorted(found)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_export_of_a_selection_has_its_records(
    tmp_path: Path, marked: Path, layout: Any
) -> None:
    some = reader.select(marked, "train+test")[::2]
    out = tmp_path / "some"
    done = shardprep.export(marked, to=layout, out=out, split=some)
    assert sum(done.splits.values()) == len(some)
    stored = reader.Dataset(marked, some, decode=False, as_supervised=False)
    wanted = sorted(stored[i]["image"] for i in range(len(stored)))
    assert stored_images(tree(out), layout) == wanted
    assert shardprep.export(marked, to=layout, out=out, split=some).was_there
    with pytest.raises(BuildError, match="contains another export"):
        shardprep.export(marked, to=layout, out=out, split=some[:1])


WAYS_TO_WRITE = ("webdataset", "parquet", "folder")
"""One layout for each module that writes shards."""


class StopInSecond(Told):
    """A watcher that ends an export in its second shard."""

    def __init__(self, dataset: Path) -> None:
        super().__init__()
        self.first_bytes = next(iter(load_manifest(dataset).shards.values())).num_bytes

    def advance(self, number: int, num_rejected: int = 0) -> None:
        super().advance(number, num_rejected)
        if self.done[-1] > self.first_bytes:
            raise StoppedError


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_interrupted_export_continues_after_its_last_whole_shard_and_a_second_run_does_nothing(
    tmp_path: Path, pets: Path, layout: str
) -> None:
    whole = exported(pets, layout, tmp_path / "whole")
    assert whole.num_new_shards == len(load_manifest(pets).shards)
    out = tmp_path / "out"
    with pytest.raises(StoppedError):
        exported(pets, layout, out, watcher=StopInSecond(pets))
    assert not out.exists()
    again = Told()
    done = exported(pets, layout, out, watcher=again)
    assert done.num_new_shards == whole.num_new_shards - 1
    assert again.done[-1] == again.total
    assert again.total is not None
    assert again.total < load_manifest(pets).totals.num_bytes
    assert tree(out) == tree(tmp_path / "whole")
    assert [path.name for path in tmp_path.iterdir() if ".incomplete" in path.name] == []
    assert done.num_bytes == sum(map(len, tree(out).values()))
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    done = exported(pets, layout, out)
    assert done.was_there
    assert done.splits == {name: s.num_records for name, s in load_manifest(pets).splits.items()}
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


@pytest.mark.thorough
def test_killed_before_any_change_of_the_disk_it_is_complete_or_absent(
    tmp_path: Path, marked: Path, request: pytest.FixtureRequest
) -> None:
    """Run again, it ends with the same bytes; so does one that replaces another export."""
    step = QUICK_STEP if request.config.getoption("--quick") else 3 * GATE_STEP
    code = """
        import json, sys
        from pathlib import Path
        from tests.exporter.faulty import kill_exports
        print(json.dumps(kill_exports(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))))
    """
    tried = json.loads(run_program(code, marked, tmp_path, step, framework="none"))
    assert tried.keys() == LAYOUTS.keys()
    assert min(tried.values()) >= 40 / step


def test_another_export_is_replaced_only_with_overwrite(tmp_path: Path, pets: Path) -> None:
    out = tmp_path / "out"
    exported(pets, "folder", out)
    before = tree(out)
    with pytest.raises(BuildError, match=r"another export; .* or add --overwrite"):
        exported(pets, "webdataset", out)
    with pytest.raises(StoppedError):
        exported(pets, "webdataset", out, watcher=StopInSecond(pets), overwrite=True)
    assert tree(out) == before, "it stays until the new one is complete"
    exported(pets, "webdataset", out, overwrite=True)
    exported(pets, "webdataset", tmp_path / "fresh")
    assert tree(out) == tree(tmp_path / "fresh")


def test_only_an_export_is_replaced(tmp_path: Path, pets: Path) -> None:
    for place in (pets, pets.parent, write(tmp_path / "file", b"x")):
        before = tree(pets.parent), tree(tmp_path)
        with pytest.raises(BuildError, match="is not an export"):
            exported(pets, "folder", place, overwrite=True)
        assert (tree(pets.parent), tree(tmp_path)) == before
    write(tmp_path / "out.incomplete" / "mine.txt", b"x")
    with pytest.raises(BuildError, match=r"out\.incomplete: .* is not an export"):
        exported(pets, "folder", tmp_path / "out", overwrite=True)
    assert (tmp_path / "out.incomplete" / "mine.txt").exists()


@pytest.mark.parametrize("layout", WAYS_TO_WRITE)
def test_damaged_records_end_an_export_and_are_named(
    tmp_path: Path, pets: Path, layout: str
) -> None:
    pets = shutil.copytree(pets, tmp_path / "pets")
    manifest = load_manifest(pets)
    shard = next(iter(manifest.shards.values()))
    frames = read_index(pets, shard)
    path = pets / shard.name
    data = path.read_bytes()
    for number, at in ((2, 100), (5, 3)):  # in the image, in the length of the record
        data = flipped(data, 8 * (frames[number, 0].item() + at))
    path.write_bytes(data)
    with pytest.raises(RecordError) as found:
        exported(pets, layout, tmp_path / "out")
    said = str(found.value)
    assert said.startswith(f"{path}: damaged records 2 (train/")
    assert "), 5 (train/" in said
    assert said.endswith(f"run `shardprep verify {pets}`")
    assert not (tmp_path / "out").exists()


def test_a_truncated_or_missing_shard_is_named(tmp_path: Path, pets: Path) -> None:
    pets = shutil.copytree(pets, tmp_path / "pets")
    path = next(pets.glob("*.tfrecord*"))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DatasetError, match=f"^{path}: has .* the manifest says"):
        exported(pets, "webdataset", tmp_path / "out")
    path.unlink()
    with pytest.raises(DatasetError, match=f"^{path}: is missing"):
        exported(pets, "webdataset", tmp_path / "out")


def test_a_shard_that_is_cut_while_it_is_read_ends_an_export(
    tmp_path: Path, pets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = LocalFiles.blocks
    monkeypatch.setattr(LocalFiles, "blocks", lambda *shard: (b[:-10] for b in whole(*shard)))
    with pytest.raises(RecordError, match=r"damaged record \d+ \(.*\): "):
        exported(pets, "webdataset", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_tars_do_not_depend_on_how_many_images_are_written_at_a_time(
    tmp_path: Path, marked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported(marked, "webdataset", tmp_path / "whole")
    monkeypatch.setattr(webdataset, "_BATCH_BYTES", 1)
    exported(marked, "webdataset", tmp_path / "apart")
    assert tree(tmp_path / "apart") == tree(tmp_path / "whole")


def test_free_space_is_checked_before_anything_is_written(
    tmp_path: Path, pets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(BuildError, match=r"kB are needed .*; free some space"):
        exported(pets, "folder", tmp_path / "out")
    assert not [name for name in tree(tmp_path / "out.incomplete") if name.endswith(".jpg")]


@pytest.mark.parametrize("layout", WAYS_TO_WRITE)
def test_a_full_disk_is_an_error_of_one_line_and_the_export_continues(
    tmp_path: Path, pets: Path, layout: str
) -> None:
    """A limit on the size of files fails writes in the same way as a full disk."""
    out, limits = tmp_path / "out", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        with pytest.raises(BuildError, match=r"cannot be written \(File too large\); the finished"):
            exported(pets, layout, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not out.exists()
    exported(pets, layout, out)
    exported(pets, layout, tmp_path / "whole")
    assert tree(out) == tree(tmp_path / "whole")


def test_a_dataset_in_object_storage_gives_the_same_export(
    bucket: Bucket, tmp_path: Path, pets: Path
) -> None:
    for name, data in tree(pets).items():
        bucket.put(f"sets/pets/1.0.0/{name}", data)
    for layout in ("webdataset", "coco"):
        here = exported(pets, layout, tmp_path / "here" / layout).path
        there = exported(f"{bucket.url}/sets", layout, tmp_path / "there" / layout).path
        assert tree(there) == tree(here)


def test_an_error_of_the_command_is_one_line(tmp_path: Path) -> None:
    write(tmp_path / "pets.zip", zip_bytes(animals(8)))
    assert run("build", "pets.zip", "--size", "16x16", cwd=tmp_path).returncode == 0
    assert "'mds' is not one of webdataset" in error_of(
        run("export", "--to", "mds", cwd=tmp_path), 2
    )
    assert "give either --to or --croissant" in error_of(run("export", cwd=tmp_path), 2)
    there = ("export", "--to", "folder", "--out", "s3://bucket/x")
    assert "s3://bucket/x: is an address" in error_of(run(*there, cwd=tmp_path), 2)
    done = run("export", "--to", "folder", cwd=tmp_path)
    assert done.stdout.splitlines()[0] == "exports/pets-1.0.0-folder"
    assert "already exists" in run("export", "--to", "folder", cwd=tmp_path).stdout
    (tmp_path / "exports/pets-1.0.0-webdataset").mkdir()
    assert run("export", "--to", "webdataset", cwd=tmp_path).returncode == 0, "an empty folder"
    dots = run("export", "--to", "folder", "--out", ".", cwd=tmp_path)
    assert "is not an export" in error_of(dots, 1)


@pytest.mark.parametrize("layout", WAYS_TO_WRITE)
def test_a_shard_that_cannot_be_synced_ends_the_export_and_the_next_run_continues(
    tmp_path: Path, pets: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each shard is synced while the next one is written."""
    whole = tree(exported(pets, layout, tmp_path / "whole").path)
    synced: list[object] = []
    real = {name: getattr(os, name) for name in ("fsync", "sync")}

    def failing(name: str) -> Callable[..., None]:
        def sync(*descriptor: int) -> None:
            if threading.current_thread() is not threading.main_thread():
                synced.append(descriptor)
                if len(synced) > fails_behind:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            real[name](*descriptor)

        return sync

    for name in real:
        monkeypatch.setattr(os, name, failing(name))
    for fails_behind in (0, 1, 2):
        synced.clear()
        out = tmp_path / f"out{fails_behind}"
        with pytest.raises(BuildError, match=r"cannot be written \(Input/output error\)"):
            exported(pets, layout, out)
        assert not out.exists()
        fails_behind = 1 << 20  # noqa: PLW2901 - the disk is well again
        assert tree(exported(pets, layout, out).path) == whole


def test_the_items_of_a_selection_are_read_once(
    tmp_path: Path, marked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = mock.Mock(side_effect=item_table.read_items)
    monkeypatch.setattr(item_table, "read_items", reads)
    shardprep.export(marked, to="webdataset", out=tmp_path / "some", split="train[:50%]")
    assert reads.call_count == 1


@pytest.mark.thorough
def test_an_export_imports_what_its_layout_needs() -> None:
    assert not loaded("import shardprep.api.transfers") & {"PIL", "yaml", "pycocotools"}
