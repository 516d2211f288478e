"""`--split RATIOS`: which splits of the source are cut, which stay whole, and its note."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardprep
from shardprep.catalog.items import Item
from shardprep.catalog.survey import recipe_text, survey_source
from shardprep.dataset.item_table import WRITTEN, read_items, with_status
from shardprep.dataset.manifest import load_manifest
from shardprep.errors import BuildError, RecipeError
from shardprep.recipe.document import read_recipe
from shardprep.recipe.rules import parse_split_rule
from shardprep.source.byte_range import PlainExtent
from shardprep.writer.plan.source_plan import cut_splits
from tests.dataset.resigned import resigned
from tests.support.builders import (
    animals,
    build,
    build_part,
    jpeg,
    png,
    write,
    write_folder,
    zip_bytes,
)
from tests.support.command import run

KEYS: dict[str, Any] = {"size": "8x8", "labels": "prefix", "shards": 1}
NAMES = ("train", "validation", "test")
GIVEN = {"train": 40, "validation": 10, "test": 20}


def source_of(folder: Path, counts: Mapping[str, int]) -> Path:
    members = {
        key: data
        for split, count in counts.items()
        for key, data in animals(count, folder=f"{split}/").items()
    }
    return write(folder / "pets.zip", zip_bytes(members))


def splits_of(dataset: Path) -> dict[str, str]:
    rows = with_status(read_items(dataset / "items.parquet"), WRITTEN)
    return dict(zip(rows["key"].to_pylist(), rows["split"].to_pylist(), strict=True))


@given(
    given_splits=st.sets(st.sampled_from(NAMES), min_size=1),
    named=st.sets(st.sampled_from((*NAMES, "extra")), min_size=1),
    seed=st.integers(0, 9),
)
def test_a_split_that_the_ratios_leave_out_stays_whole(
    given_splits: set[str], named: set[str], seed: int
) -> None:
    items = [
        Item(f"{split}/{i}.jpg", PlainExtent("source", 0, 1), split, i % 2, (i % 2,))
        for split in given_splits
        for i in range(20)
    ]
    rest = dict.fromkeys(sorted(named - {"train"}), 0.25)
    ratios = {**rest, "train": 1 - sum(rest.values())}
    text = ",".join(f"{name}={ratio}" for name, ratio in ratios.items() if ratio and name in named)
    found = cut_splits(items, parse_split_rule(text).ratios, seed).items
    is_cut = {split for split in given_splits if split == "train" or split in named}
    assert all(one.split in (one.key.partition("/")[0], *ratios) for one in found)
    assert all(
        one.split == given_split
        for one in found
        if (given_split := one.key.partition("/")[0]) not in is_cut
    )
    wanted = Counter({name: round(20 * len(is_cut) * ratio) for name, ratio in ratios.items()})
    wanted.update(dict.fromkeys(given_splits - is_cut, 20))
    assert Counter(one.split for one in found) == +wanted


def test_ratios_that_name_no_split_of_the_source_are_an_error(tmp_path: Path) -> None:
    source = source_of(tmp_path, {"test": 20})
    with pytest.raises(RecipeError, match=r"ratios divide only train .* but the source has test"):
        build(source, tmp_path / "out", split="validation=0.25", **KEYS)


@pytest.mark.parametrize(("num_groups", "shares"), [(2, ()), (3, (1, 1, 1)), (20, ())])
def test_few_groups_fill_each_split_and_other_shares_are_a_warning(
    num_groups: int, shares: tuple[int, ...], tmp_path: Path
) -> None:
    source = write_folder(
        tmp_path / "s",
        {f"{'ab'[i % 2]}/p{i % num_groups}_{i}.png": png(8, 8, i) for i in range(60)},
    )
    keys: dict[str, Any] = {
        "group": "regex:(p\\d+)_",
        "split": "train=0.7,validation=0.15,test=0.15",
    }
    if num_groups == 2:
        with pytest.raises(RecipeError, match="0 of 60 images, because 2 groups are not divided"):
            shardprep.build(source, dry_run=True, **keys)
        return
    plan = shardprep.build(source, dry_run=True, progress=lambda _: None, **keys).plan
    counts = Counter(shard.split for shard in plan.shards for _ in shard.items)
    warnings = [one for one in plan.findings if one.startswith("warning: groups")]
    if shares:
        assert [*counts.values()] == [20, 20, 20]
        assert warnings[0].endswith("ratios: train 33% (70%), validation 33% (15%), test 33% (15%)")
    else:
        assert (counts["train"], warnings) == (42, [])


@pytest.mark.parametrize(
    ("sizes", "counts"), [((40, 20, 12, 8), (60, 12, 8)), ((30, 30, 20, 10, 10), (70, 20, 10))]
)
def test_few_groups_are_divided_as_near_to_the_ratios_as_they_allow(
    sizes: tuple[int, ...], counts: tuple[int, ...], tmp_path: Path
) -> None:
    files = [f"p{group}_{i}.png" for group, size in enumerate(sizes) for i in range(size)]
    source = write_folder(tmp_path / "s", {one: png(8, 8, i) for i, one in enumerate(files)})
    rule = "train=0.7,validation=0.15,test=0.15"
    found = shardprep.build(
        source, dry_run=True, group="regex:(p\\d+)_", split=rule, labels="none", progress=str
    )
    assert sorted(found.images.values(), reverse=True) == [*counts]
    assert max(found.images, key=found.images.__getitem__) == "train"


def test_train_gets_the_rest_of_the_ratios() -> None:
    rule = parse_split_rule("validation=0.1,test=0.2")
    assert rule.ratios == {"train": 0.7, "validation": 0.1, "test": 0.2}
    assert parse_split_rule("a=0.5,b=0.5").ratios == {"a": 0.5, "b": 0.5}
    with pytest.raises(RecipeError, match="without train, which takes the rest"):
        parse_split_rule("train=0.8,validation=0.1")


def test_a_cut_of_several_given_splits_is_said_everywhere(tmp_path: Path) -> None:
    source = source_of(tmp_path, {"train": 40, "test": 20})
    every = "train=0.8,test=0.2"
    said = "--split cuts train (40 images) and test (20 images) anew"
    options = ("--split", every, "--size", "8x8", "--labels", "prefix")
    dry = run("build", source.name, "--dry-run", *options, cwd=tmp_path)
    assert said in " ".join(dry.stdout.replace("│", " ").split())
    done = run("build", source.name, *options, cwd=tmp_path)
    assert said in " ".join(done.stderr.split())
    plan = shardprep.build(source, tmp_path / "python", dry_run=True, split=every, **KEYS)
    assert any(said in line for line in plan.facts()["notes"])
    result = shardprep.build(source, tmp_path / "python", split=every, **KEYS)
    assert any(said in line for line in result.facts()["notes"])
    for ratios in ("validation=0.1", "train=0.9,validation=0.1"):
        quiet = shardprep.build(source, tmp_path / "quiet", dry_run=True, split=ratios, **KEYS)
        assert "notes" not in quiet.facts()


def test_splits_that_annotations_give_stay_whole_too(tmp_path: Path) -> None:
    def document(split: str, ids: range) -> bytes:
        images = [{"id": i, "file_name": f"{i}.jpg", "width": 64, "height": 48} for i in ids]
        boxes = [
            {"id": i, "image_id": i, "category_id": 1, "bbox": [4, 4, 20, 20], "area": 400}
            for i in ids
        ]
        kinds = [{"id": 1, "name": split and "cat"}]
        return json.dumps({"images": images, "annotations": boxes, "categories": kinds}).encode()

    members = {f"images/{i}.jpg": jpeg(seed=i) for i in range(30)}
    members["annotations/instances_train.json"] = document("train", range(20))
    members["annotations/instances_test.json"] = document("test", range(20, 30))
    source = write(tmp_path / "coco.zip", zip_bytes(members))
    given_splits = splits_of(build(source, tmp_path / "as_given", size="8x8", boxes="coco").path)
    assert Counter(given_splits.values()) == {"train": 20, "test": 10}
    result = build(source, tmp_path / "cut", size="8x8", boxes="coco", split="validation=0.25")
    found = splits_of(result.path)
    assert Counter(found.values()) == {"train": 15, "validation": 5, "test": 10}
    assert {key for key, split in found.items() if split == "test"} == {
        key for key, split in given_splits.items() if split == "test"
    }


def test_groups_in_several_given_splits_are_counted(tmp_path: Path) -> None:
    members = {
        f"{split}/cat.{i}.jpg": jpeg(seed=i) for split in ("train", "test") for i in range(8)
    }
    source = write(tmp_path / "pets.zip", zip_bytes(members))
    keys = {**KEYS, "group": r"regex:cat\.(\d)"}
    across = build(source, tmp_path / "out", split="validation=0.25", **keys)
    assert any("8 groups are in several of the given splits" in line for line in across.notes)
    whole = build(source, tmp_path / "whole", split="train=0.5,test=0.5", **keys)
    assert not any("several" in line for line in whole.notes)


@pytest.mark.parametrize("labels", ["auto", "csv:train.csv"])
def test_a_column_of_patients_in_several_splits_is_said(labels: str, tmp_path: Path) -> None:
    rows = [f"{i},{'ab'[i % 2]},{f'p{i // 4}' if i % 7 else ''}" for i in range(16)]
    members = {f"images/{i}.jpg": jpeg(seed=i) for i in range(16)}
    table = {"train.csv": "\n".join(["id,label,Patient ID", *rows]).encode()}
    keys: dict[str, Any] = {"size": "8x8", "labels": labels}
    source = write_folder(tmp_path / "set", members | table)

    def notes(**options: Any) -> list[str]:
        found = shardprep.build(source, dry_run=True, **keys, **options)
        return [one for one in found.plan.findings if "Patient ID" in one]

    flag = "--group 'Patient ID' keeps them together"
    may_be = f"images of one 'Patient ID' may be in several splits; {flag}"
    assert notes(split="validation=0.25") == [may_be]
    assert notes() == []
    assert notes(split="validation=0.25", group="Patient ID")[1:] == []
    folders = {
        key.replace("images", ("train", "val")[i % 2]): one
        for i, (key, one) in enumerate(members.items())
    }
    source = write_folder(tmp_path / "given", folders | table)
    leak = ["4 values of 'Patient ID' in several splits, a leak"]
    assert notes() == notes(split="validation=0.25") == leak


def test_a_column_of_labels_is_none_of_patients(tmp_path: Path) -> None:
    members = {f"{i}.jpg": jpeg(seed=i) for i in range(8)}
    table = "\n".join(["id,case", *(f"{i},{'ab'[i % 2]}" for i in range(8))]).encode()
    source = write_folder(tmp_path / "set", members | {"train.csv": table})
    options: dict[str, Any] = {"labels": "csv:train.csv:id:case", "split": "validation=0.25"}
    found = shardprep.build(source, dry_run=True, size="8x8", **options)
    assert not any("several splits" in one for one in found.plan.findings)


@pytest.mark.parametrize(
    "given_splits", [("train",), ("train", "test"), ("train", "validation"), NAMES, ("test",)]
)
def test_the_ratios_that_init_proposes_do_what_it_says(
    given_splits: tuple[str, ...], tmp_path: Path
) -> None:
    source = source_of(tmp_path, dict.fromkeys(given_splits, 40))
    text = recipe_text(survey_source(source, tmp_path / "work", lambda _: None))
    (said,) = [line for line in text.splitlines() if "this would cut" in line]
    proposed = text.replace("# split = ", "split = ")
    path = write(tmp_path / "shardprep.toml", proposed.encode())
    keys = {**read_recipe(path), "size": "8x8", "shards": 1}
    result = build(source, tmp_path / "out", **{k: v for k, v in keys.items() if k != "source"})
    found = splits_of(result.path)
    whole = [one for one in given_splits if f"keep {one} whole" in said]
    for split in whole:
        assert sum(key.startswith(f"{split}/") for key in found) == 40
        assert {one for key, one in found.items() if key.startswith(f"{split}/")} == {split}
    assert {*found.values()} >= {"train", "validation"} or "test split" in said
    assert ("anew" in said) == (bool(result.notes) or given_splits == ("test",))


FORMER: dict[str, dict[str, Any]] = {
    "split ratios": {"split": "train=0.9,validation=0.1"},
    "fit": {"fit": "stretch"},
}
"""Version in the fingerprint → options whose meaning it names."""


@pytest.mark.parametrize("name", FORMER)
def test_an_unfinished_build_of_an_older_version_is_one_clear_error(
    name: str, tmp_path: Path
) -> None:
    source = source_of(tmp_path, GIVEN)
    keys: dict[str, Any] = {**KEYS, **FORMER[name], "shards": 2}
    build_part(source, tmp_path / "out", "1/2", **keys)
    (begun,) = (tmp_path / "out").rglob(".build.json")
    document = json.loads(begun.read_text())
    del document["versions"][name]
    begun.write_text(json.dumps(document))
    with pytest.raises(BuildError, match=rf"begun with other {name} \(not there, now \d\)"):
        build_part(source, tmp_path / "out", "2/2", **keys)
    with pytest.raises(BuildError, match="add --overwrite or remove"):
        build(source, tmp_path / "out", **keys)


@pytest.mark.parametrize("name", FORMER)
def test_a_finished_dataset_of_an_older_version_stays(name: str, tmp_path: Path) -> None:
    source = source_of(tmp_path, GIVEN)
    keys: dict[str, Any] = {**KEYS, **FORMER[name]}
    path = build(source, tmp_path / "out", **keys).path
    document = json.loads((path / "manifest.json").read_text())
    del document["fingerprint"]["versions"][name]
    (path / "manifest.json").write_bytes(resigned(document))
    assert build(source, tmp_path / "out", **keys).was_there
    assert not shardprep.verify(path).problems
    reused = build(source, tmp_path / "again", reuse=path, **keys)
    assert reused.num_copied == (0 if name == "fit" else reused.num_new_items)
    whole = {**KEYS, "size": "none", "format": "keep"}
    other = build(source, tmp_path / "other", **whole).manifest
    assert not FORMER.keys() & other.fingerprint.versions.keys()


def test_a_split_called_val_is_stored_as_validation_and_said(tmp_path: Path) -> None:
    """So a folder `val` and the ratio `val` are one split; `repack` does the same."""
    source = source_of(tmp_path, {"train": 20, "val": 10})
    options = ("--split", "val=0.2", "--size", "8x8", "--labels", "prefix")
    done = run("build", source.name, *options, cwd=tmp_path)
    said = "--split: val is stored as the split validation"
    assert said in " ".join(done.stderr.split())
    images = {
        name: one.num_records
        for name, one in load_manifest(tmp_path / "tfrecords/pets/1.0.0").splits.items()
    }
    assert images == {"train": 24, "validation": 6}
    done = run("repack", "--split", "val=0.5", "--version", "2.0.0", cwd=tmp_path)
    assert said in " ".join(done.stderr.split())
    images = {
        name: one.num_records
        for name, one in load_manifest(tmp_path / "tfrecords/pets/2.0.0").splits.items()
    }
    assert images == {"train": 15, "validation": 15}


def test_a_class_in_one_split_and_groups_that_differ_in_case_are_noted(tmp_path: Path) -> None:
    members = {f"{'p' if i % 2 else 'P'}{i // 2:03d}_{i}.jpg": jpeg(8, 8, i) for i in range(20)}
    files = {f"cat/{name}": data for name, data in members.items()} | {"rare/x.jpg": jpeg(9, 9)}
    source = write_folder(tmp_path / "pets", files)
    options: dict[str, Any] = {"labels": "folder", "split": "train=0.8,test=0.2"}
    plan = shardprep.build(source, out=tmp_path / "out", dry_run=True, **options)
    assert "1 class has too few images for several splits: rare (train)" in plan.plan.findings
    plan = shardprep.build(
        source, out=tmp_path / "out", dry_run=True, group="regex:^([pP]\\d+)_", **options
    )
    what = "10 pairs of groups differ only in case, such as 'P000' and 'p000'"
    assert f"{what}: write them alike to keep their images together" in plan.plan.findings
    write_folder(source / "rare", {f"{i}.jpg": jpeg(9, 8, i) for i in range(9)})
    plan = shardprep.build(source, out=tmp_path / "out", dry_run=True, **options)
    assert not any("too few images" in one for one in plan.plan.findings)
