"""Masks of stacks and masks in arrays, built from miniatures of four competitions.

The originals are read independently, by Pillow and NumPy, and compared with the stored masks.
"""

import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import shardprep
from shardprep.catalog.survey import recipe_text, survey_source
from shardprep.dataset.annotated_pictures import annotated_pictures
from shardprep.dataset.open_dataset import open_dataset
from shardprep.errors import RecipeError, SourceError
from shardprep.verifier.examples import ExampleCheck
from tests.support.arrays import decoded, nifti, npy, paged_tiff
from tests.support.builders import build, encoded, write, write_folder, zip_bytes
from tests.support.dicom import dicom
from tests.writer.records import built, png, records, rows

Array = np.ndarray[Any, np.dtype[Any]]
HEIGHT, WIDTH = 12, 16


def blocks(seed: int, number: int, values: int = 2) -> Array:
    """Return masks of squares of 4 pixels, so that half of the size has no mixed pixels."""
    small = np.random.default_rng(seed).integers(0, values, (number, HEIGHT // 4, WIDTH // 4))
    return small.repeat(4, axis=1).repeat(4, axis=2).astype(np.uint8)


def deep(seed: int, number: int) -> Array:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 65_536, (number, HEIGHT, WIDTH), np.uint16)


def tiff(pixels: Array) -> bytes:
    return encoded(Image.fromarray(pixels), "TIFF")


KIDNEYS = {"kidney_1_dense": 11, "kidney_2": 3}


def sennet() -> dict[str, bytes]:
    """As in SenNet: slices of 16 bits and their labels, black and white, in a folder each.

    One sample lacks a label. Another lacks an image and the label of another image.
    """
    members: dict[str, bytes] = {}
    for seed, (name, number) in enumerate((*KIDNEYS.items(), ("kidney_3", 4), ("kidney_4", 4))):
        for i, (image, mask) in enumerate(
            zip(deep(seed, number), blocks(seed, number), strict=True)
        ):
            members[f"train/{name}/images/{i}.tif"] = tiff(image)
            members[f"train/{name}/labels/{i}.tif"] = tiff(mask * 255)
    for lost in ("kidney_3/labels/1", "kidney_4/images/1", "kidney_4/labels/2"):
        del members[f"train/{lost}.tif"]
    return members | {"train/kidney_5/labels/0.tif": tiff(blocks(5, 1)[0])}


SENNET: dict[str, Any] = {
    "stack": "train/{id}/images/*.tif",
    "masks": "{id}/labels/*.tif",
    "depth": 16,
    "size": "none",
    "shards": 1,
    "max_rejected": 0.5,
}


@pytest.fixture(name="kidneys", scope="module")
def _kidneys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sennet")
    return build(write(folder / "sennet.zip", zip_bytes(sennet())), folder / "out", **SENNET).path


def test_each_image_of_a_stack_has_its_mask(kidneys: Path) -> None:
    found = records(kidneys)
    assert found.keys() == {f"train/{name}" for name in KIDNEYS}
    counts = {0: 0, 1: 0}
    for seed, (name, number) in enumerate(KIDNEYS.items()):
        row = found[f"train/{name}"]
        assert (np.array([*map(png, row["images"])]) == deep(seed, number)).all()
        masks = np.array([*map(png, row["segmentation_mask"])])
        assert masks.dtype == np.uint8
        assert (masks == blocks(seed, number)).all()
        pixels = dict(rows(kidneys)[f"train/{name}"]["mask_pixels"])
        assert pixels == {value: int((masks == value).sum()) for value in (0, 1)}
        counts = {value: counts[value] + pixels[value] for value in counts}
    dataset = open_dataset(kidneys)
    assert dataset.schema.features["segmentation_mask"].repeated
    assert dataset.schema.features["segmentation_mask"].labels == ("background", "object")
    of_split = dataset.manifest.annotations["train"].masks
    assert of_split
    assert of_split.pixels == {"background": counts[0], "object": counts[1]}
    assert dataset.manifest.annotations["train"].objects is None
    assert not shardprep.verify(kidneys, decode=True).problems


def test_masks_that_do_not_fit_the_images_reject_the_sample(kidneys: Path) -> None:
    items = rows(kidneys)
    reasons = {
        "train/kidney_3": "it has 3 masks, but 4 images",
        "train/kidney_4": "the numbers in the names of its masks differ from its images",
    }
    for key, reason in reasons.items():
        assert (items[key]["kind"], items[key]["reason"]) == ("bad_mask", reason)
    totals = open_dataset(kidneys).manifest.totals
    assert totals.rejected == {"bad_mask": 2}
    assert totals.skipped == {"a mask without its image": 1}


def test_masks_follow_slices_that_are_sorted_by_position(tmp_path: Path) -> None:
    masks, members = blocks(6, 4), dict[str, bytes]()
    for i, mask in enumerate(masks):  # the file with the highest number is the first slice
        place: list[Any] = [[0, 0, 5.0 * i], [1, 0, 0, 0, 1, 0]]
        elements = dict(
            zip(("ImagePositionPatient", "ImageOrientationPatient"), place, strict=True)
        )
        members[f"a/images/{4 - i}.dcm"] = dicom(mask * 200, **elements)
        members[f"a/masks/{4 - i}.png"] = encoded(Image.fromarray(mask), "PNG")
    source = write_folder(tmp_path / "source", members)
    keys: dict[str, Any] = {"format": "png", "size": "none", "window": "full"}
    result = build(
        source, tmp_path / "out", stack="{id}/images/*", masks="{id}/masks/*.png", **keys
    )
    row = records(result.path)["a"]
    for mask, image, stored in zip(masks, row["images"], row["segmentation_mask"], strict=True):
        assert (decoded(image)[..., 0] == mask * 200).all()
        assert (png(stored) == mask).all()


def test_a_mask_of_a_whole_stack_is_placed_like_its_images(tmp_path: Path) -> None:
    """As in vesuvius-ink: layers of 16 bits, a mask of the ink, and files that are neither.

    One fragment has no mask, and one has a mask of another size.
    """
    members: dict[str, bytes] = {}
    for seed, name in enumerate("1234"):
        (ink,) = blocks(seed, 1)
        for i in range(3):
            layer = np.where(ink == 1, 60_000 + i, 1000 * i).astype(np.uint16)
            members[f"train/{name}/surface_volume/{i:02}.tif"] = tiff(layer)
        members[f"train/{name}/inklabels.png"] = encoded(Image.fromarray(ink * 255), "PNG")
        members[f"train/{name}/ir.png"] = encoded(Image.fromarray(ink), "PNG")
    del members["train/3/inklabels.png"]
    members["train/4/inklabels.png"] = encoded(Image.new("L", (WIDTH, HEIGHT - 4)), "PNG")
    keys: dict[str, Any] = {
        "stack": "train/{id}/surface_volume/*.tif",
        "masks": "{id}/inklabels.png",
        "depth": 16,
        "shards": 1,
        "max_rejected": 0.5,
        "max_dropped": 0.5,
    }
    result, found = built(tmp_path, members, size=(HEIGHT // 2, WIDTH), **keys)
    assert found.keys() == {"train/1", "train/2"}
    for seed, key in enumerate(("train/1", "train/2")):
        (mask,) = map(png, found[key]["segmentation_mask"])
        images = [*map(png, found[key]["images"])]
        inside = blocks(seed, 1)[0][::2, ::2]  # half of the size, with padding at both sides
        assert (mask[:, 4:12] == inside).all()
        assert (np.delete(mask, range(4, 12), axis=1) == 255).all()
        for image in images:
            sure = np.abs(image[:, 4:12].astype(int) - 30_000) > 20_000
            assert ((image[:, 4:12] > 30_000) == inside)[sure].all()
            assert sure.mean() > 0.5
    assert not open_dataset(result.path).schema.features["segmentation_mask"].repeated
    items = rows(result.path)
    assert items["train/3"]["reason"] == "no mask"
    bad = "inklabels.png: the mask is of 16x8 pixels, but its image has 16x12"
    assert (items["train/4"]["kind"], items["train/4"]["reason"]) == ("bad_mask", bad)
    assert items["train/1/ir.png"]["reason"] == "not matched by --stack"


def test_bands_and_their_mask_are_read_from_arrays(tmp_path: Path) -> None:
    """As in contrails: 3 bands of 8 times as floats; the mask is of the fifth time."""
    rng, members, masks = np.random.default_rng(1), dict[str, bytes](), dict[str, Array]()
    for name in ("1000216489776414077", "1000603527582775543"):
        for band in (8, 9, 16):
            values = rng.uniform(200, 300, (HEIGHT, WIDTH, 8)).astype(np.float32)
            members[f"train/{name}/band_{band:02}.npy"] = npy(values)
        masks[f"train/{name}"] = rng.integers(0, 2, (HEIGHT, WIDTH, 1), np.int32)
        members[f"train/{name}/human_pixel_masks.npy"] = npy(masks[f"train/{name}"])
    result = build(
        write(tmp_path / "contrails.zip", zip_bytes(members)),
        tmp_path / "out",
        images=("band_*.npy::HWN",),
        stack="train/{id}/band_*.npy/000004",
        masks="{id}/human_pixel_masks.npy",
        depth_range="200,300",
        format="png",
        size="none",
    )
    found = records(result.path)
    assert found.keys() == masks.keys()
    for key, row in found.items():
        assert row["num_images"] == [3]
        (mask,) = row["segmentation_mask"]
        assert (png(mask) == masks[key][..., 0]).all()
        for band, data in zip((8, 9, 16), row["images"], strict=True):
            values = np.load(io.BytesIO(members[f"{key}/band_{band:02}.npy"]))[..., 4]
            levels = np.rint((values.astype(np.float64) - 200) * 2.55)
            assert (decoded(data)[..., 0] == levels).all()
    assert not shardprep.verify(result.path, decode=True).problems


@pytest.mark.parametrize("instances", [False, True])
def test_masks_of_single_images_are_arrays(*, instances: bool, tmp_path: Path) -> None:
    """As in recodai-luc-forgery: masks of instances as arrays, only of the forged images."""
    image = encoded(Image.new("RGB", (WIDTH, HEIGHT)), "PNG")
    members = {f"train_images/authentic/{name}.png": image for name in "ab"}
    members |= {f"train_images/forged/{name}.png": image for name in "cdef"}
    masks: dict[str, Array] = {"c": blocks(1, 2), "d": blocks(2, 1)[0], "e": blocks(3, 3) > 0}
    members |= {f"train_masks/{name}.npy": npy(mask) for name, mask in masks.items()}
    members["train_masks/f.npy"] = npy(np.zeros((2, HEIGHT, WIDTH + 1), np.uint8))
    result, stored = built(
        tmp_path,
        members,
        masks="train_masks/{stem}.npy",
        labels="folder",
        unlisted="background",
        instances=instances,
        size="none",
        max_rejected=0.5,
    )
    found = {key.rpartition("/")[2][0]: row for key, row in stored.items()}
    assert found.keys() == set("abcde")
    for name, row in found.items():
        planes = masks.get(name, np.zeros((1, HEIGHT, WIDTH), np.uint8))
        planes = planes.reshape(-1, HEIGHT, WIDTH).astype(np.uint8)
        if instances:
            objects = {plane.tobytes() for plane in planes if plane.any()}
            assert {png(data).tobytes() for data in row["objects/mask"]} == objects
        else:
            (mask,) = map(png, row["segmentation_mask"])
            assert (mask == planes.max(axis=0)).all()
    reason = rows(result.path)["train_images/forged/f.png"]["reason"]
    assert "is of 17x12 pixels, but its image has 16x12" in reason


def test_a_mask_that_is_not_an_array_of_whole_numbers_is_an_error(tmp_path: Path) -> None:
    image = encoded(Image.new("RGB", (WIDTH, HEIGHT)), "PNG")
    values = np.zeros((HEIGHT, WIDTH))
    cases: tuple[tuple[Array, str], ...] = (
        (values + 0.5, "whole numbers from 0 to 65535"),
        (values.astype(np.int8) - 1, "whole numbers from 0 to 65535"),
        (values.astype(object), "pickled Python objects, which are never read"),
        (np.zeros((2, 2, 2, 2, 2), np.uint8), r"is a mask of the shape \(2, 2, 2, 2, 2\)"),
        (np.zeros((0, HEIGHT, WIDTH), np.uint8), "is a mask of the shape"),
        (np.zeros((HEIGHT, WIDTH, 3), np.uint16), "is a mask of uint16 in colours"),
    )
    for number, (array, what) in enumerate(cases):
        members = {"images/a.png": image, "masks/a.npy": npy(array)}
        source = write_folder(tmp_path / f"{number}", members)
        with pytest.raises(SourceError, match=what):
            build(source, tmp_path / "out", masks="masks/{stem}.npy")


VOLUMES: dict[str, Any] = {
    "nii.gz": lambda volume: gzip.compress(nifti(volume.transpose(2, 1, 0))),
    "npy": npy,
    "tif": paged_tiff,
}


@pytest.mark.parametrize("suffix", VOLUMES)
def test_a_volume_of_labels_gives_each_image_its_mask(suffix: str, tmp_path: Path) -> None:
    """As in BraTS and vesuvius-surface: classes 0 to 4, which no levels change."""
    save = VOLUMES[suffix]
    more: dict[str, Any] = {"images": ("*.npy::THW",)} if suffix == "npy" else {}
    made = {name: (deep(i, 3 + i), blocks(i, 3 + i, 5)) for i, name in enumerate("abc")}
    members: dict[str, bytes] = {}
    for name, (volume, labels) in made.items():
        members[f"images/{name}.{suffix}"] = save(volume)
        number = 2 if name == "c" else None
        members[f"labels/{name}.{suffix}"] = save(labels[:number])
    result, found = built(
        tmp_path,
        members,
        masks="labels/{name}",
        mask_values="0=background,1=necrosis,2=edema,3=enhancing,4=ignore",
        depth=16,
        size="none",
        max_rejected=0.5,
        **more,
    )
    assert found.keys() == {f"images/{name}.{suffix}" for name in "ab"}
    for name in "ab":
        row, (volume, labels) = found[f"images/{name}.{suffix}"], made[name]
        assert (np.array([*map(png, row["images"])]) == volume).all()
        masks = np.array([*map(png, row["segmentation_mask"])])
        assert (masks == np.where(labels == 4, 255, labels)).all()
    bad = rows(result.path)[f"images/c.{suffix}"]
    assert (bad["kind"], bad["reason"]) == ("bad_mask", "it has 2 masks, but 5 images")


def test_a_mask_of_volumes_by_channel_is_repeated_for_each_channel(tmp_path: Path) -> None:
    """As in BraTS: a volume for each modality, and one of labels."""
    volumes, labels = [deep(i, 3) for i in range(2)], blocks(3, 3)
    members = {
        f"BraTS_001/BraTS_001_{name}.nii.gz": volume
        for name, volume in zip(("flair", "t1"), volumes, strict=True)
    }
    members |= {"BraTS_001/BraTS_001_seg.nii.gz": labels}
    _, found = built(
        tmp_path,
        {key: VOLUMES["nii.gz"](one) for key, one in members.items()},
        stack="{id}/{id}_{flair,t1}.nii.gz",
        masks="{id}/*_seg.nii.gz",
        depth=16,
        size="none",
    )
    ((_, row),) = found.items()
    assert (
        np.array([*map(png, row["images"])]) == np.stack(volumes, 1).reshape(6, HEIGHT, WIDTH)
    ).all()
    assert (np.array([*map(png, row["segmentation_mask"])]) == labels.repeat(2, axis=0)).all()


def test_a_folder_of_masks_beside_the_images_is_recognised(kidneys: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "sennet.zip", zip_bytes(sennet()))
    survey = survey_source(source, tmp_path, lambda _: None)
    assert "--stack 'train/{id}/images/*.tif' --masks auto" in [one.flags for one in survey.rules]
    assert '# masks = "auto"  #' in recipe_text(survey)
    keys = {**SENNET, "masks": "auto"}
    assert records(build(source, tmp_path / "out", **keys).path) == records(kidneys)
    classes = {
        f"{name}/images/{i}.png": encoded(Image.new("L", (8, 8)))
        for name in ("train", "val")
        for i in range(3)
    }
    classes |= {key.replace("images", "masks"): data for key, data in classes.items()}
    other = survey_source(write_folder(tmp_path / "splits", classes), tmp_path, lambda _: None)
    assert not [one for one in other.rules if "stack" in one.options]
    with pytest.raises(SourceError, match="no masks of stacks are recognised"):
        build(tmp_path / "splits/val/images", tmp_path / "other", stack="{id}.png", masks="auto")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"masks": "rle:train.csv:id:rle"}, "masks of objects are not supported for stacks"),
        ({"instances": True}, "masks of objects are not supported for stacks"),
        ({"masks": "{id}/*/*.tif"}, "fits every image of the source"),
    ],
)
def test_options_that_masks_of_stacks_do_not_allow_are_errors(
    keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "sennet.zip", zip_bytes(sennet()))
    with pytest.raises((RecipeError, SourceError), match=message):
        build(source, tmp_path / "out", **{**SENNET, **keys})


def test_verify_finds_lost_and_damaged_masks(kidneys: Path) -> None:
    check = ExampleCheck(open_dataset(kidneys).schema, decode=True)
    row = records(kidneys)["train/kidney_2"]
    masks = row["segmentation_mask"]
    assert not [*check.faults(row, None, 0)]
    odd = encoded(Image.fromarray(np.full((HEIGHT, WIDTH), 7, np.uint8)), "PNG")
    small = encoded(Image.new("L", (8, 8)), "PNG")
    for changed, what in (
        (masks[:2], "different lengths: images of 3, segmentation_mask of 2"),
        ([*masks[:2], masks[2][:60]], "segmentation_mask 2 is a PNG without an end"),
        ([masks[0], odd, masks[2]], "segmentation_mask 1 has pixels of 7"),
        ([small, *masks[1:]], "segmentation_mask 0 is 8x8 pixels"),
    ):
        faults = [*check.faults({**row, "segmentation_mask": changed}, None, 0)]
        assert any(what in fault.what for fault in faults), faults


def test_masks_of_stacks_are_exported_and_shown(kidneys: Path, tmp_path: Path) -> None:
    found = records(kidneys)
    exported = shardprep.export(kidneys, to="folder", out=tmp_path / "exported").path
    for key, row in found.items():
        for i, mask in enumerate(row["segmentation_mask"]):
            file = exported / f"class-masks/train/{key.rpartition('/')[2]}/{i:05d}.png"
            assert file.read_bytes() == mask
    (shown,) = (one for one in annotated_pictures(open_dataset(kidneys), 2) if "y_2" in one.title)
    assert shown.mask == found["train/kidney_2"]["segmentation_mask"][1]
