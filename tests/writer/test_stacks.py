"""Samples of several images, built from miniatures of three competitions.

The originals are read independently, by pydicom and Pillow, and compared with the stored images.
"""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import shardprep
from shardprep import reader
from shardprep.catalog.survey import recipe_text, survey_source
from shardprep.dataset.open_dataset import open_dataset
from shardprep.dataset.schema import Schema
from shardprep.errors import DatasetError, QuestionError, RecipeError, SourceError
from shardprep.recipe.rules import parse_stack_rule
from shardprep.verifier.examples import ExampleCheck
from tests.support.arrays import decoded
from tests.support.builders import (
    animals,
    build,
    encoded,
    in_workers,
    jpeg,
    unsigned,
    write,
    write_folder,
    zip_bytes,
)
from tests.support.dicom import dicom
from tests.writer.records import built, records, rows

HEIGHT, WIDTH = 12, 16
TOMOGRAMS = {"tomo_00e047": 3, "tomo_01a877": 12, "tomo_0a8f05": 1, "tomo_0c3a99": 5}
TOMO_LABELS = """row_id,tomo_id,Motor axis 0,Number of motors
0,tomo_00e047,169.0,1
1,tomo_01a877,-1.0,0
2,tomo_0a8f05,60.0,2
3,tomo_0a8f05,98.0,2
4,tomo_0c3a99,,
"""
"""As in byu-flagellar-motors: a row for each motor, so an id may occur twice; one cell is empty."""


def slices(folder: str, number: int) -> dict[str, bytes]:
    return {f"{folder}/slice_{i}.jpg": jpeg(HEIGHT, WIDTH, i) for i in range(number)}


def tomograms() -> dict[str, bytes]:
    members = {"train_labels.csv": f"{TOMO_LABELS}5,tomo_gone,1.0,1\n".encode()}
    for name, number in TOMOGRAMS.items():
        members |= slices(f"train/{name}", number)
    return members | {"train/readme.jpg": jpeg(8, 8)}


BYU: dict[str, Any] = {
    "stack": "train/{id}/slice_*.jpg",
    "labels": "csv:train_labels.csv:tomo_id:Number of motors",
    "target": "class",
    "format": "keep",
    "shards": 1,
}


@pytest.fixture(name="byu", scope="module")
def _byu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("byu")
    return build(write(folder / "byu.zip", zip_bytes(tomograms())), folder / "out", **BYU).path


def test_slices_are_stored_in_natural_order_as_they_are(byu: Path) -> None:
    found = records(byu)
    labels = {"tomo_00e047": "1", "tomo_01a877": "0", "tomo_0a8f05": "2"}
    assert found.keys() == {f"train/{name}" for name in labels}
    names = open_dataset(byu).schema.labels
    for name, label in labels.items():
        row = found[f"train/{name}"]
        assert row["images"] == [jpeg(HEIGHT, WIDTH, i) for i in range(TOMOGRAMS[name])]
        assert row["num_images"] == [TOMOGRAMS[name]]
        assert names[row["label"][0]] == label
        assert (row["image/height"], row["image/width"]) == ([HEIGHT], [WIDTH])


def test_every_input_is_counted(byu: Path) -> None:
    manifest = open_dataset(byu).manifest
    assert manifest.totals.skipped == {
        "no label": 1,
        "not matched by --stack": 1,
    }
    assert manifest.totals.num_inputs == 3 + 2
    items = rows(byu)
    own = items["train/tomo_01a877"]
    stack = [jpeg(HEIGHT, WIDTH, i) for i in range(12)]
    assert own["original_bytes"] == sum(map(len, stack))
    assert (own["original_height"], own["original_format"]) == (HEIGHT, "jpeg")
    assert not shardprep.verify(byu, decode=True).problems


def test_workers_and_folders_give_the_same_bytes(byu: Path, tmp_path: Path) -> None:
    source = write_folder(tmp_path / "byu", tomograms())
    again = build(source, tmp_path / "out", engine=in_workers, **BYU).path
    assert unsigned(again) == unsigned(byu)


@pytest.mark.thorough
def test_other_commands_take_a_dataset_of_stacks(byu: Path, tmp_path: Path) -> None:
    exported = shardprep.export(byu, to="folder", out=tmp_path / "exported")
    assert (exported.path / "train/2/tomo_0a8f05/00000.jpg").read_bytes() == jpeg(HEIGHT, WIDTH, 0)
    shardprep.report(byu, output=tmp_path / "report.html")
    assert "original sizes, JPEG or PNG, stacks" in (tmp_path / "report.html").read_text()
    with pytest.raises(DatasetError, match="bench compares readers of single images"):
        shardprep.bench(byu)


SERIES = {"4003253/702807833": (5, "Axial T2"), "4003253/1054713880": (4, "Sagittal T1")}


def volume(number: int) -> np.ndarray[Any, np.dtype[np.int16]]:
    rng = np.random.default_rng(number)
    return rng.integers(-1000, 3000, (number, HEIGHT, WIDTH)).astype(np.int16)


def lumbar() -> dict[str, bytes]:
    """As in rsna-2024-lumbar-spine: series of DICOM slices whose numbers run against the position.

    One series has a slice that is no image, one no description.
    """
    table = "study_id,series_id,series_description\n"
    members: dict[str, bytes] = {}
    for series, (number, description) in SERIES.items():
        table += f"{series.replace('/', ',')},{description}\n"
        for i, values in enumerate(volume(number)):
            elements: dict[str, Any] = {
                "ImagePositionPatient": [0, -1.5, 4.0 * i],
                "ImageOrientationPatient": [1, 0, 0, 0, 1, 0],
                "InstanceNumber": number - i,
            }
            members[f"train_images/{series}/{number - i}.dcm"] = dicom(values, **elements)
    members["train_images/4646740/3201256954/1.dcm"] = dicom(volume(1)[0])
    members["train_images/4646740/3201256954/2.dcm"] = b"\x00" * 128 + b"DICM no more"
    members["train_images/7143189/132939515/1.dcm"] = dicom(volume(1)[0])
    table += "4646740,3201256954,Axial T2\n7143189,132939515,\n"
    return {**members, "train_series_descriptions.csv": table.encode()}


def test_a_series_is_stored_in_16_bits_by_the_position_of_its_slices(tmp_path: Path) -> None:
    source = write(tmp_path / "lumbar.zip", zip_bytes(lumbar()))
    result = build(
        source,
        tmp_path / "out",
        stack="train_images/{study}/{series}/*.dcm",
        labels="csv:train_series_descriptions.csv:{study_id}/{series_id}:series_description",
        depth=16,
        window="1000,4001",
        size="none",
        max_rejected=0.5,
    )
    found = records(result.path)
    assert found.keys() == {f"train_images/{series}" for series in SERIES}
    for series, (number, _) in SERIES.items():
        stored = found[f"train_images/{series}"]["images"]
        images = [*map(decoded, stored)]
        assert {image.dtype for image in images} == {np.dtype(np.uint16)}
        # Center 1000 and width 4001 (PS3.3, C.11.2.1.2): 4,000 steps from -1000.5 to 2999.5.
        assert (np.array(images) == np.rint((volume(number) + 1000.5) / 4000 * 65535)).all()
    items = rows(result.path)
    bad = items["train_images/4646740/3201256954"]
    assert (bad["status"], bad["reason"].partition(":")[0]) == ("rejected", "2.dcm")
    assert items["train_images/7143189/132939515"]["reason"] == "no label"
    assert not shardprep.verify(result.path, decode=True).problems


def test_without_positions_the_instance_number_orders_slices(tmp_path: Path) -> None:
    members = {
        f"a/{name}.dcm": dicom(np.full((4, 4), 40 * name, np.uint8), InstanceNumber=9 - name)
        for name in (1, 2, 3)
    }
    source = write_folder(tmp_path / "source", members)
    result = build(
        source, tmp_path / "out", stack="{id}/*.dcm", format="png", window="full", size="none"
    )
    row = records(result.path)["a"]
    levels = [decoded(data)[0, 0, 0] for data in row["images"]]
    assert levels == [120, 80, 40]


CHANNELS = ("red", "green", "blue", "yellow")


def protein(depth: type[np.unsignedinteger[Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """As in human-protein-atlas: four grey files per sample; the second sample lacks one."""
    rng = np.random.default_rng(1)
    most = np.iinfo(depth).max
    return {
        f"train/{name}_{colour}.png": rng.integers(0, most, (HEIGHT, WIDTH), depth, endpoint=True)
        for name in ("000a6c98", "000a9596", "000c99ba")
        for colour in CHANNELS
        if (name, colour) != ("000a9596", "blue")
    }


@pytest.mark.parametrize("depth", [np.uint8, np.uint16])
def test_channels_are_stored_in_the_order_of_their_names(
    depth: type[np.unsignedinteger[Any]], tmp_path: Path
) -> None:
    planes = protein(depth)
    members = {key: encoded(Image.fromarray(plane), "PNG") for key, plane in planes.items()}
    members["train.csv"] = b"Id,Target\n000a6c98,16 0\n000a9596,7 1\n000c99ba,\n"
    source = write(tmp_path / "atlas.zip", zip_bytes(members))
    is_deep = depth is np.uint16
    result = build(
        source,
        tmp_path / "out",
        stack="train/{id}_{red,green,blue,yellow}.png",
        labels="csv:train.csv:Id:Target",
        target="multilabel",
        separator=" ",
        size="none",
        **({"depth": 16} if is_deep else {"format": "png"}),
    )
    assert open_dataset(result.path).schema.image.channels == CHANNELS
    assert result.manifest.totals.skipped["a channel is missing"] == 1
    row = records(result.path)["train/000a6c98"]
    for colour, data in zip(CHANNELS, row["images"], strict=True):
        stored = decoded(data)
        plane = planes[f"train/000a6c98_{colour}.png"]
        assert (stored == (plane if is_deep else plane[..., None])).all()
    assert not shardprep.verify(result.path, decode=True).problems


def test_volumes_in_arrays_are_stacks_with_several_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    volumes = {name: rng.integers(0, 256, (n, 9, 12), np.uint8) for name, n in (("a", 3), ("b", 2))}
    members = {"t.csv": b"id,tilt,dose\na,1.5,3\nb,-2,\n"}
    for name, volume in volumes.items():
        out = io.BytesIO()
        np.save(out, volume)
        members[f"{name}.npy"] = out.getvalue()
    made, _ = built(
        tmp_path,
        members,
        images=("*.npy::NHW",),
        stack="{id}.npy/*",
        labels="csv:t.csv:id:tilt,dose",
        size="none",
        format="png",
    )
    data = reader.Dataset(made.path, "train", as_supervised=False)
    found = {item["image/filename"]: item for item in data}
    numbers = {"a": [1.5, 3.0], "b": [-2.0, np.nan]}
    assert found.keys() == volumes.keys()
    for name, item in found.items():
        assert (item["images"] == volumes[name][..., None]).all()
        np.testing.assert_array_equal(item["targets"], numbers[name])


def test_images_of_a_stack_must_agree_in_size(tmp_path: Path) -> None:
    members = {**slices("a", 2), "a/slice_2.jpg": jpeg(8, 10), **slices("b", 2)}
    source = write_folder(tmp_path / "source", members)
    keys: dict[str, Any] = {"stack": "{id}/*.jpg", "max_rejected": 0.5}
    uneven = build(source, tmp_path / "out", size="none", **keys)
    items = rows(uneven.path)
    reason = "slice_2.jpg: is 10x8 pixels, but the first image is 16x12; give --size 16x12"
    assert (items["a"]["kind"], items["a"]["reason"]) == ("bad_stack", reason)
    sized = build(source, tmp_path / "sized", size="16x12", **keys)
    found = records(sized.path)
    assert [len(found[key]["images"]) for key in ("a", "b")] == [3, 2]


@pytest.mark.parametrize(
    ("pattern", "key", "sample", "channel"),
    [
        ("train/{id}/slice_*.jpg", "a.zip/train/T1/slice_3.jpg", "a.zip/train/T1", None),
        ("train/{id}/slice_*.jpg", "Train/T1/SLICE_3.JPG", "Train/T1", None),
        ("train/{id}/slice_*.jpg", "train/T1/x/slice_3.jpg", None, None),
        ("{study}/{series}/*.dcm", "t/1/2/3.dcm", "t/1/2", None),
        ("{study}/**/*.dcm", "1/2/3/4.dcm", "1/2/3", None),
        ("{id}/{id}-*.png", "7/7-0001.png", "7", None),
        ("{id}/{id}-*.png", "7/8-0001.png", None, None),
        ("{id}_{red,green}.png", "a_b_red.png", "a_b", "red"),
        ("{id}_{red,green}.png", "a_b_blue.png", None, None),
    ],
)
def test_a_pattern_names_the_sample_of_a_file(
    pattern: str, key: str, sample: str | None, channel: str | None
) -> None:
    rule = parse_stack_rule(pattern)
    match = re.fullmatch(rule.pattern, key)
    assert (match and match["key"]) == sample
    assert (match["channel"] if match and rule.channels else None) == channel


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="only stacks and target images can have 16 bits"):
        build(write_folder(tmp_path / "single", slices("a", 2)), tmp_path / "out", depth=16)
    source = write_folder(tmp_path / "source", slices("a", 2))
    with pytest.raises(SourceError, match=r"use a pattern that fits a/slice_0\.jpg"):
        build(source, tmp_path / "out", stack="{id}/*.dcm")
    members = {"a_red.jpg": jpeg(8, 8)}
    source = write_folder(tmp_path / "channels", members)
    with pytest.raises(SourceError, match="1 sample without a file for each channel"):
        build(source, tmp_path / "out", stack="{id}_{red,green}.jpg")
    table = {"t.csv": b"id,num_images\na,1\n"}
    source = write_folder(tmp_path / "table", {**slices("a", 2), **table})
    labels = "csv:t.csv:id:num_images"
    with pytest.raises(RecipeError, match="two features are named 'num_images'"):
        build(source, tmp_path / "out", stack="{id}/*.jpg", labels=labels, columns="num_images")


def test_verify_finds_lost_and_damaged_images_of_a_stack(byu: Path) -> None:
    schema = Schema.model_validate_json((byu / "schema.json").read_bytes())
    check = ExampleCheck(schema, decode=True)
    row = records(byu)["train/tomo_00e047"]
    images = row["images"]
    assert not [*check.faults(row, None, 0)]
    for changed, what in (
        (images[:2], "the stack has 2 images, not 3"),
        ([], "the stack has 0 images, not"),
        ([*images[:2], images[2][:200]], "image 2 of the stack does not decode"),
        ([images[0], jpeg(8, 8), images[2]], "image 1 of the stack is 8x8 pixels"),
    ):
        faults = [*check.faults({**row, "images": changed}, None, 0)]
        assert any(what in fault.what for fault in faults), faults


def atlas() -> dict[str, bytes]:
    members = {
        key: encoded(Image.fromarray(plane), "PNG") for key, plane in protein(np.uint8).items()
    }
    return {**members, "train.csv": b"Id,Target\n000a6c98,16 0\n000a9596,7 1\n000c99ba,\n"}


@pytest.mark.parametrize(
    ("members", "pattern"),
    [
        (tomograms, "train/{id}/*.jpg"),
        (lumbar, "train_images/{study}/{series}/*.dcm"),
        (atlas, "{id}_{red,green,blue,yellow}.png"),
        (animals, ""),
        (lambda: {f"{kind}/{i}.jpg": jpeg(8, 8) for kind in ("cat", "dog") for i in range(5)}, ""),
    ],
)
def test_a_pattern_is_proposed_where_names_look_like_stacks(
    members: Any, pattern: str, tmp_path: Path
) -> None:
    """By `build` as a question or a decision, and by `init`."""
    source = write(tmp_path / "source.zip", zip_bytes(members()))
    try:
        said = "\n".join(shardprep.build(source, dry_run=True).plan.findings)
    except QuestionError as error:
        said = str(error)
    assert (f"--stack '{pattern}'" in said) == bool(pattern)
    text = recipe_text(survey_source(source, tmp_path, print))
    assert (f'stack = "{pattern}"' in text) == bool(pattern)


@pytest.mark.thorough
def test_raw_stacks_are_the_pixels_of_their_files(tmp_path: Path) -> None:
    import tensorflow_datasets as tfds

    source = write_folder(tmp_path / "source", slices("a", 3))
    path = build(source, tmp_path / "out", stack="{id}/*.jpg", format="raw", size="16x12").path
    stack = reader.Dataset(path)[0]
    expected = [decoded(jpeg(HEIGHT, WIDTH, i)) for i in range(3)]
    assert (stack == np.array(expected)).all()
    (row,) = tfds.builder_from_directory(str(path)).as_dataset(split="train").as_numpy_iterator()
    assert (row["images"] == stack).all()


def test_a_stack_of_too_many_pixels_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardprep.writer.chunk_encoder.MAX_STACK_PIXELS", 2 * HEIGHT * WIDTH)
    source = write_folder(tmp_path / "source", {**slices("a", 3), **slices("b", 2)})
    made = build(source, tmp_path / "out", stack="{id}/*.jpg", size="16x12", max_rejected=0.5)
    items = rows(made.path)
    assert (items["a"]["kind"], items["b"]["status"]) == ("too_many_pixels", "written")
    assert (
        items["a"]["reason"] == "slice_2.jpg: with this image, the stack has more than 384 pixels"
    )


def test_twice_a_channel_is_skipped(tmp_path: Path) -> None:
    members = {
        f"{name}.jpg": jpeg(8, 8) for name in ("a_red", "a_RED", "a_blue", "b_red", "b_blue")
    }
    made = build(
        write_folder(tmp_path / "source", members), tmp_path / "out", stack="{id}_{red,blue}.jpg"
    )
    assert list(records(made.path)) == ["b"]
    assert open_dataset(made.path).manifest.totals.skipped == {"a channel has several files": 1}
