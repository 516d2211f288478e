"""Mask files: which are masks, of which images, and what their values mean."""

import io
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shardprep.catalog import patterns
from shardprep.catalog.catalog import Catalog, make_catalog
from shardprep.catalog.objects.mask_files import pair_masks
from shardprep.catalog.objects.mask_values import detected_values, given_values
from shardprep.errors import OptionError, RecipeError, SourceError
from shardprep.image.annotation_types import IGNORE
from shardprep.recipe.object_rules import parse_mask_pattern
from shardprep.recipe.recipe import make_recipe
from shardprep.source.byte_range import PlainExtent
from shardprep.source.members import Member
from tests.catalog.builders import catalog, facts_of, grey, masked, objects_of
from tests.support.builders import SHARED_DATA, encoded, jpeg, write
from tests.support.paths import data_rows


def masks_of(made: Catalog) -> dict[str, list[str]]:
    """Return the paths of the masks of each image."""
    return {item.key: [mask.key for mask in item.companions] for item in made.items}


_ALL = "0=background,38=NAME,75=NAME"


# Names


@pytest.mark.parametrize(("pattern", "pairs"), data_rows("objects", "mask_pairs"))
def test_a_pattern_pairs_images_with_the_nearest_masks(pattern: str, pairs: dict[str, str]) -> None:
    keys = sorted([*pairs, *pairs.values(), "other/z.jpg"])
    found = pair_masks(keys, parse_mask_pattern(pattern))
    assert found.of_image == {image: [mask] for image, mask in pairs.items()}
    assert found.keys == set(pairs.values())


def test_an_image_may_have_several_masks() -> None:
    keys = ["s/ab/images/ab.png", "s/ab/masks/2.png", "s/ab/masks/1.png", "s/cd/images/cd.png"]
    found = pair_masks(sorted(keys), parse_mask_pattern("{id}/masks/*.png"))
    assert found.of_image == {"s/ab/images/ab.png": ["s/ab/masks/1.png", "s/ab/masks/2.png"]}
    names = ["b (1).png", "b (1)_mask.png", "b (1)_mask_1.png"]
    assert pair_masks(names, parse_mask_pattern("{stem}_mask*.png")).of_image == {
        names[0]: names[1:]
    }


@pytest.mark.parametrize("pattern", ["free/{stem}_*.jpg", "free/{stem}*.jpg"])
def test_a_wildcard_after_the_name_leaves_the_longest_name_of_an_image(pattern: str) -> None:
    masks = ["free/IMG_1_no_shadow.jpg", "free/IMG_1_2_no_shadow.jpg", "free/IMG_3_x.jpg"]
    images = ["in/IMG_1.jpg", "in/IMG_1_2.jpg"]
    found = pair_masks([*masks, *images], parse_mask_pattern(pattern))
    assert found.of_image == {image: [mask] for image, mask in zip(images, masks, strict=False)}
    assert found.without_image == masks[2:]


def test_a_mask_without_its_image_is_reported() -> None:
    keys = ["a/x.jpg", "masks/x.png", "masks/y.png"]
    assert pair_masks(keys, parse_mask_pattern("masks/{stem}.png")).without_image == ["masks/y.png"]


PARTS = [f"{part}/test/hole/{i}.png" for part in ("bottle", "capsule") for i in range(3)]
HOLES = [f"{part}/ground_truth/hole/{i}_mask.png" for part in ("bottle", "capsule") for i in (1, 2)]


@pytest.mark.parametrize(
    "pattern",
    ["{stem}_mask.*", "{id}_mask.*", "ground_truth/{folder}/{stem}_mask.png", "{stem[0:1]}_mask.*"],
)
def test_masks_with_equal_names_are_of_the_images_that_share_their_folders(pattern: str) -> None:
    found = pair_masks(sorted(PARTS + HOLES), parse_mask_pattern(pattern))
    assert not found.without_image
    assert found.of_image == {
        f"{part}/test/hole/{i}.png": [f"{part}/ground_truth/hole/{i}_mask.png"]
        for part in ("bottle", "capsule")
        for i in (1, 2)
    }


@pytest.mark.parametrize(
    "lost", [["bottle/test/hole/1.png"], [f"bottle/test/hole/{i}.png" for i in range(3)]]
)
def test_the_mask_of_a_missing_image_is_never_that_of_another_category(lost: list[str]) -> None:
    keys = sorted({*PARTS, *HOLES} - {*lost})
    found = pair_masks(keys, parse_mask_pattern("{stem}_mask.png"))
    expected = {one: mask for one, mask in found.of_image.items() if one.startswith("capsule")}
    assert expected == {
        f"capsule/test/hole/{i}.png": [f"capsule/ground_truth/hole/{i}_mask.png"] for i in (1, 2)
    }
    is_whole = len(lost) > 1
    assert (
        found.without_image
        == [f"bottle/ground_truth/hole/{i}_mask.png" for i in (1, 2)][: 1 + is_whole]
    )


@pytest.mark.parametrize(
    ("mask", "pattern", "advice"),
    [
        ("gt/{}_{}.png", "gt/*_{stem}.png", "gt/{folder}_{stem}.png"),
        ("gt/{}_{}.png", "gt/hole_{stem}.png", "gt/{folder}_{stem}.png"),
        ("gt/{}/x/{}.png", "x/{stem}.png", "{folder}/x/{stem}.png"),
        ("gt/{}/x/{}.png", "**/x/{stem}.*", "{folder}/x/{stem}.*"),
    ],
)
def test_an_unclear_mask_shows_the_pattern_that_tells_images_apart(
    tmp_path: Path, mask: str, pattern: str, advice: str
) -> None:
    pairs = {f"i/{kind}/{n}.jpg": mask.format(kind, n) for kind in ("good", "hole") for n in (1, 2)}
    members = dict.fromkeys(pairs, jpeg(8, 8)) | dict.fromkeys(pairs.values(), grey(0, 255))
    with pytest.raises(SourceError) as error:
        catalog(tmp_path, members, labels="none", masks=pattern)
    assert "fits several images: i/good/1.jpg and i/hole/1.jpg" in str(error.value)
    assert error.value.hint == f"--masks {shlex.quote(advice)} tells them apart by their folders"
    made = catalog(tmp_path, members, labels="none", masks=shlex.split(error.value.hint)[1])
    assert masks_of(made) == {image: [one] for image, one in pairs.items()}


@pytest.mark.parametrize(("keys", "pattern", "message"), data_rows("objects", "mask_errors"))
def test_masks_that_cannot_be_paired_are_an_error(
    keys: list[str], pattern: str, message: str
) -> None:
    with pytest.raises(SourceError) as error:
        pair_masks(keys, parse_mask_pattern(pattern))
    assert message in str(error.value)


@pytest.mark.parametrize("pattern", data_rows("objects", "no_mask_patterns"))
def test_an_invalid_pattern_is_an_error_of_the_option(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(RecipeError) as error:
        catalog(tmp_path, {"a/x.jpg": jpeg()}, masks=pattern)
    assert str(error.value).startswith("test: masks")


def test_a_hostile_pattern_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "FREE_S", 0.2)
    with pytest.raises(RecipeError, match="takes more than"):
        pair_masks(["a" * 200 + ".png"], parse_mask_pattern("{stem}" + "*a" * 20 + "b"))
    with pytest.raises(RecipeError, match="takes more than"):
        pair_masks(["a" * 200 + ".png", "m/b.png"], parse_mask_pattern("m/{stem:((a+)*)b}.png"))


# The catalog


def test_masks_leave_the_catalog_before_labels_are_guessed(tmp_path: Path) -> None:
    members = {f"data/images/{i}.jpg": jpeg(8, 8) for i in range(4)}
    members |= {f"data/masks/{i}.png": grey(0, 255) for i in range(4)}
    made = catalog(tmp_path, members, masks="masks/{stem}.png")
    assert [item.key for item in made.items] == [f"data/images/{i}.jpg" for i in range(4)]
    assert masks_of(made)["data/images/3.jpg"] == ["data/masks/3.png"]
    assert made.label_names == ()
    assert not made.skipped
    facts = facts_of(made)
    assert facts.names == ("background", "object")
    assert (facts.spec.masks, facts.spec.is_binary, facts.spec.background) == ("classes", True, 0)
    assert not facts.spec.boxes


def test_instances_have_boxes_and_no_background(tmp_path: Path) -> None:
    members = {"7/images/7.png": jpeg(8, 8), "7/masks/a.png": grey(0, 255)}
    members |= {"7/masks/b.png": grey(255, 0)}
    options: dict[str, Any] = {"masks": "{id}/masks/*.png", "instances": True, "classes": "nucleus"}
    made = catalog(tmp_path, members, **options)
    facts = facts_of(made)
    assert (facts.names, facts.spec.masks, facts.spec.boxes) == (("nucleus",), "instances", True)
    (item,) = made.items
    assert objects_of(item).labels == (0, 0)


def test_a_folder_for_each_class_names_the_classes_of_masks(tmp_path: Path) -> None:
    members = {"i/x.jpg": jpeg(8, 8), "m/dog/x.png": grey(0, 255), "m/cat/x.png": grey(255, 0)}
    made = catalog(tmp_path, members, masks="m/{class}/{stem}.png", class_map="cat=lion")
    facts = facts_of(made)
    assert facts.names == ("background", "lion", "dog")
    (item,) = made.items
    assert objects_of(item).labels == (1, 2)
    assert item.strata == (1, 2)


def test_an_image_without_a_mask_is_skipped_or_background(tmp_path: Path) -> None:
    members = {f"train/images/{i}.jpg": jpeg(8, 8) for i in range(3)}
    members |= {f"train/masks/{i}.png": grey(0, 255) for i in (0, 1, 9)}
    members |= {"test/images/t.jpg": jpeg(8, 8)}
    made = catalog(tmp_path, members, masks="masks/{stem}.png")
    annotated = {item.key: item.annotation is not None for item in made.items}
    assert annotated == {
        "test/images/t.jpg": False,  # a split without any is unlabelled
        "train/images/0.jpg": True,
        "train/images/1.jpg": True,
    }
    assert {one.key: one.reason for one in made.skipped} == {
        "train/images/2.jpg": "no mask",
        "train/masks/9.png": "a mask without its image",
    }
    assert any("--unlisted background takes them" in line for line in made.findings)
    made = catalog(tmp_path, members, masks="masks/{stem}.png", unlisted="background")
    assert len(made.items) == 4
    assert [item.annotation is not None for item in made.items] == [False, True, True, True]


def test_images_left_out_take_their_masks_with_them(tmp_path: Path) -> None:
    members = masked(3, 0, 255)
    out = ["images/0*", "masks/1*"]
    made = catalog(tmp_path, members, masks="masks/{stem}.png", include="*.jpg", exclude=out)
    assert {one.key: one.reason for one in made.skipped} == {
        "images/0.jpg": "matched by --exclude",
        "images/1.jpg": "no mask",
        "masks/0.png": "a mask of an image left out",
        "masks/1.png": "matched by --exclude",
    }
    assert [item.key for item in made.items] == ["images/2.jpg"]


def test_masks_of_another_kind_are_not_images(tmp_path: Path) -> None:
    members = {"data/images/x.jpg": jpeg(8, 8), "data/masks/x.png": grey(0, 1, 2)}
    members |= {"data/annotations/x.png": grey(0, 9)}
    made = catalog(tmp_path, members, masks="masks/{stem}.png")
    assert [item.key for item in made.items] == ["data/images/x.jpg"]
    assert [(one.key, one.reason) for one in made.skipped] == [
        ("data/annotations/x.png", "looks like a mask")
    ]


# Values


def members_of(folder: Path, *masks: bytes) -> list[Member]:
    """Return masks as members of a source."""
    paths = [write(folder / f"{i:03d}.png", data) for i, data in enumerate(masks)]
    return [Member(path.name, PlainExtent(str(path), 0, path.stat().st_size)) for path in paths]


@pytest.mark.parametrize(
    "masks",
    [
        [grey(0, 255), grey(0, 0)],
        [grey(0, 1), grey(1, 1)],
        [grey(0, 65_535, mode="I;16"), grey(0, 65_535, mode="I;16")],
        [grey(0, 255, 0, 255, form="JPEG"), grey(255, 0, form="JPEG", quality=30)],
        [grey(0, 1, mode="P")],
    ],
)
def test_masks_of_two_values_are_binary(tmp_path: Path, masks: list[bytes]) -> None:
    found = detected_values(members_of(tmp_path, *masks), 10**6)
    assert found.is_binary
    assert found.names == ("background", "object")


def test_other_values_are_class_indices_and_all_masks_count(tmp_path: Path) -> None:
    masks = [grey(0, 1, 2)] * 200
    masks[131] = grey(0, 7, 255)
    found = detected_values(members_of(tmp_path, *masks), 10**6)
    assert not found.is_binary
    assert found.names == tuple("01234567")
    assert found.present[131] == (0, 7)
    assert found.values is None


def test_a_grey_mask_among_black_and_white_ones_is_an_error_and_makes_no_classes(
    tmp_path: Path,
) -> None:
    masks = [grey(0, 255), grey(0, 17, 255), grey(0, 255), grey(0)]
    what = r"0, 17, 255, but 2 of 3 masks are white on black; give --mask-values 0=background,255="
    with pytest.raises(SourceError, match=what):
        detected_values(members_of(tmp_path, *masks), 10**6)
    half = members_of(tmp_path, grey(0, 255), grey(0, 1, 255))  # a void region alone
    assert detected_values(half, 10**6).names == ("0", "1")


def test_more_than_254_classes_have_another_value_for_nothing(tmp_path: Path) -> None:
    masks = [grey(0, 255, 300, mode="I;16"), grey(1, 65_535, mode="I;16")]
    found = detected_values(members_of(tmp_path, *masks), 10**6)
    assert len(found.names) == 301
    assert found.present == [(0, 255, 300), (1,)]


@pytest.mark.parametrize(
    ("values", "note"),
    [
        (
            (0, 127, 255),
            "masks have only the values 0, 127: --mask-values 0=background,127=NAME names them",
        ),
        (
            (0, 38, 75),
            f"masks have only the values 0, 38, 75: --mask-values {_ALL} names them",
        ),
        ((0,), "all masks that were looked at (3) have one value: 0"),
        ((0, 1, 2), ""),
        ((0, 255), ""),
    ],
)
def test_values_that_are_hardly_classes_are_a_note(
    values: tuple[int, ...], note: str, tmp_path: Path
) -> None:
    made = catalog(tmp_path, masked(3, *values), "none", masks="masks/{name}")
    assert [one for one in made.findings if "value" in one] == ([note] if note else [])


def test_a_stray_value_is_counted_and_all_values_are_proposed(tmp_path: Path) -> None:
    files = masked(40, 0, 1, 2, 3) | {"masks/3.png": grey(0, 1, 77)}
    made = catalog(tmp_path, files, "none", masks="masks/{name}")
    pairs = "0=background,1=NAME,2=NAME,3=NAME,77=NAME"
    what = f"masks have only the values 0, 1, 2, 3, 77: --mask-values {pairs} names them"
    assert f"{what}; only 1 of 40 masks have 77" in made.findings
    made = catalog(tmp_path, files, "none", masks="masks/{name}", mask_values=pairs)
    assert facts_of(made).names == ("background", "NAME")
    wide = masked(4, *range(0, 200, 9))
    made = catalog(tmp_path / "wide", wide, "none", masks="masks/{name}")
    assert any(",135=NAME,…' names them" in one for one in made.findings)


@pytest.mark.parametrize("ids", [(0, 1, 2, 3), (0, 1)])
def test_small_values_in_jpegs_are_not_black_and_white(
    ids: tuple[int, ...], tmp_path: Path
) -> None:
    masks = [np.repeat(np.array([ids], np.uint8), 8, axis=1).repeat(8, axis=0)] * 3
    files = [encoded(Image.fromarray(one), "JPEG") for one in masks]
    with pytest.raises(SourceError, match="is a JPEG, which changes the values"):
        detected_values(members_of(tmp_path, *files), 10**6)
    drawn = [encoded(Image.fromarray((one > 0).astype(np.uint8) * 255), "JPEG") for one in masks]
    drawn.append(grey(0, 0, form="JPEG"))  # an image without an object
    assert detected_values(members_of(tmp_path, *drawn), 10**6).is_binary


def test_class_indices_with_255_for_no_class_in_jpegs_are_not_black_and_white(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    masks = [np.zeros((96, 96), np.uint8) for _ in range(8)]
    for mask in masks:
        for number in rng.integers(1, 21, 3):
            y, x = rng.integers(0, 70, 2)
            mask[y : y + 24, x : x + 24] = number
        mask[:2] = 255
    files = [encoded(Image.fromarray(one), "JPEG") for one in masks]
    with pytest.raises(SourceError, match="is a JPEG, which changes the values"):
        detected_values(members_of(tmp_path, *files), 10**6)
    for quality in (20, 60, 95):
        white = [Image.fromarray((one > 0).astype(np.uint8) * 255) for one in masks]
        drawn = [encoded(one, "JPEG", quality=quality) for one in white]
        assert detected_values(members_of(tmp_path, *drawn), 10**6).is_binary


@pytest.mark.parametrize("text", ["bg,a,b,c", "0:bg,1:a"])
def test_mask_values_in_another_notation_are_named(text: str) -> None:
    with pytest.raises(OptionError, match=r"^--mask-values: .*; write 0=background,1=cat or name"):
        given_values(text, lambda _: b"")


def test_a_high_value_in_few_masks_is_a_note(tmp_path: Path) -> None:
    files = masked(100, 0, 1, 2) | {"masks/3.png": grey(0, 1, 7)}
    made = catalog(tmp_path, files, "none", masks="masks/{name}")
    what = "1 of 100 masks have the value 7, and none has 6: correct them if it is not a class"
    assert what in made.findings
    files |= {f"masks/{i}.png": grey(0, 1, 7) for i in range(4)}  # four percent
    made = catalog(tmp_path / "all", files, "none", masks="masks/{name}")
    assert not [one for one in made.findings if "value 7" in one]


def coloured(form: str = "PNG") -> bytes:
    """Return a mask of colours."""
    return encoded(Image.fromarray(np.full((4, 4, 3), (255, 0, 9), np.uint8)), form)


def test_a_document_that_names_all_values_is_proposed(tmp_path: Path) -> None:
    """Not one that names some of them alone, nor one for other masks."""
    members = masked(4, 0, 1, 3)
    members["config.yaml"] = b"classes:\n  0: road\n  1: sky\n  3: car\n"
    members["boxes.yaml"] = b"names: [road, sky]\n"
    members["deep.yaml"] = b"names: " + b"[" * 30_000 + b"]" * 30_000
    members["labels.csv"] = b"id,label\n0,cat\n"
    members["class_dict.csv"] = b"name,r,g,b\nroad,0,0,0\nsky,1,1,1\n"
    made = catalog(tmp_path, members, masks="masks/{stem}.png")
    (line,) = (line for line in made.findings if "--mask-values" in line)
    assert line.endswith("called by their values; --mask-values config.yaml names them")
    made = catalog(tmp_path, members, masks="masks/{stem}.png", mask_values="config.yaml")
    assert facts_of(made).names == ("road", "sky", "car")
    assert not [line for line in made.findings if "--mask-values" in line]


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ([coloured()], "#ff0009"),
        ([coloured("JPEG")], "of colours in JPEG, which blurs them; export the masks as PNG"),
        ([grey(0, 40, 90, form="JPEG")], "changes the values of a mask"),
        ([grey(0, 5_000, 30_000, mode="I;16")], "too high for class indices"),
        ([b"no image"], "cannot be decoded"),
    ],
)
def test_values_that_say_nothing_are_an_error(
    tmp_path: Path, masks: list[bytes], message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        detected_values(members_of(tmp_path, *masks), 10**6)


@pytest.mark.parametrize(("option", "text", "names", "values"), data_rows("objects", "mask_values"))
def test_a_table_says_what_values_mean(
    option: str, text: str, names: tuple[str, ...], values: tuple[tuple[Any, int], ...]
) -> None:
    found = given_values(option, lambda _: text.encode())
    assert found.names == names
    assert found.values == dict(values)


@pytest.mark.parametrize("option", ["red=1", "70000=x", "1=", "256,0,0=x"])
def test_a_malformed_table_is_an_error(option: str) -> None:
    with pytest.raises((RecipeError, SourceError)):
        given_values(option, lambda _: b"")
    with pytest.raises(SourceError, match="names no values"):
        given_values("x.csv", lambda _: b"a,b\nc,d\n")


def test_classes_are_renamed_joined_and_ignored(tmp_path: Path) -> None:
    members = masked(1, 0, 1, 2, 3)
    options: dict[str, Any] = {"masks": "masks/{stem}.png"}
    facts = facts_of(catalog(tmp_path, members, **options, classes="sky,road,car,dog,cow"))
    assert facts.names == ("sky", "road", "car", "dog", "cow")
    assert facts.spec.values is None
    table = "0=bg,1=car,2=bus,3=void"
    made = catalog(
        tmp_path, members, **options, mask_values=table, classes="vehicle,bg",
        class_map="car=vehicle,bus=vehicle",
    )  # fmt: skip
    facts = facts_of(made)
    assert facts.names == ("vehicle", "bg")
    assert facts.spec.values == {0: 1, 1: 0, 2: 0, 3: IGNORE}
    assert facts.spec.background == 1
    assert any("void" in line for line in made.findings)


def test_names_of_a_table_are_names_though_they_be_numbers(tmp_path: Path) -> None:
    members = masked(1, 0, 1, 2)
    keys: dict[str, Any] = {"masks": "masks/{stem}.png", "mask_values": "c.yaml"}
    table = {"c.yaml": b"names: [0, 1, 2]"}
    facts = facts_of(catalog(tmp_path, members | table, **keys, classes="2,1,0"))
    assert facts.names == ("2", "1", "0")
    assert facts.spec.values == {0: 2, 1: 1, 2: 0}


def test_the_padding_of_masks_without_background_is_ignored(tmp_path: Path) -> None:
    members = masked(1, 0, 1, 2, 3)
    facts = facts_of(catalog(tmp_path, members, masks="masks/{stem}.png"))
    assert facts.spec.background == IGNORE
    with pytest.raises(RecipeError, match="--unlisted background"):
        catalog(tmp_path, members, masks="masks/{stem}.png", unlisted="background")


@pytest.mark.skipif(not SHARED_DATA.exists(), reason="needs the shared data")
def test_camvid_has_twelve_classes_in_the_splits_of_its_folders(tmp_path: Path) -> None:
    keys = {"source": str(SHARED_DATA / "camvid.zip"), "masks": "{dir}annot/{name}"}
    made = make_catalog(make_recipe(keys, "test"), tmp_path, lambda _: None)
    assert facts_of(made).names == tuple(map(str, range(12)))
    assert len(made.items) == 60
    for item in made.items:
        with Image.open(io.BytesIO(item.companions[0].extent.read())) as mask:
            present = set(np.unique(np.asarray(mask)).tolist())
        assert set(item.strata) == present
