"""A repacked dataset is mostly the dataset that a build of the same images would have written.

The oracle is that build: its shards and item table are compared byte by byte.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import shardprep
from shardprep import reader
from shardprep.api.json_types import BuildJson
from shardprep.dataset import example, tfrecord
from shardprep.dataset.item_table import read_items
from shardprep.dataset.manifest import load_manifest
from shardprep.dataset.open_dataset import open_dataset
from shardprep.recipe.recipe import make_recipe
from shardprep.writer.parents import open_parent
from shardprep.writer.repack import repack_dataset
from tests.support.annotated import outlined
from tests.support.builders import (
    Quiet,
    animals,
    build,
    flip_bit,
    jpeg,
    png,
    tree,
    unsigned,
    write,
    write_folder,
    zip_bytes,
)
from tests.support.command import error_of, ran, run
from tests.support.json_page import printed
from tests.support.object_store import Bucket
from tests.writer.records import records

KEYS: dict[str, Any] = {"shards": 3, "size": "32x32", "labels": "prefix", "name": "pets"}
BAD = {"train/cat.90.jpg": b"\xff\xd8\xff no more", "notes.txt": b"so"}
IMAGES = {**animals(40), **BAD, "train/dog.91.jpg": png()}
"""41 that are written, one that is rejected, and a file that is skipped."""


def made(folder: Path, images: dict[str, bytes], **keys: Any) -> Path:
    source = write(folder / "source.zip", zip_bytes(images))
    return build(source, folder / "out", max_rejected=1.0, **{**KEYS, **keys}).path


@pytest.fixture(name="pets", scope="module")
def _pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("pets"), IMAGES)


@pytest.mark.parametrize("shards", [1, 11])
def test_a_repacked_dataset_equals_a_build_with_this_number_of_shards(
    shards: int, pets: Path, tmp_path: Path
) -> None:
    fresh = made(tmp_path, IMAGES, shards=shards)
    again = shardprep.repack(pets, tmp_path / "again", shards=shards)
    assert unsigned(again.path) == unsigned(fresh)
    one, two = load_manifest(fresh), again.manifest
    same = ("name", "version", "seed", "labels", "totals", "splits", "files")
    assert [getattr(one, field) for field in same] == [getattr(two, field) for field in same]
    assert two.fingerprint.inputs == {"1: pets 1.0.0": load_manifest(pets).sha256}
    assert not shardprep.verify(again.path, decode=True).problems
    assert shardprep.repack(pets, tmp_path / "again", shards=shards).was_there


def test_another_seed_shuffles_as_a_build_does(pets: Path, tmp_path: Path) -> None:
    fresh = made(tmp_path, IMAGES, seed=9)
    again = shardprep.repack(pets, tmp_path / "again", shards=3, seed=9)
    assert unsigned(again.path) == unsigned(fresh)


def test_datasets_are_merged_as_if_they_had_been_one_source(tmp_path: Path) -> None:
    """Where classes come in the same order; one has a class that the other lacks."""
    images = {f"{kind}/{i}.jpg": jpeg(seed=i) for kind in "abc" for i in range(9)}
    one = {key: data for key, data in images.items() if key[0] in "ab" and key[2] in "01234"}
    two = {key: data for key, data in images.items() if key not in one}
    two = {key: two[key] for key in sorted(two, reverse=True)}
    keys = {"labels": "folder"}
    parents = [
        made(tmp_path / "1", one, **keys),
        made(tmp_path / "2", two, **keys, version="2.0.0", classes="c,b,a"),
    ]
    fresh = made(tmp_path / "0", images, **keys, version="3.0.0")
    merged = shardprep.repack(parents, tmp_path / "out", shards=3, version="3.0.0")
    assert unsigned(merged.path) == unsigned(fresh)
    assert merged.manifest.totals == load_manifest(fresh).totals
    assert not shardprep.verify(merged.path).problems


def test_keys_that_collide_get_the_name_of_their_dataset(pets: Path, tmp_path: Path) -> None:
    other = {**animals(4), "train/wolf.1.jpg": jpeg(seed=50), "notes.txt": b"no"}
    beasts = made(tmp_path, other, name="beasts", shards=1)
    merged = shardprep.repack([pets, beasts], tmp_path / "out", name="all", shards=2)
    found = records(merged.path)
    both = {"train/cat.0.jpg", "train/cat.1.jpg", "train/dog.0.jpg", "train/dog.1.jpg"}
    assert {key for key in found if "/" not in key[6:]} == {*records(pets)} - both | {
        "train/wolf.1.jpg"
    }
    assert {key for key in found if key.startswith(("pets/", "beasts/"))} == {
        f"{name}/{key}" for name in ("pets", "beasts") for key in both
    }
    names = merged.manifest.labels.names
    assert names == ("cat", "dog", "wolf")
    assert {key: names[one["label"][0]] for key, one in found.items()} == {
        key: key.split("/")[-1].split(".")[0] for key in found
    }
    images = {**records(pets), **records(beasts)}
    assert found["train/wolf.1.jpg"]["image"] == images["train/wolf.1.jpg"]["image"]
    totals = merged.manifest.totals
    assert (totals.num_written, totals.num_rejected, totals.num_skipped) == (46, 1, 2)
    keys = read_items(merged.path / "items.parquet")["key"].to_pylist()
    assert {"pets/notes.txt", "beasts/notes.txt", "train/cat.90.jpg"} <= {*keys}
    assert not shardprep.verify(merged.path, decode=True).problems


def test_keys_of_datasets_with_one_name_get_its_version_or_a_number(
    pets: Path, tmp_path: Path
) -> None:
    second = made(tmp_path / "2", animals(4), version="2.0.0", shards=1)
    third = made(tmp_path / "3", animals(2), shards=1)
    found = shardprep.repack([pets, second], tmp_path / "a", shards=1)
    assert {"pets-1.0.0/train/cat.0.jpg", "pets-2.0.0/train/cat.0.jpg"} <= {*records(found.path)}
    found = shardprep.repack([pets, third], tmp_path / "b", shards=1)
    assert {"pets-1.0.0-1/train/cat.0.jpg", "pets-1.0.0-2/train/cat.0.jpg"} <= {
        *records(found.path)
    }


def test_some_of_the_records_are_taken(tmp_path: Path) -> None:
    whole = made(tmp_path, IMAGES, split="train=0.7,test=0.3")
    order = {
        split: [
            features_of["image/filename"][0].decode()
            for shard in load_manifest(whole).splits[split].shards
            for features_of in features_in(whole / shard.name)
        ]
        for split in ("train", "test")
    }
    some = shardprep.repack(whole, tmp_path / "some", split="train[:10]+test", version="2.0.0")
    found = read_items(some.path / "items.parquet")
    assert {*found["key"].to_pylist()} == {*order["train"][:10], *order["test"]}
    assert {*found["status"].to_pylist()} == {"written"}
    assert some.manifest.splits["train"].num_records == 10
    selection = shardprep.reader.select(whole, "train")[[1, 3]]
    two = shardprep.repack(whole, tmp_path / "two", split=selection)
    assert {*records(two.path)} == {order["train"][1], order["train"][3]}
    assert not shardprep.verify(two.path).problems
    with pytest.raises(shardprep.DatasetError, match="from another dataset or version"):
        shardprep.repack(two.path, tmp_path / "three", split=selection)


def features_in(shard: Path) -> list[dict[str, Any]]:
    with shard.open("rb") as file:
        found: list[Any] = [
            example.decode(one.payload) for one in tfrecord.read_records(file, shard.name)
        ]
    return found


def test_objects_and_masks_are_carried(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"boxes": "coco", "masks": "coco", "size": "40x40", "shards": 2}
    source = write_folder(tmp_path / "shapes", outlined(animals(12)))
    whole = build(source, tmp_path / "out", **keys)
    fresh = build(source, tmp_path / "out", **{**keys, "shards": 5, "version": "2.0.0"})
    again = shardprep.repack(whole.path, tmp_path / "again", shards=5, version="2.0.0")
    assert unsigned(again.path) == unsigned(fresh.path)
    assert again.manifest.annotations == fresh.manifest.annotations


def test_classes_of_objects_are_united_also_in_another_size(tmp_path: Path) -> None:
    folders = []
    for number, names in enumerate((("cell", "dust"), ("hair", "dust"))):
        images = outlined({f"{number}/{i}.jpg": jpeg(seed=i) for i in range(6)})
        document = json.loads(images["annotations.json"])
        for category, name in zip(document["categories"], names, strict=True):
            category["name"] = name
        images["annotations.json"] = json.dumps(document).encode()
        source = write_folder(tmp_path / f"s{number}", images)
        keys: dict[str, Any] = {"boxes": "coco", "masks": "coco", "instances": True}
        keys |= {"size": "40x40", "shards": 1, "name": f"s{number}"}
        folders.append(build(source, tmp_path / "out", **keys).path)
    merged = shardprep.repack(folders, tmp_path / "m", name="both", shards=2)
    small = shardprep.repack(folders, tmp_path / "n", name="both", size="20x20", workers=1)
    found, resized = records(merged.path), records(small.path)
    assert found.keys() == resized.keys()
    for number, folder in enumerate(folders):
        for key, one in records(folder).items():
            new = {0: 0, 1: 1} if number == 0 else {0: 2, 1: 1}
            labels = [new[label] for label in one["objects/label"]]
            assert found[key]["objects/label"] == resized[key]["objects/label"] == labels
            assert found[key]["objects/bbox"] == one["objects/bbox"]
            assert found[key]["image"] == one["image"]
    for made_of_both in (merged, small):
        assert not shardprep.verify(made_of_both.path, decode=True, workers=1).problems


def damage(folder: Path) -> None:
    flip_bit(next(folder.glob("*-00001-of-00003")))


REFUSED: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "another size": (
        lambda folder: {"datasets": [made(folder, IMAGES, size="16x16", name="small")]},
        r"its features differ .*image: shape 32x32x3, now 16x16x3",
    ),
    "another fit": (
        lambda folder: {"datasets": [made(folder, IMAGES, fit="pad", name="padded")]},
        r"fit is pad, but .* has crop",
    ),
    "no target": (
        lambda folder: {"datasets": [made(folder, animals(4), labels="none", shards=1)]},
        "label is gone",
    ),
    "twice the same": (lambda _: {"datasets": [None]}, "is named twice"),
    "no such split": (lambda _: {"split": "dev"}, "has no split 'dev'"),
    "no record": (lambda _: {"split": "train[5:5]"}, "selects no record"),
    "too many shards": (lambda _: {"shards": 43}, "asks for 43, but the largest split has"),
    "a bad name": (lambda _: {"name": "A B"}, "name"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_datasets_that_do_not_fit_are_a_one_line_error(
    case: str, pets: Path, tmp_path: Path
) -> None:
    make, line = REFUSED[case]
    keys = {"name": "all", **make(tmp_path / "other")}
    others = [pets if one is None else one for one in keys.pop("datasets", ())]
    with pytest.raises(shardprep.ShardprepError, match=line) as caught:
        shardprep.repack([pets, *others], tmp_path / "out", **keys)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", [{"shards": 11}, {"size": "16x16"}], ids=str)
def test_a_damaged_record_is_an_error_and_finished_shards_are_kept(
    change: dict[str, Any], pets: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(pets, tmp_path / "copy")
    damage(copy)
    with pytest.raises(
        shardprep.RecordError, match=r"CRC is .*`shardprep verify .*--repair --source SOURCE`"
    ):
        shardprep.repack(copy, tmp_path / "out", workers=1, **change)
    assert not list((tmp_path / "out/pets").glob("1.0.0"))
    whole = shardprep.repack(pets, tmp_path / "whole", workers=1, **change)
    again = shardprep.repack(pets, tmp_path / "out", workers=1, **change)
    assert tree(again.path) == tree(whole.path)
    shutil.rmtree(copy)
    shutil.copytree(pets, copy)
    next(copy.glob("*-00002-of-00003")).write_bytes(b"")
    with pytest.raises(shardprep.DatasetError, match="has 0 bytes, but the manifest says"):
        shardprep.repack(copy, tmp_path / "out2", shards=11)


@pytest.mark.parametrize("batch_bytes", [1, 3_000, 4 << 20])
def test_batches_of_any_size_give_equal_bytes_and_errors(
    batch_bytes: int, pets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are read, hashed and written many at a time; an error names the one at fault."""
    monkeypatch.setattr("shardprep.writer.record_copier._BATCH_BYTES", batch_bytes)
    again = shardprep.repack(pets, tmp_path / "out", shards=3)
    assert unsigned(again.path) == unsigned(pets)
    copy = shutil.copytree(pets, tmp_path / "copy")
    shard = next(copy.glob("*-00001-of-00003"))
    with shard.open("rb") as file:
        places = [(one.offset, one.length) for one in tfrecord.read_records(file, "")]
    offset, length = places[4]
    recipe = make_recipe({"source": "-", "out": str(tmp_path / "torn"), "shards": 1}, "test")
    data = shard.read_bytes()
    parent = open_parent(open_dataset(copy))
    shard.write_bytes(data[: offset + length // 2])
    with pytest.raises(shardprep.DatasetError, match=f"at byte {offset:,} is truncated") as cut:
        repack_dataset([parent], recipe, Quiet())
    assert cut.value.where == str(shard)
    middle = offset + length // 2
    shard.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    with pytest.raises(shardprep.RecordError, match="data CRC is") as torn:
        repack_dataset([parent], recipe, Quiet())
    assert (torn.value.where, torn.value.offset) == (str(shard), offset)
    assert not list(tmp_path.glob("torn/*/1.0.0"))


@pytest.mark.parametrize(
    ("column", "value", "line"),
    [
        (
            "length",
            100_000_000,
            r"at byte [\d,]+ is truncated: it has [\d,]+ of 100,000,000 bytes",
        ),
        ("length", -1, "a record with a negative length"),
        ("offset", -1, "a record with a negative length or offset"),
        ("offset", 1 << 60, r"at byte 1,152,921,504,606,846,976 is truncated"),
    ],
)
def test_a_place_outside_of_its_shard_is_one_line(
    column: str, value: int, line: str, pets: Path, tmp_path: Path
) -> None:
    """No memory is asked for what an item table alone says."""
    recipe = make_recipe({"source": "-", "out": str(tmp_path), "shards": 1}, "test")
    parent = open_parent(open_dataset(pets))
    values = parent.rows[column].to_pylist()
    values[7] = value
    at = parent.rows.schema.get_field_index(column)
    rows = parent.rows.set_column(at, column, pa.array(values, pa.int64()))
    with pytest.raises(shardprep.DatasetError, match=line) as caught:
        repack_dataset([parent._replace(rows=rows)], recipe, Quiet())
    assert "\n" not in str(caught.value)


def test_a_dataset_that_is_there_stays_unless_it_is_to_be_replaced(
    pets: Path, tmp_path: Path
) -> None:
    there = made(tmp_path, animals(4), shards=1)
    before = tree(there)
    with pytest.raises(shardprep.BuildError, match="not made of the same datasets; add --ov"):
        shardprep.repack(pets, tmp_path / "out")
    assert tree(there) == before
    copy = shutil.copytree(pets, tmp_path / "copy")
    damage(copy)
    with pytest.raises(shardprep.RecordError):
        shardprep.repack(copy, tmp_path / "out", overwrite=True)
    assert tree(there) == before
    shardprep.repack(pets, tmp_path / "out", overwrite=True, shards=3)
    assert unsigned(there) == unsigned(pets)


def test_a_dataset_is_not_the_folder_of_another_one(pets: Path, tmp_path: Path) -> None:
    """In Python the second argument is the folder, not a dataset to merge."""
    other = made(tmp_path, animals(4), name="other", shards=1)
    before = tree(other)
    with pytest.raises(shardprep.RecipeError, match=r"^--out: .*1\.0\.0 is a dataset; give the"):
        shardprep.repack(pets, other)
    assert tree(other) == before


def test_a_dataset_may_be_repacked_in_its_own_place(pets: Path, tmp_path: Path) -> None:
    there = shutil.copytree(pets, tmp_path / "out/pets/1.0.0")
    shardprep.repack(there, tmp_path / "out", shards=11, overwrite=True)
    fresh = shardprep.repack(pets, tmp_path / "fresh", shards=11)
    assert tree(there) == tree(fresh.path)
    again = shardprep.repack(there, tmp_path / "out", shards=3, version="2.0.0")
    assert {n: d for n, d in unsigned(again.path).items() if ".tfrecord" in n} == {
        n: d for n, d in unsigned(pets).items() if ".tfrecord" in n
    }


def test_from_object_storage_to_object_storage(pets: Path, tmp_path: Path, bucket: Bucket) -> None:
    for name, data in tree(pets).items():
        bucket.put(f"in/pets/1.0.0/{name}", data)
    there = shardprep.repack(f"{bucket.url}/in", f"{bucket.url}/out", shards=5)
    here = shardprep.repack(pets, tmp_path / "out", shards=5)
    assert there.location == f"{bucket.url}/out/pets/1.0.0"
    assert bucket.tree("out/pets/1.0.0") == tree(here.path)


def test_a_repacked_dataset_may_be_reused(pets: Path, tmp_path: Path) -> None:
    again = shardprep.repack(pets, tmp_path / "again", shards=7)
    source = write(tmp_path / "pets.zip", zip_bytes(IMAGES))
    keys = {**KEYS, "max_rejected": 1.0}
    assert build(source, tmp_path / "out", reuse=again.path, **keys).num_copied == 41
    assert unsigned(tmp_path / "out/pets/1.0.0") == unsigned(pets)
    other = made(tmp_path / "other", animals(4), shards=1, name="other", quality=80)
    merged = shardprep.repack([pets, other], tmp_path / "both", name="both", shards=2)
    watcher = Quiet()
    build(source, tmp_path / "b", reuse=merged.path, watcher=watcher, **keys)
    assert watcher.lines[-1].endswith("built with other quality (several, now 90)")


def test_a_damaged_one_is_mended_by_doing_it_again(pets: Path, tmp_path: Path) -> None:
    again = shardprep.repack(pets, tmp_path / "again", shards=3)
    whole = tree(again.path)
    damage(again.path)
    with pytest.raises(shardprep.DatasetError, match="was repacked from other datasets"):
        shardprep.verify(again.path, repair=True, source=pets)
    with pytest.raises(shardprep.RecordError) as caught:
        [*reader.Dataset(again.path)]
    assert caught.value.hint == (
        "copy the dataset again, or run `shardprep repack` again with --overwrite"
    )
    shardprep.repack(pets, tmp_path / "again", shards=3, overwrite=True)
    assert tree(again.path) == whole
    next(again.path.glob("*-00001-of-00003")).unlink()
    assert shardprep.repack(pets, tmp_path / "again", shards=3).num_new_items == 14
    assert tree(again.path) == whole


def test_the_command_copies_and_says_so(pets: Path, tmp_path: Path) -> None:
    shutil.copytree(pets.parent, tmp_path / "tfrecords/pets")
    said = error_of(run("repack", "--shards", "5", cwd=tmp_path), 1)
    assert "1.0.0: is one of the datasets to repack; add --overwrite to replace it, or" in said
    done = ran("repack", "--shards", "5", "--version", "1.0.1", cwd=tmp_path)
    assert "42 images to 5 shards" in done.stderr
    assert "42 images in " in done.stdout
    again = ("repack", "tfrecords/pets/1.0.0", "--version", "1.0.1", "--shards", "5", "--json")
    assert printed(run(*again, cwd=tmp_path).stdout, BuildJson)["was_there"]
    said = error_of(run("repack", "--shards", "none", cwd=tmp_path), 2)
    assert said.startswith("--shards: 'none' is not a whole number")


def test_without_out_the_new_dataset_is_next_to_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    old = made(tmp_path, animals(3))
    notes = list[str]()
    new = shardprep.repack(old, version="1.1.0", progress=lambda now: notes.append(now.notice))
    assert new.path.resolve() == tmp_path / "out/pets/1.1.0"
    assert "writing out/pets/1.1.0" in notes
    copy = old.rename(tmp_path / "copy")
    assert shardprep.repack(copy, version="1.2.0").location == "tfrecords/pets/1.2.0"
