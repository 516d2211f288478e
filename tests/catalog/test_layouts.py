"""Every layout of a Kaggle data set that docs/kaggle.md says works is built, with its flags."""

import contextlib
import importlib.util
import io
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shardprep import reader
from shardprep.dataset.item_table import read_items
from shardprep.dataset.manifest import Manifest, load_manifest
from shardprep.dataset.schema import TARGET_FEATURES
from tests.support.layouts import LAYOUTS, OUTSIDE, PAGE, Layout, page_text, write_source
from tests.support.quick_command import build_command, encode_here
from tests.writer.records import records

BY_KIND = {
    layout.kind: layout for layout in reversed(LAYOUTS) if not (layout.needs or layout.stored)
}
"""The first layout of every kind of target."""
READ = {layout.id: layout for layout in LAYOUTS if layout.features or layout in BY_KIND.values()}
CUT_BY_GROUP = [layout for layout in LAYOUTS if "--group" in layout.flags and "=0." in layout.flags]


@dataclass(frozen=True, slots=True)
class Built:
    """The dataset that was built of a layout."""

    path: Path
    manifest: Manifest
    plan: dict[str, Any]
    """The JSON object of --dry-run."""
    examples: dict[str, dict[str, Any]]
    """Key → features of its record."""
    items: list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    encode_here(monkeypatch)


@pytest.fixture(name="built")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Layout], Built]:
    """Return what builds a layout, or has built it already; nobody changes it."""

    def build_once(layout: Layout) -> Built:
        if layout.needs and importlib.util.find_spec(layout.needs) is None:
            pytest.skip(f"needs {layout.needs}")
        number = LAYOUTS.index(layout)
        if number not in _BUILT:
            _BUILT[number] = from_flags(layout, tmp_path_factory.mktemp("layout"))
        return _BUILT[number]

    return build_once


_BUILT: dict[int, Built] = {}
"""By the layout's place in `LAYOUTS`."""


def from_flags(layout: Layout, folder: Path) -> Built:
    """Type the flags of a layout in a folder, and read what they have built."""
    small = () if "--format" in layout.flags else ("--size", "8x8")
    arguments = (write_source(layout, folder), *shlex.split(layout.flags), *small)
    with contextlib.chdir(folder):
        plan = build_command(*arguments, "--dry-run")
        path = folder / build_command(*arguments)["path"]
    columns = ["key", "status", "reason", "split", "group"]
    items = read_items(path / "items.parquet", columns).to_pylist()
    return Built(path, load_manifest(path), plan, records(path), items)


def target(example: dict[str, Any], kind: str, names: tuple[str, ...]) -> object:
    """Return the target of a record, in the words of `Layout.targets`."""
    if kind == "multilabel":
        return tuple(names[label] for label in example["labels"])
    if kind == "none":
        return None
    (value,) = example[TARGET_FEATURES[kind]]
    if kind == "class":
        return None if value < 0 else names[value]
    if kind == "regression":
        return None if np.isnan(value) else value
    return value.decode() or None


def expected(layout: Layout, key: str) -> object:
    """Return the target that a record must have: no labels are the empty set."""
    nothing = () if layout.kind == "multilabel" else None
    found = layout.targets[key]
    return nothing if found is None else found


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.id)
def test_a_layout_is_built_with_its_flags(layout: Layout, built: Callable[[Layout], Built]) -> None:
    result = built(layout)
    totals, splits = result.manifest.totals, result.manifest.splits
    assert {name: split.num_records for name, split in splits.items()} == layout.splits
    assert result.manifest.labels.names == layout.classes
    for key in layout.targets:
        assert target(result.examples[key], layout.kind, layout.classes) == expected(layout, key)
    for key, features in layout.features.items():
        assert {name: result.examples[key][name] for name in features} == {
            name: [value] for name, value in features.items()
        }
    for name, split in splits.items():
        assert split.num_unlabelled == (split.num_records if name in layout.unlabelled else 0)
    assert result.manifest.labels.num_rows_without_image == layout.rows_without_image
    assert totals.rejected == layout.rejected
    skipped = [row["reason"] for row in result.items if row["status"] == "skipped"]
    assert Counter(reason.partition(": ")[0] for reason in skipped) == layout.skipped
    assert totals.num_inputs == totals.num_written + totals.num_rejected + totals.num_skipped
    # What the dry run has foretold is what was tried.
    tried = Counter(row["split"] for row in result.items if row["status"] != "skipped")
    assert result.plan["images"] == tried
    assert tuple(result.plan["labels"]) == layout.classes
    assert sum(result.plan["skipped"].values()) == totals.num_skipped
    assert result.plan.get("num_objects", {}) == layout.objects
    assert result.plan.get("num_masks", 0) == layout.num_masks


@pytest.mark.parametrize("layout", CUT_BY_GROUP, ids=lambda layout: layout.id)
def test_no_group_of_a_layout_spans_two_splits(
    layout: Layout, built: Callable[[Layout], Built]
) -> None:
    result = built(layout)
    splits = defaultdict(set)
    for row in result.items:
        if row["group"] is not None and row["split"] != "test":
            splits[row["group"]].add(row["split"])
    assert len(splits) >= 3
    assert all(len(names) == 1 for names in splits.values())


def test_format_keep_stores_the_original_bytes_of_a_layout(
    built: Callable[[Layout], Built],
) -> None:
    (layout,) = [layout for layout in LAYOUTS if "--format keep" in layout.flags]
    result = built(layout)
    members = layout.members()
    assert {key: example["image"] for key, example in result.examples.items()} == {
        key: [members[key]] for key in result.examples
    }


@pytest.mark.parametrize("layout", READ.values(), ids=lambda layout: f"{layout.kind}-{layout.id}")
def test_tfds_and_the_reader_find_the_targets_of_every_kind(
    layout: Layout, built: Callable[[Layout], Built]
) -> None:
    import tensorflow_datasets as tfds

    result = built(layout)
    opened = tfds.builder_from_directory(str(result.path))
    assert {name: split.num_examples for name, split in opened.info.splits.items()} == layout.splits
    places = {name: i for i, name in enumerate(layout.classes)}
    num_seen = 0
    for split in layout.splits:
        ours = reader.load(result.path, split, shuffle=False)
        theirs = opened.as_dataset(split=split, shuffle_files=False)
        pairs = zip(ours.as_numpy_iterator(), theirs.as_numpy_iterator(), strict=True)
        for mine, example in pairs:
            key = example["image/filename"].decode()
            image, found = (mine, None) if layout.kind == "none" else mine
            assert image.shape == example["image"].shape == (8, 8, 3)
            for name, value in layout.features.get(key, {}).items():
                assert example[name] == value
            if key in layout.targets:
                wanted = expected(layout, key)
                assert target_of_tfds(example, layout.kind, layout.classes) == wanted
                assert_read(found, wanted, layout.kind, places)
                num_seen += 1
    assert num_seen == len(layout.targets)


def target_of_tfds(example: dict[str, Any], kind: str, names: tuple[str, ...]) -> object:
    """Return the target of an example of TFDS, in the words of `Layout.targets`."""
    if kind == "multilabel":
        return tuple(names[label] for label in example["labels"])
    return target({name: [value] for name, value in example.items()}, kind, names)


def assert_read(found: Any, wanted: object, kind: str, places: dict[str, int]) -> None:
    """Check what the reader gives a model for a target."""
    if kind == "class":
        assert found.dtype == np.int64
        assert found == (-1 if wanted is None else places[str(wanted)])
    elif kind == "multilabel":
        assert found.dtype == np.float32
        hot = [float(name in wanted) for name in places]  # type: ignore[operator]
        assert found.tolist() == hot
    elif kind == "regression":
        assert found.dtype == np.float32
        assert np.isnan(found) if wanted is None else found == wanted
    elif kind == "text":
        assert found.decode() == (wanted or "")
    else:
        assert found is None


def test_every_stored_image_is_rgb_of_the_size_asked_for(built: Callable[[Layout], Built]) -> None:
    """TIFF, RGBA, 16-bit grey, grey and CMYK, each in the layout that has it."""
    for row in (3, 38, 39, 49, 58):
        layout = next(layout for layout in LAYOUTS if layout.row == row)
        for example in built(layout).examples.values():
            image = Image.open(io.BytesIO(example["image"][0]))
            assert (image.mode, image.size) == ("RGB", (8, 8))


def test_at_least_fifty_rows_work_with_nothing_left_behind() -> None:
    whole = {layout.row for layout in LAYOUTS if not layout.missing}
    assert len(whole) >= 50
    working = {layout.row for layout in LAYOUTS}
    assert len(working) >= 54
    assert working | {one.row for one in OUTSIDE} == set(range(1, 59))
    assert not working & {one.row for one in OUTSIDE}


def test_the_page_has_the_table_of_these_layouts() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_text(page), "run: python -m tests.support.layouts"
