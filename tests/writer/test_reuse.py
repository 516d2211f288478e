"""A build that copies the images of another dataset makes the bytes of one that does not.

The oracle is the same build without it, and the number of images that were processed.
"""

import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardprep.api.json_types import BuildJson
from shardprep.catalog.items import Item
from shardprep.dataset.manifest import load_manifest
from shardprep.dataset.open_dataset import open_dataset
from shardprep.errors import DatasetError, StorageError
from shardprep.image.process import ProcessedImage, ordinary_placement, process_image
from shardprep.image.spec import ImageSpec
from shardprep.processes import WorkerLimits
from shardprep.source.byte_range import PlainExtent
from shardprep.storage.folder import LocalFolder
from shardprep.storage.regular_file import sha256_of
from shardprep.writer.chunk import EncodedChunk
from shardprep.writer.engine.job import ShardJob
from shardprep.writer.finalize import BuildResult
from shardprep.writer.plan.build_plan import recorded_recipe
from shardprep.writer.plan.fingerprint import versions
from shardprep.writer.plan.shard_plan import plan_shards
from shardprep.writer.record_copier import StoredRecords
from shardprep.writer.reuse import open_old_dataset
from shardprep.writer.workspace.files import Folders
from tests.support.annotated import outlined
from tests.support.builders import (
    Quiet,
    animals,
    build,
    build_part,
    finalize,
    flip_bit,
    in_process,
    jpeg,
    png,
    tree,
    write,
    write_folder,
    zip_bytes,
)
from tests.support.command import error_of, ran, run
from tests.support.json_page import printed
from tests.support.object_store import Bucket, Proxy
from tests.support.odd_images import heic

KEYS: dict[str, Any] = {"shards": 3, "size": "32x32", "labels": "prefix", "version": "1.1.0"}
IMAGES = {**animals(20), "train/cat.90.jpg": b"\xff\xd8\xff no more", "train/dog.91.jpg": png()}
"""21 that are written and one that is rejected; a PNG among them."""


@pytest.fixture(name="old", scope="module")
def _old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = write(tmp_path_factory.mktemp("old") / "pets.zip", zip_bytes(IMAGES))
    return build(source, source.parent / "out", **{**KEYS, "version": "1.0.0"}).path


@pytest.fixture(name="fresh", scope="module")
def _fresh(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files of a build of `added()` without reuse."""
    source = write(tmp_path_factory.mktemp("fresh") / "pets.zip", zip_bytes(added()))
    return tree(build(source, source.parent / "out", **KEYS).path)


@pytest.fixture(name="processed")
def _processed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    seen: list[bytes] = []

    def process(data: bytes, spec: ImageSpec) -> Any:
        seen.append(data)
        return process_image(data, spec)

    monkeypatch.setattr("shardprep.writer.chunk_encoder.process_image", process)
    return seen


def reused_added(folder: Path, old: Path | str, fresh: dict[str, bytes]) -> int:
    """Build `added()` with the old dataset, check the bytes and return the number of copies."""
    source = write(folder / "pets.zip", zip_bytes(added()))
    result = build(source, folder / "out", reuse=old, **KEYS)
    assert tree(result.path) == fresh
    return result.num_copied


def reused(folder: Path, images: dict[str, bytes], old: Path | str, **keys: Any) -> BuildResult:
    """Build images with and without the old dataset; see that the bytes are the same."""
    source = write(folder / "pets.zip", zip_bytes(images))
    fresh = build(source, folder / "fresh", **{**KEYS, **keys})
    result = build(source, folder / "out", reuse=old, **{**KEYS, **keys})
    assert tree(folder / "out") == tree(folder / "fresh")
    assert fresh.num_copied == 0
    assert result.num_new_items == fresh.num_new_items
    return result


def added() -> dict[str, bytes]:
    return {**IMAGES, **{f"train/cat.{i}.jpg": jpeg(seed=500 + i) for i in range(50, 54)}}


def removed() -> dict[str, bytes]:
    return {key: data for number, (key, data) in enumerate(IMAGES.items()) if number % 4}


def moved() -> dict[str, bytes]:
    return {f"v2/{key[6:9]}/{key.partition('/')[2]}": data for key, data in IMAGES.items()}


def other_bytes() -> dict[str, bytes]:
    """Return the images with two changed ones, one of them with an equal number of bytes."""
    images = dict(IMAGES)
    images["train/cat.3.jpg"] = jpeg(seed=77)
    data = bytearray(images["train/dog.3.jpg"])
    data[data.index(b"JFIF") + 12] ^= 1  # the density, which nobody reads
    return {**images, "train/dog.3.jpg": bytes(data)}


def with_table() -> dict[str, bytes]:
    rows = [f"{key},{('wolf', 'cat')['cat' in key]},{i}.5" for i, key in enumerate(IMAGES)]
    return {**IMAGES, "labels.csv": "\n".join(["id,label,age", *rows]).encode()}


CHANGES: dict[str, tuple[Callable[[], dict[str, bytes]], dict[str, Any], int]] = {
    "nothing": (lambda: IMAGES, {}, 21),
    "additions": (added, {}, 21),
    "removals": (removed, {}, 16),
    "moves": (moved, {}, 21),
    "other bytes": (other_bytes, {}, 19),
    "class order": (lambda: IMAGES, {"classes": "dog,cat"}, 21),
    "labels of a table, and a column": (
        with_table,
        {"labels": "csv:labels.csv:id:label", "columns": "age"},
        21,
    ),
    "no labels": (lambda: IMAGES, {"labels": "none"}, 21),
    "another split": (lambda: IMAGES, {"split": "train=0.5,test=0.5"}, 21),
    "more shards": (lambda: IMAGES, {"shards": 11}, 21),
    "another seed and name": (lambda: IMAGES, {"seed": 3, "name": "beasts"}, 21),
    "another quality": (lambda: IMAGES, {"quality": 80}, 0),
    "another size": (lambda: IMAGES, {"size": "16x32"}, 0),
    "a limit": (lambda: IMAGES, {"min_side": 41, "max_rejected": "50%"}, 0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_bytes_equal_those_of_a_fresh_build(
    change: str, old: Path, tmp_path: Path, processed: list[bytes]
) -> None:
    images, keys, num_copied = CHANGES[change]
    result = reused(tmp_path, images(), old, **keys)
    assert result.num_copied == num_copied
    num_fresh = result.manifest.totals.num_written + result.manifest.totals.num_rejected
    assert len(processed) == num_fresh + num_fresh - num_copied


@pytest.mark.parametrize(
    "keys",
    [
        {"format": "keep", "size": "none", "fit": "none"},
        {"format": "png", "fit": "within"},
        {"format": "raw"},
    ],
)
def test_images_of_any_size_and_format_are_copied(keys: dict[str, Any], tmp_path: Path) -> None:
    source = write(tmp_path / "a/pets.zip", zip_bytes(IMAGES))
    old = build(source, tmp_path / "old", **{**KEYS, **keys}).path
    assert reused(tmp_path, added(), old, **keys, classes="dog,cat").num_copied == 21


def cut(shard: Path) -> None:
    shard.write_bytes(shard.read_bytes()[:-10])


def link(shard: Path) -> None:
    shard.unlink()
    shard.symlink_to("nowhere")


def of_another(shard: Path) -> None:
    """Replace a shard by one whose records are sound, and of other images."""
    source = write(shard.parent / "x/pets.zip", zip_bytes(animals(20, folder="other/")))
    other = build(source, shard.parent / "x", **{**KEYS, "version": "1.0.0"}).path
    shutil.copy(other / shard.name, shard)
    shutil.rmtree(shard.parent / "x")


DAMAGES: dict[str, tuple[Callable[[Path], object], int]] = {
    "a bit": (flip_bit, 1),
    "its end": (cut, 1),
    "all of it": (Path.unlink, 7),
    "a link to nowhere": (link, 7),
    "another shard": (of_another, 7),
}
"""Name → what befalls the second shard, which has 7 records, and the number of those lost."""


@pytest.mark.parametrize("damage", DAMAGES)
def test_images_with_damaged_records_are_encoded(
    damage: str, old: Path, fresh: dict[str, bytes], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(old, tmp_path / "old"))
    work, num_lost = DAMAGES[damage]
    work(next(copy.glob("*-00001-of-00003")))
    assert reused_added(tmp_path, copy, fresh) == 21 - num_lost


def test_adjacent_records_are_one_run_and_a_lost_one_costs_no_other(
    old: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(old, tmp_path / "old"))
    rows = open_old_dataset(open_dataset(copy)).rows
    names = rows["file"].cast(pa.string())
    rows = rows.filter(pc.match_substring(names, "-00001-of-")).sort_by("offset")
    records = StoredRecords(rows, have_keys=True)
    (run,) = records.runs()
    assert None not in records.read(run.start, run.stop)
    cut(next(copy.glob("*-00001-of-00003")))
    lost = [one is None for one in records.read(run.start, run.stop)]
    assert lost == [False] * 6 + [True]


@pytest.mark.parametrize("length", [-100, 0, 15, 2**40])
def test_an_impossible_record_length_costs_only_that_record(
    length: int, old: Path, fresh: dict[str, bytes], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(old, tmp_path / "old"))
    table = pq.read_table(copy / "items.parquet")
    lengths = table["length"].to_pylist()
    lengths[5] = length
    place = table.schema.get_field_index("length")
    pq.write_table(table.set_column(place, table.schema.field(place), [lengths]), copy / "i")
    (copy / "i").replace(copy / "items.parquet")
    manifest = load_manifest(copy)
    manifest.files["items.parquet"] = sha256_of(copy / "items.parquet")
    (copy / "manifest.json").write_text(manifest.dumps())
    assert reused_added(tmp_path, copy, fresh) == 20


def test_a_dataset_may_be_reused_in_its_own_place(old: Path, tmp_path: Path) -> None:
    there = shutil.copytree(old, tmp_path / "out/pets/1.0.0")
    source = write(tmp_path / "pets.zip", zip_bytes(added()))
    keys = {**KEYS, "version": "1.0.0"}
    fresh = tree(build(source, tmp_path / "fresh", **keys).path)
    result = build(source, tmp_path / "out", reuse=there, replace=True, **keys)
    assert result.num_copied == 21
    assert tree(tmp_path / "out/pets") == {f"1.0.0/{name}": data for name, data in fresh.items()}


def test_the_old_dataset_is_only_read(old: Path, fresh: dict[str, bytes], tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in old.rglob("*")}
    assert reused_added(tmp_path, old, fresh) == 21
    assert {path: path.stat().st_mtime_ns for path in old.rglob("*")} == before


def test_options_and_versions_that_differ_are_named(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "pets.zip", zip_bytes(IMAGES))
    watcher = Quiet()
    build(source, tmp_path / "a", reuse=old, watcher=watcher, **{**KEYS, "quality": 80})
    line = f"no image is copied from {old}, built with other quality (90, now 80)"
    assert watcher.lines[-1] == line
    monkeypatch.setattr("shardprep.writer.reuse.versions", lambda: {"libjpeg_turbo": "99"})
    result = build(source, tmp_path / "b", reuse=old, watcher=watcher, **KEYS)
    assert "libjpeg_turbo (" in watcher.lines[-1]
    assert result.num_copied == 0


def test_decoders_count_where_images_needed_them(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = {"a/1.heic": heic(Image.new("RGB", (64, 64))), "b/2.png": png()}
    source = write(tmp_path / "pets.zip", zip_bytes(photos))
    with_heic = build(source, tmp_path / "out", size="32x32")
    assert with_heic.manifest.totals.num_written == 2
    newer = {**versions(), "pydicom": "99", "pillow-heif": "99"}
    monkeypatch.setattr("shardprep.writer.reuse.versions", lambda: newer)
    spec = recorded_recipe(with_heic.manifest, "-", "-").image_spec
    assert open_old_dataset(open_dataset(old)).changes(spec) == []
    (change,) = open_old_dataset(open_dataset(with_heic.path)).changes(spec)
    assert change.startswith("pillow-heif (")


def test_an_interrupted_build_is_resumed_with_the_same_bytes(
    old: Path, fresh: dict[str, bytes], tmp_path: Path
) -> None:
    source = write(tmp_path / "pets.zip", zip_bytes(added()))

    def engine(*arguments: Any) -> Iterator[EncodedChunk]:
        for number, chunk in enumerate(in_process(*arguments)):
            if number == 17:
                raise KeyboardInterrupt
            yield chunk

    ways: list[dict[str, Any]] = [{"reuse": old}, {}]
    for more in ways:
        out = tmp_path / f"out{len(more)}"
        with pytest.raises(KeyboardInterrupt):
            build(source, out, engine=engine, reuse=old, **KEYS)
        result = build(source, out, **more, **KEYS)
        assert 0 < result.num_new_items < 26
        assert bool(result.num_copied) is bool(more)
        assert tree(result.path) == fresh


def test_parts_copy_images(old: Path, fresh: dict[str, bytes], tmp_path: Path) -> None:
    source = write(tmp_path / "pets.zip", zip_bytes(added()))
    parts = [
        build_part(source, tmp_path / "out", part, reuse=old, **KEYS) for part in ("1/2", "2/2")
    ]
    assert sum(part.num_copied for part in parts) == 21
    assert tree(finalize(tmp_path / "out").path) == fresh


def test_a_build_ends_if_the_old_dataset_is_replaced_meanwhile(old: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(old, tmp_path / "old")
    source = write(tmp_path / "pets.zip", zip_bytes(added()))

    def engine(*arguments: Any) -> Iterator[EncodedChunk]:
        running = in_process(*arguments)
        yield next(running)
        (copy / "manifest.json").write_text("{}")
        yield from running

    with pytest.raises(StorageError, match="old: has changed since it was found"):
        build(source, tmp_path / "out", reuse=copy, engine=engine, **KEYS)
    assert not list((tmp_path / "out").glob("pets/1.1.0"))


def test_a_damaged_item_table_is_refused(old: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(old, tmp_path / "old"))
    other = next(old.parent.parent.glob("*/1.0.0/items.parquet"))
    data = bytearray(other.read_bytes())
    (copy / "items.parquet").write_bytes(data[:-1])
    with pytest.raises(DatasetError):
        open_old_dataset(open_dataset(copy))
    (copy / "items.parquet").unlink()
    with pytest.raises(DatasetError, match="is missing"):
        open_old_dataset(open_dataset(copy))


@pytest.mark.thorough
def test_datasets_in_object_storage_are_read_by_ranges(
    old: Path, fresh: dict[str, bytes], tmp_path: Path, bucket: Bucket, proxy: Proxy
) -> None:
    for name, data in tree(old).items():
        bucket.put(f"pets/1.0.0/{name}", data)
    assert reused_added(tmp_path, f"{bucket.url}/pets", fresh) == 21
    shards = [
        one for one in proxy.requests if ".tfrecord-" in one.path and "/index/" not in one.path
    ]
    assert shards
    assert all("range" in {name.lower() for name in one.headers} for one in shards)


def test_boxes_are_placed_anew_around_copied_images(tmp_path: Path, processed: list[bytes]) -> None:
    source = write_folder(tmp_path / "shapes", outlined(animals(12)))
    keys: dict[str, Any] = {"shards": 2, "size": "40x40", "boxes": "coco", "name": "shapes"}
    old = build(source, tmp_path / "old", **keys).path
    num_images = len(processed)
    document = next(source.rglob("*.json"))
    changed = json.loads(document.read_text())
    changed["annotations"] = changed["annotations"][:-1]
    changed["annotations"][0]["bbox"][2] /= 2
    document.write_text(json.dumps(changed))
    del processed[:]
    runs: dict[str, dict[str, Any]] = {"1.1.0": {}, "1.2.0": {"masks": "coco"}}
    for version, more in runs.items():
        fresh = build(source, tmp_path / "fresh", version=version, **keys, **more)
        del processed[:]
        result = build(source, tmp_path / "out", version=version, reuse=old, **keys, **more)
        assert tree(result.path) == tree(fresh.path)
        assert (result.num_copied, processed) == (num_images, [])


@given(
    st.integers(1, 70), st.integers(1, 70), st.integers(1, 40), st.integers(1, 40),
    st.sampled_from(["crop", "pad", "stretch", "within", "none"]),
    st.sampled_from(["jpeg", "png", "keep"]), st.sampled_from([jpeg, png]),
)  # fmt: skip
def test_a_placement_from_the_header_equals_that_of_the_decoded_image(
    height: int, width: int, to_height: int, to_width: int, fit: Any, form: Any, draw: Any
) -> None:
    data = draw(height, width)
    size = None if fit == "none" else (to_height, to_width)
    spec = ImageSpec(size=size, fit=fit, format=form)
    found = ordinary_placement(data, spec)
    made = process_image(data, spec)
    assert isinstance(made, ProcessedImage)
    assert found == (None if draw is png else made.placement)


def test_chunks_travel_with_their_own_old_rows_alone(old: Path) -> None:
    rows = pa.concat_tables([open_old_dataset(open_dataset(old)).rows] * 50)
    items = tuple(Item(f"{i}", PlainExtent("none", 0, 7), "train", 0) for i in range(len(rows)))
    shard = plan_shards("set", items, 1, 0, 0)[0]._replace(old=rows)
    encoder: Any = None
    job = ShardJob(Folders(LocalFolder(old), LocalFolder(old)), encoder, WorkerLimits(), 512, 10)
    first = next(job.tasks(shard))
    arrived = pickle.loads(pickle.dumps(first)).old
    assert arrived.to_pylist() == rows.slice(0, len(first.items)).to_pylist()
    assert len(pickle.dumps(first.old)) < len(pickle.dumps(rows)) / 20


def test_the_command_says_what_was_copied(old: Path, tmp_path: Path) -> None:
    shutil.copytree(old.parent, tmp_path / "tfrecords/pets")
    write(tmp_path / "pets.zip", zip_bytes(added()))
    options = ("pets.zip", "--size", "32x32", "--labels", "prefix", "--version", "1.1.0")
    reuse = ("--reuse", "tfrecords/pets")
    planned = run("build", *options, *reuse, "--dry-run", cwd=tmp_path)
    assert "21 of 26 images can be copied from tfrecords/pets/1.0.0" in planned.stderr
    assert "it stores" not in planned.stderr
    unlabelled = run("build", *options, "--labels", "none", *reuse, "--dry-run", cwd=tmp_path)
    assert "; it stores label, but this build does not" in unlabelled.stderr
    done = run("build", *options, *reuse, cwd=tmp_path)
    assert "26 images (21 copied, 5 encoded) in " in done.stdout
    options = (*options[:-1], "1.2.0")
    found = printed(run("build", *options, *reuse, "--json", cwd=tmp_path).stdout, BuildJson)
    assert (found["num_copied"], found["num_new_items"]) == (25, 26)
    assert error_of(run("build", *options, "--reuse", "nowhere", cwd=tmp_path), 1)


def test_relabelled_images_stay_in_their_splits(tmp_path: Path) -> None:
    """Ratios divide the labels before `relabel`; with other labels, moves are counted."""
    source = write(tmp_path / "pets.zip", zip_bytes(animals(40)))
    keys = {**KEYS, "split": "train=0.7,validation=0.3"}
    old = build(source, tmp_path / "out", **{**keys, "version": "1.0.0"}).path
    rows = pq.read_table(old / "items.parquet").to_pylist()
    before = {row["key"]: row["split"] for row in rows}
    wrong = [key for key in before if "cat" in key][:5]
    fixes = write(
        tmp_path / "fixes.csv", "\n".join(["key,label", *(f"{k},dog" for k in wrong)]).encode()
    )
    watcher = Quiet()
    new = build(
        source, tmp_path / "out", reuse=old, watcher=watcher, relabel=f"csv:{fixes}", **keys
    ).path
    after = {row["key"]: row["split"] for row in pq.read_table(new / "items.parquet").to_pylist()}
    assert after == before
    assert "change their split" not in " ".join(watcher.lines)
    assert len(load_manifest(new).labels.names) == 2

    labels = "".join(f"{k},{'dog' if k in wrong or 'dog' in k else 'cat'}\n" for k in before)
    table = write(tmp_path / "all.csv", f"key,label\n{labels}".encode())
    keys = {**keys, "labels": f"csv:{table}:key:label", "version": "1.2.0"}
    other = build(source, tmp_path / "out", reuse=old, watcher=watcher, **keys).path
    rows = pq.read_table(other / "items.parquet").to_pylist()
    moved = [(before[r["key"]], r["split"]) for r in rows if before[r["key"]] != r["split"]]
    assert moved
    line = next(one for one in watcher.lines if "change their split" in one)
    assert f"{len(moved)} images change their split: " in line
    assert f"{moved.count(('train', 'validation'))} from train to validation" in line


def test_options_that_the_old_build_had_are_named_before_the_build(
    old: Path, tmp_path: Path
) -> None:
    source = write(tmp_path / "pets.zip", zip_bytes(IMAGES))
    arguments = "build", source, "--reuse", old, "--shards", 3, "--size", 32, "--version", "1.1.0"
    for dry in ((), ("--dry-run",)):
        done = ran(*arguments, *dry, cwd=tmp_path)
        line = next(one for one in done.stderr.splitlines() if "--reuse: " in one)
        assert line.endswith("was built with other options: labels (prefix, now auto)")
    assert "--reuse: " not in run(*arguments, "--labels", "prefix", cwd=tmp_path).stderr
