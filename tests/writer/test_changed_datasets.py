"""A dataset changed from itself is the dataset that a build of its source would have written.

The oracle is that build: shards and tables are compared byte by byte. `tests/kinds` compares the
images and annotations of every kind after `repack --size`.
"""

import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import shardprep
from shardprep import reader
from shardprep.dataset.item_table import read_items
from shardprep.dataset.manifest import load_manifest
from shardprep.dataset.open_dataset import open_dataset
from tests.support.annotated import outlined
from tests.support.builders import Quiet, animals, build, unsigned, write, zip_bytes
from tests.support.command import error_of, ran, run
from tests.writer.records import records

KEYS: dict[str, Any] = {"shards": 3, "size": "32x32", "labels": "prefix", "name": "pets"}
BAD = {"train/cat.90.jpg": b"\xff\xd8\xff no more", "notes.txt": b"so"}
IMAGES = {**animals(40), **BAD}
NAMES = sorted(key for key in IMAGES if key not in BAD)


def made(folder: Path, images: dict[str, bytes] = IMAGES, **keys: Any) -> Path:
    source = write(folder / "source.zip", zip_bytes(images))
    return build(source, folder / "out", max_rejected=1.0, **{**KEYS, **keys}).path


@pytest.fixture(name="pets", scope="module")
def _pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("pets"))


def changes(before: Path, after: Path) -> dict[str, int]:
    found = shardprep.diff(before, after).num_changes
    return {kind: number for kind, number in found.items() if number}


def table(folder: Path, name: str, *lines: str) -> str:
    return str(write(folder / name, "\n".join([*lines, ""]).encode()))


CHANGES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "labels are corrected": ({"relabel": "csv:fixes.csv:key:label"}, {"target": 3}),
    "a class is added": (
        {"relabel": "csv:wolf.csv:key:label", "classes": "cat,dog,wolf"},
        {"target": 1},
    ),
    "a class is renamed": ({"class_map": "cat=feline"}, {"target": 20}),
    "two classes are one": ({"class_map": "cat=pet,dog=pet"}, {"target": 40}),
    "images are left out": ({"exclude_list": "out.txt"}, {"removed": 2}),
    "a share is validation": ({"split": "validation=0.2"}, {"split": 8}),
    "groups stay together": (
        {"join": "facts.csv", "group": "who", "split": "test=0.5"},
        {"split": 20},
    ),
    "splits of a column": ({"join": "facts.csv", "split": "column:part"}, {"split": 20}),
    "splits of a list": ({"split": "list:test=test.txt,train=*"}, {"split": 2}),
    "columns are added": ({"join": "facts.csv", "columns": "age,who"}, {"record": 40}),
    "several at once": (
        {"relabel": "csv:fixes.csv:key:label", "exclude_list": "out.txt", "split": "test=0.5"},
        {"target": 1, "removed": 2, "split": 19},
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_without_the_archive_is_the_change_of_a_build(
    case: str, pets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, wanted = CHANGES[case]
    monkeypatch.chdir(tmp_path)
    table(tmp_path, "fixes.csv", "key,label", *(f"{key},dog" for key in NAMES[:3]))
    table(tmp_path, "wolf.csv", "key,label", f"{NAMES[0]},wolf")
    table(tmp_path, "out.txt", *NAMES[:2], "train/cat.90.jpg")
    table(tmp_path, "test.txt", *NAMES[:2])
    facts = (f"{key},{n},p{n // 20},{('train', 'test')[n % 2]}" for n, key in enumerate(NAMES))
    bad = "train/cat.90.jpg,7,p0,train"
    table(tmp_path, "facts.csv", "image,age,who,part", *facts, bad)
    packed = shardprep.repack(pets, tmp_path / "packed", **options)
    assert changes(pets, packed.path) == wanted
    assert unsigned(packed.path) == unsigned(made(tmp_path, **options))
    assert packed.manifest.num_encodings == 0
    assert not shardprep.verify(packed.path, decode=True, workers=1).problems
    again = shardprep.repack(pets, tmp_path / "packed", **options)
    assert again.was_there
    if case == "several at once":  # the table and the list name two images
        assert "2 rows are of images that are left out: train/cat.0.jpg" in " ".join(packed.notes)
        assert not any("fit no image" in note for note in packed.notes)


def test_unchanged_records_are_copied(pets: Path, tmp_path: Path) -> None:
    fixes = pd.DataFrame({"key": NAMES[:2], "label": ["dog", "dog"]})
    packed = shardprep.repack(pets, tmp_path, relabel=fixes)
    assert "relabel: 2 rows of " in packed.notes[0]
    assert ", 2 labels changed" in packed.notes[0]
    before, after = records(pets), records(packed.path)
    changed = {key for key in before if before[key] != after[key]}
    assert changed == {*NAMES[:2]}
    assert all(before[key]["image"] == after[key]["image"] for key in changed)


def test_only_new_classes_may_be_named_and_old_ones_keep_their_numbers(
    pets: Path, tmp_path: Path
) -> None:
    fixes = pd.DataFrame({"key": NAMES[:1], "label": ["ape"]})
    packed = shardprep.repack(pets, tmp_path, relabel=fixes, classes=["zebra", "ape"])
    assert open_dataset(packed.path).schema.labels == ("cat", "dog", "zebra", "ape")
    assert changes(pets, packed.path)["target"] == 1


@pytest.mark.parametrize("column", ["label", "labels"])
def test_a_class_that_no_record_has_can_be_left_out(tmp_path: Path, column: str) -> None:
    """The others are numbered anew, as a build of the images that stay numbers them."""
    wolf, rejected = "train/wolf.1.jpg", "train/wolf.2.jpg"
    images = {**animals(8), "a.jpg": b"no image", wolf: animals(1)["train/cat.0.jpg"] + b"\0"}
    images[rejected] = b"no image"
    own = [key for key in images if key != "a.jpg"]
    names = dict.fromkeys(own, "dog") | dict.fromkeys(own[:4], "cat")
    names |= {wolf: "ant", rejected: "ant" if column == "label" else "dog ant"}
    rows = table(tmp_path, "labels.csv", "key,names", *(",".join(one) for one in names.items()))
    target = "class" if column == "label" else "multilabel"
    keys = {"labels": f"csv:{rows}:key:names", "target": target, "separator": " "}
    keys |= {} if column == "labels" else {"separator": ""}
    whole = made(tmp_path / "whole", images, **keys)
    with pytest.raises(shardprep.RecipeError, match=r"lacks ant \(1 image\) of .*ant,cat,dog"):
        shardprep.repack(whole, tmp_path / "refused", classes=["cat", "dog"])
    gone = table(tmp_path, "gone.txt", wolf)
    new = shardprep.repack(whole, tmp_path / "new", classes=["cat", "dog"], exclude_list=gone)
    assert open_dataset(new.path).schema.labels == ("cat", "dog")
    assert new.manifest.labels.names == ("cat", "dog")
    assert new.manifest.splits["train"].label_counts == {"cat": 4, "dog": 4}
    items = {row["key"]: row[column] for row in read_items(new.path / "items.parquet").to_pylist()}
    assert items[rejected] == (None if column == "label" else [1])
    assert items[own[5]] == (1 if column == "label" else [1])
    assert shardprep.verify(new.path).problems == ()
    selected = reader.select(whole, label=["cat", "dog"])
    other = shardprep.repack(whole, tmp_path / "selected", split=selected, classes=["dog", "cat"])
    assert other.manifest.splits["train"].label_counts == {"dog": 4, "cat": 4}


def test_classes_of_objects_and_masks_are_neither_left_out_nor_relabelled(tmp_path: Path) -> None:
    source = {"size": "20x20", "labels": "none", "shards": 1}
    for one in ("boxes", "masks"):
        path = made(tmp_path / one, outlined(animals(4)), **source, **{one: "coco"})
        first, _ = open_dataset(path).schema.annotation_labels[-2:]
        changes = {"classes": [first], "relabel": "csv:fixes.csv:key:label"}
        for option, value in changes.items():
            line = f"{option}: needs a dataset whose images have"
            with pytest.raises(shardprep.SchemaError, match=line):
                shardprep.repack(path, tmp_path / "out", **{option: value})  # type: ignore[arg-type]


def test_another_size_keeps_every_input_and_its_reason(pets: Path, tmp_path: Path) -> None:
    packed = shardprep.repack(pets, tmp_path, size="16x16", workers=1)
    loss = "stored JPEGs are decoded and encoded as JPEG once more, with loss; "
    assert packed.notes == (f"{loss}a build from the source avoids this",)
    one, two = load_manifest(pets), packed.manifest
    assert two.num_encodings == 1
    assert two.totals.model_copy(update={"num_bytes": 0}) == one.totals.model_copy(
        update={"num_bytes": 0}
    )
    assert [len(m.shards) for m in (one, two)] == [3, 3]
    tables = (read_items(folder / "items.parquet") for folder in (pets, packed.path))
    rows = (one.drop_columns(["offset", "length"]).to_pylist() for one in tables)
    assert next(rows) == next(rows)
    assert changes(pets, packed.path) == {"record": 40}
    assert not shardprep.verify(packed.path, decode=True, workers=1).problems
    twice = shardprep.repack(packed.path, tmp_path, size="8x8", version="2.0.0", workers=1)
    assert twice.manifest.num_encodings == 2


def test_columns_of_the_table_stay_with_another_size(pets: Path, tmp_path: Path) -> None:
    """In records and in the item table; an empty cell stays empty, and new columns join them."""
    ages = [f"{name},{'' if at % 3 else at}" for at, name in enumerate(NAMES)]
    first = table(tmp_path, "ages.csv", "id,age", *ages)
    other = table(tmp_path, "notes.csv", "id,note", *(f"{name},n{name[-6]}" for name in NAMES))
    known = shardprep.repack(pets, tmp_path, name="known", join=first, columns="age")
    keys: dict[str, Any] = {"name": "small", "size": "16x16", "workers": 1}
    small = shardprep.repack(known.path, tmp_path, join=other, columns="note", **keys)
    rows = reader.table(small.path).to_pylist()
    found = {row["key"]: (row["age"], row["note"]) for row in rows}
    assert found == {
        name: (None if at % 3 else at, f"n{name[-6]}") for at, name in enumerate(NAMES)
    }
    assert not shardprep.verify(small.path, decode=True, workers=1).problems
    old = {key: value["age"] for key, value in records(known.path).items()}
    assert {key: value["age"] for key, value in records(small.path).items()} == old


def test_images_of_the_wanted_form_are_copied(pets: Path, tmp_path: Path) -> None:
    packed = shardprep.repack(pets, tmp_path, size=(32, 32), quality=90)
    assert unsigned(packed.path) == unsigned(pets)
    assert (packed.notes, packed.manifest.num_encodings) == ((), 0)


def test_png_loses_nothing_and_enlarging_is_said(pets: Path, tmp_path: Path) -> None:
    packed = shardprep.repack(pets, tmp_path, size="64x64", format="png", workers=1)
    assert packed.notes == (
        "stored images are enlarged from 32x32 to 64x64; a build from the source avoids this",
    )


def test_a_build_does_not_reuse_images_that_were_encoded_twice(pets: Path, tmp_path: Path) -> None:
    packed = shardprep.repack(pets, tmp_path / "packed", size="16x16", workers=1)
    source, watcher = write(tmp_path / "pets.zip", zip_bytes(IMAGES)), Quiet()
    keys = {**KEYS, "size": "16x16", "max_rejected": 1.0}
    found = build(source, tmp_path / "out", reuse=packed.path, watcher=watcher, **keys)
    assert found.num_copied == 0
    assert watcher.lines[-1].endswith("built with other encodings (2, now not there)")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no size": ({"size": "none"}, "size: none is not possible: the stored images"),
    "no fit": ({"fit": "none"}, "are already resized; give crop, pad or stretch, or leave this"),
    "a quality of PNG": (
        {"format": "png", "quality": 80},
        "quality: has no effect with the format",
    ),
    "original files": ({"format": "keep"}, "format: keep is only for `shardprep build`"),
    "an unknown class": (
        {"relabel": "csv:wolf.csv:key:label"},
        "classes wolf",
    ),
    "a class too few": ({"classes": "dog,wolf"}, "classes cat,dog,wolf"),
    "an old and a new class": (
        {"relabel": "csv:wolf.csv:key:label", "classes": "wolf,dog"},
        "classes wolf",
    ),
    "another new class": (
        {"relabel": "csv:wolf.csv:key:label", "classes": "ape"},
        "classes ape,wolf",
    ),
    "two rows for one image": (
        {"relabel": "csv:two.csv:key:label"},
        "two labels, 'cat' and 'dog'; give one row for each image",
    ),
    "no such table": ({"relabel": "csv:none.csv:key:label"}, "none.csv: no such label table"),
    "columns of no table": ({"columns": "age"}, "columns: needs a label table; use "),
    "a known feature": ({"join": "wolf.csv", "columns": "label"}, "'label' is a reserved name"),
    "a name of no class": (
        {"class_map": "cta=pet"},
        "no class is called cta; is cat meant? use one of cat, dog",
    ),
    "a misspelt column": (
        {"join": "wolf.csv", "group": "lable"},
        "has no column 'lable'; is label meant? use one of key, label",
    ),
    "a table of which nothing is used": ({"join": "wolf.csv"}, "join: changes nothing by itself; "),
    "all images": ({"exclude_list": "all.txt"}, "every image is left out (41 on the exclude list)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_option_that_does_not_fit_the_dataset_is_a_one_line_error(
    case: str, pets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, line = REFUSED[case]
    monkeypatch.chdir(tmp_path)
    table(tmp_path, "wolf.csv", "key,label", f"{NAMES[0]},wolf")
    table(tmp_path, "two.csv", "key,label", f"{NAMES[0]},cat", f"{NAMES[0]},dog")
    table(tmp_path, "all.txt", *NAMES, "train/cat.90.jpg")
    with pytest.raises(shardprep.ShardprepError, match=re.escape(line)) as caught:
        shardprep.repack(pets, tmp_path / "out", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("names", [("age", "age/present"), ("age/present", "age")])
def test_a_joined_column_may_not_hide_another(
    pets: Path, tmp_path: Path, names: tuple[str, str]
) -> None:
    one, two = (pd.DataFrame({"key": NAMES, name: 0.5}) for name in names)
    known = shardprep.repack(pets, tmp_path, name="known", join=one, columns=names[0]).path
    with pytest.raises(shardprep.RecipeError, match=r"'age/present' is .* 'age' is empty"):
        shardprep.repack(known, tmp_path / "out", join=two, columns=names[1])


def test_options_that_need_another_format_say_which(pets: Path, tmp_path: Path) -> None:
    raw = shardprep.repack(pets, tmp_path / "raw", size="8x8", format="raw", workers=1).path
    with pytest.raises(shardprep.ShardprepError, match=r"or add (--)?format[ =]"):
        shardprep.repack(raw, tmp_path / "out", quality=80)
    new = shardprep.repack(raw, tmp_path / "out", quality=80, format="jpeg", workers=1)
    assert new.manifest.fingerprint.options["format"] == "jpeg"


def test_classes_of_objects_get_other_names_or_become_one(tmp_path: Path) -> None:
    source, keys = outlined(animals(4)), {"size": "20x20", "labels": "none", "shards": 1}
    boxes, masks = (
        made(tmp_path / one, source, **keys, **{one: "coco"}) for one in ("boxes", "masks")
    )
    first, second = open_dataset(boxes).schema.annotation_labels
    for given in (f"{first}=thing", f"{first}={second}"):
        new = shardprep.repack(boxes, tmp_path / given, class_map=given)
        other = made(tmp_path / f"{given} built", source, **keys, boxes="coco", class_map=given)
        assert unsigned(new.path) == unsigned(other)
    new = shardprep.repack(masks, tmp_path / "new", class_map=f"{first}=thing")
    assert open_dataset(new.path).schema.annotation_labels[1:] == ("thing", second)
    with pytest.raises(shardprep.RecipeError, match="'dust' would join two classes of segm"):
        shardprep.repack(masks, tmp_path / "none", class_map=f"{first}={second}")


def test_stored_columns_group_and_split(pets: Path, tmp_path: Path) -> None:
    facts = (f"{key},p{n // 20},{n % 4}" for n, key in enumerate(NAMES))
    first = table(tmp_path, "facts.csv", "image,who,fold", *facts)
    known = shardprep.repack(pets, tmp_path, name="known", join=first, columns="who,fold").path
    grouped = shardprep.repack(known, tmp_path / "d", group="who").path
    again = shardprep.repack(grouped, tmp_path / "e", split="column:fold:0=validation,*=train")
    assert "2 groups are in several of the given splits, a leak: " in " ".join(again.notes)
    halves = shardprep.repack(known, tmp_path / "a", group="who", split="test=0.5")
    people = pd.DataFrame({"who": ["p0", "p1"], "age": [7, 9]})
    aged = shardprep.repack(known, tmp_path / "c", join=people, columns="age").path
    assert {(row["who"], row["age"]) for row in reader.table(aged).to_pylist()} == {
        ("p0", 7), ("p1", 9),
    }  # fmt: skip
    folds = shardprep.repack(known, tmp_path / "b", split="column:fold:0=validation,*=train")
    for one in (halves, folds):
        assert not shardprep.verify(one.path, decode=True, workers=1).problems
    parts = {(row["who"], row["split"]) for row in reader.table(halves.path).to_pylist()}
    assert len(parts) == 2
    for row in reader.table(folds.path).to_pylist():
        assert row["split"] == ("train" if row["fold"] else "validation")


def test_the_command_changes_a_dataset_and_says_so(pets: Path, tmp_path: Path) -> None:
    shutil.copytree(pets.parent, tmp_path / "tfrecords/pets")
    table(tmp_path, "out.txt", NAMES[0])
    flags = ("--size", "16x16", "--exclude-list", "out.txt", "--version", "1.1.0")
    done = ran("repack", *flags, "--split", "validation=0.2", cwd=tmp_path)
    assert "with loss; a build from the source avoids this" in done.stderr
    found = load_manifest(tmp_path / "tfrecords/pets/1.1.0")
    assert {name: one.num_records for name, one in found.splits.items()} == {
        "train": 31,
        "validation": 8,
    }
    assert found.totals.skipped == {"not an image": 1, "on the exclude list": 1}
    versions = ("tfrecords/pets/1.0.0", "tfrecords/pets/1.1.0")
    difference = run("diff", *versions, cwd=tmp_path).stdout
    assert "\nno change added, target, objects, mask, feature, source\n" in difference
    recipe = difference[difference.index("recipe ") :].splitlines()[:-1]
    assert [line[10:].partition(" (")[0] for line in recipe] == [
        "made from", "exclude_list", "size", "split"
    ]  # fmt: skip
    said = error_of(run("repack", "--size", "so", cwd=tmp_path), 2)
    assert said.startswith("--size: 'so' is not WIDTHxHEIGHT")


@pytest.mark.parametrize("size", [None, "16x16"])
def test_several_labels_of_an_image_are_corrected(tmp_path: Path, size: str | None) -> None:
    """Records of other images are copied; without another size, the result is that of a build."""
    images = animals(8)
    rows = "".join(f"{key},{'a b' if at % 2 else 'b c'}\n" for at, key in enumerate(images))
    source = {**images, "tags.csv": f"key,tags\n{rows}".encode()}
    keys: dict[str, Any] = {"labels": "csv:tags.csv:key:tags", "target": "multilabel"}
    old = made(tmp_path / "old", source, **keys)
    first, second = list(images)[:2]
    fixes = table(tmp_path, "fixes.csv", "key,tags", f"{first},a|c", f"{second},[]")
    options: dict[str, Any] = {"relabel": f"csv:{fixes}:key:tags"}
    new = shardprep.repack(old, tmp_path / "new", size=size, workers=1, **options)
    assert "relabel: 2 rows of " in " ".join(new.notes)
    found = {row["key"]: row["labels"] for row in reader.table(new.path).to_pylist()}
    assert (found[first], found[second]) == ([0, 2], [])
    assert sum(labels == [1, 2] for labels in found.values()) == 3
    if size is None:
        assert changes(old, new.path) == {"target": 2}
        assert unsigned(new.path) == unsigned(made(tmp_path / "again", source, **keys, **options))
        one = shardprep.repack(old, tmp_path / "one", class_map="a=b").path
        assert {tuple(row["labels"]) for row in reader.table(one).to_pylist()} == {(0,), (0, 1)}
        assert unsigned(one) == unsigned(made(tmp_path / "merged", source, **keys, class_map="a=b"))
    assert not shardprep.verify(new.path, decode=True, workers=1).problems
