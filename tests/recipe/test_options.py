"""An option is declared once: flags, keys, help and fingerprint follow; a flag wins over a key."""

from __future__ import annotations

import re
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from shardprep.dataset import schema
from shardprep.errors import RecipeError
from shardprep.image import annotation_types
from shardprep.image import spec as image_spec
from shardprep.image.spec import ImageSpec
from shardprep.recipe.options import BUILD_OPTIONS, RUN_OPTIONS, BuildOptions
from shardprep.recipe.recipe import make_recipe, stored_recipe
from shardprep.source.limits import SourceLimits

INIT = {"source": "x.zip", "size": "256x256", "fit": "crop"}
"""Keys that `shardprep init` writes."""
WINS: list[tuple[dict[str, Any], dict[str, Any], tuple[Any, str, str, int]]] = [
    # keys of the file, flags, (height and width, fit, format, quality) of stored images
    ({}, {"size": "none"}, (None, "none", "jpeg", 90)),
    ({}, {"fit": "none"}, (None, "none", "jpeg", 90)),
    ({}, {"fit": "pad"}, ((256, 256), "pad", "jpeg", 90)),
    ({}, {"format": "keep"}, (None, "none", "keep", 90)),
    ({}, {"format": "keep", "size": "32"}, ((32, 32), "crop", "keep", 90)),
    ({"format": "keep"}, {"format": "keep"}, ((256, 256), "crop", "keep", 90)),
    ({"format": "keep"}, {"seed": "3"}, ((256, 256), "crop", "keep", 90)),
    ({"quality": 70}, {"format": "png"}, ((256, 256), "crop", "png", 90)),
    ({"quality": 70}, {"format": "keep"}, (None, "none", "keep", 70)),
    ({"format": "png"}, {"quality": "70"}, ((256, 256), "crop", "jpeg", 70)),
    ({"format": "raw"}, {"size": "none"}, (None, "none", "jpeg", 90)),
    ({"format": "raw"}, {"fit": "within"}, ((256, 256), "within", "jpeg", 90)),
    ({"size": "none", "fit": "none"}, {"fit": "pad"}, ((224, 224), "pad", "jpeg", 90)),
    ({"size": "none", "fit": "none"}, {"size": "9x8"}, ((8, 9), "crop", "jpeg", 90)),
    ({"size": "none", "fit": "none"}, {"format": "raw"}, ((224, 224), "crop", "raw", 90)),
    ({"fit": "within"}, {"format": "raw"}, ((256, 256), "crop", "raw", 90)),
]


@pytest.mark.parametrize(("keys", "flags", "wanted"), WINS)
def test_what_contradicts_a_flag_in_the_file_gives_way(
    keys: dict[str, Any], flags: dict[str, Any], wanted: tuple[Any, ...]
) -> None:
    spec = make_recipe({**INIT, **keys}, "shardprep.toml", flags).image_spec
    assert (spec.size, spec.fit, spec.format, spec.quality) == wanted


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ("32x48", (48, 32)), ("32 × 48", (48, 32)), ("224", (224, 224)), (224, (224, 224)),
        ([48, 32], (48, 32)), ("none", None), (None, None),
    ],
)  # fmt: skip
def test_a_size_is_width_by_height_or_a_square_or_a_list_of_height_and_width(
    given: object, size: tuple[int, int] | None
) -> None:
    assert make_recipe({"source": "x.zip", "size": given}, "t").size == size


@pytest.mark.parametrize(
    "keys",
    [
        {"size": 0}, {"size": "0"}, {"size": -224}, {"size": [0, 0]}, {"size": [-1, 8]},
        {"size": [70_000, 8]}, {"size": "8x70000"}, {"size": [8]}, {"size": [8, 8, 3]},
        {"size": [8.5, 8]}, {"size": [True, 8]}, {"size": "²"},
        {"background": [0, 0, 256]}, {"background": [0, -1, 0]}, {"background": [0, 0]},
        {"background": "0,0,256"}, {"background": ["a", 0, 0]}, {"background": 7},
        {"depth_range": "none"}, {"depth_range": "5"}, {"depth_range": [1, 1]}, {"depth_range": 12},
        {"depth_range": "0,nan"}, {"depth_range": [False, True]}, {"depth_range": "-1e31,0"},
        {"window": "none"}, {"window": "40"}, {"window": "40,0.5"}, {"window": [40, -400]},
        {"dedup": "yes"}, {"dedup": 1}, {"dedup": None}, {"dedup": ["near"]},
    ],
)  # fmt: skip
def test_a_value_is_refused_however_it_is_written(keys: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        make_recipe({"source": "x.zip", **keys}, "t")


def test_defaults_are_those_of_the_rooms_that_use_them() -> None:
    recipe = make_recipe({"source": "x.zip"}, "t")
    assert recipe.image_spec == ImageSpec()
    assert recipe.source_limits == SourceLimits()


def test_the_fingerprint_has_the_options_that_shape_bytes_and_gives_the_recipe_back() -> None:
    keys = {"size": "8x9", "classes": "cat,dog", "format": "png", "max_aspect": 3, "timeout": 5}
    keys["depth_range"] = " -1000, 4095.5"
    keys["window"] = "-600,1500"
    options = make_recipe({"source": "x.zip", **keys}, "t").fingerprint_options()
    assert options["size"] == [9, 8]
    assert options["classes"] == ["cat", "dog"]
    assert options["depth_range"] == [-1000.0, 4095.5]
    assert options["window"] == [-600.0, 1500.0]
    left_out = {
        "source", "out", "name", "version", "timeout", "max_rejected", "max_members",
        "max_unpacked", "max_depth", "max_dropped", "max_clipped", "annotated_size",
    }  # fmt: skip
    assert [*options] == [name for name in BUILD_OPTIONS if name not in left_out]
    assert stored_recipe({**options, "source": "y"}).fingerprint_options() == options
    newer = make_recipe({"source": "x.zip", "annotated_size": "image"}, "t").fingerprint_options()
    assert newer["annotated_size"] == "image"
    with pytest.raises(RecipeError):
        stored_recipe({**options, "source": "y", "blur": 1})


@pytest.mark.parametrize(
    ("keys", "fit"),
    [
        ({}, "auto"),
        ({"labels": "folder"}, "crop"),
        ({"boxes": "none"}, "crop"),
        ({"boxes": "voc"}, "pad"),
        ({"masks": "masks/{stem}.png"}, "pad"),
        ({"boxes": "voc", "fit": "crop"}, "crop"),
        ({"boxes": "voc", "fit": "auto"}, "pad"),
        ({"boxes": "voc", "size": "none"}, "none"),
        ({"boxes": "voc", "format": "keep"}, "none"),
    ],
)
def test_images_with_boxes_or_masks_are_padded_unless_a_fit_is_asked_for(
    keys: dict[str, Any], fit: str
) -> None:
    recipe = make_recipe({"source": "x.zip", **keys}, "t")
    assert recipe.fit == fit
    assert stored_recipe({**recipe.fingerprint_options(), "source": "x.zip"}).fit == fit


def test_where_the_source_decides_the_fit_follows_what_it_has() -> None:
    recipe = make_recipe({"source": "x.zip"}, "t")
    assert recipe.settled(annotated=True).image_spec.fit == "pad"
    assert recipe.settled(annotated=False).image_spec.fit == recipe.image_spec.fit == "crop"


@pytest.mark.parametrize("dedup", [True, False, "near"])
def test_near_is_a_third_value_of_a_switch(dedup: object) -> None:
    recipe = make_recipe({"source": "x.zip", "dedup": dedup}, "t")
    assert recipe.dedup is dedup or recipe.dedup == "near"
    assert recipe.finds_near is (dedup == "near")
    assert recipe.fingerprint_options()["dedup"] == dedup


@pytest.mark.parametrize(
    ("group", "near", "rule"),
    [
        ("", False, ""),
        ("near", True, ""),
        ("near,regex:^(a|b),", True, "regex:^(a|b),"),
        ("nearest", False, "nearest"),
        ("patient,near", False, "patient,near"),
    ],
)
def test_groups_are_of_near_copies_or_of_a_rule_or_of_both(
    group: str, near: object, rule: str
) -> None:
    parsed = make_recipe({"source": "x.zip", "group": group}, "t").rules.group
    assert (parsed.is_near, parsed.text) == (near, rule)


def literals(kind: Any) -> list[str]:
    """Return the texts that a type allows by name."""
    if get_origin(kind) is Literal:
        return [one for one in get_args(kind) if isinstance(one, str)]
    return [text for part in get_args(kind) for text in literals(part)]


KINDS = get_type_hints(BuildOptions, {**vars(annotation_types), **vars(image_spec), **vars(schema)})


@pytest.mark.parametrize("name", BUILD_OPTIONS)
def test_the_help_names_every_word_that_an_option_takes(name: str) -> None:
    option = BUILD_OPTIONS[name]
    for word in literals(KINDS[name]):
        assert re.search(rf"\b{word}\b", f"{option.help} {option.metavar}"), word


@pytest.mark.parametrize("name", [*BUILD_OPTIONS, *RUN_OPTIONS])
def test_every_number_has_a_range_of_its_own(name: str) -> None:
    option = {**BUILD_OPTIONS, **RUN_OPTIONS}[name]
    kind = KINDS.get(name)
    kinds = {kind, *(get_args(kind) if get_origin(kind) is not tuple else ())}
    is_number = bool(kinds & {int, float}) or name in ("workers", "store_timeout")
    assert (option.least < option.most) == is_number
