"""An option is declared once: flags, keys, help and fingerprint follow; a flag wins over a key."""

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
from tests.support.paths import data_rows

INIT = {"source": "x.zip", "size": "256x256", "fit": "crop"}
"""Keys that `shardprep init` writes."""


@pytest.mark.parametrize(("keys", "flags", "wanted"), data_rows("recipe", "flags_over_keys"))
def test_what_contradicts_a_flag_in_the_file_gives_way(
    keys: dict[str, Any], flags: dict[str, Any], wanted: tuple[Any, ...]
) -> None:
    spec = make_recipe({**INIT, **keys}, "shardprep.toml", flags).image_spec
    assert (spec.size or "", spec.fit, spec.format, spec.quality) == wanted


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


@pytest.mark.parametrize("keys", [*data_rows("recipe", "refused"), {"dedup": None}])
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
        "max_unpacked", "max_depth", "max_dropped", "max_clipped", "annotated_size", "depth",
        "images", "stack", "tile", "overlap", "pivot", "points", "relabel", "rows",
        "target_image", "crowds", "items",
    }  # fmt: skip
    assert [*options] == [name for name in BUILD_OPTIONS if name not in left_out]
    assert stored_recipe({**options, "source": "y"}).fingerprint_options() == options
    newer = make_recipe({"source": "x.zip", "annotated_size": "image"}, "t").fingerprint_options()
    assert newer["annotated_size"] == "image"
    with pytest.raises(RecipeError):
        stored_recipe({**options, "source": "y", "blur": 1})


@pytest.mark.parametrize(("keys", "fit"), data_rows("recipe", "fits"))
def test_images_with_boxes_or_masks_are_padded_unless_a_fit_is_asked_for(
    keys: dict[str, Any], fit: str
) -> None:
    recipe = make_recipe({"source": "x.zip", **keys}, "t")
    assert recipe.fit == fit
    assert stored_recipe({**recipe.fingerprint_options(), "source": "x.zip"}).fit == fit


def test_the_source_decides_the_fit_if_nothing_else_does() -> None:
    recipe = make_recipe({"source": "x.zip"}, "t")
    assert recipe.settled(annotated=True).image_spec.fit == "pad"
    assert recipe.settled(annotated=False).image_spec.fit == recipe.image_spec.fit == "crop"


@pytest.mark.parametrize("dedup", [True, False, "near"])
def test_near_is_a_third_value_of_a_switch(dedup: object) -> None:
    recipe = make_recipe({"source": "x.zip", "dedup": dedup}, "t")
    assert recipe.dedup is dedup or recipe.dedup == "near"
    assert recipe.finds_near is (dedup == "near")
    assert recipe.fingerprint_options()["dedup"] == dedup


@pytest.mark.parametrize(("group", "near", "rule"), data_rows("recipe", "groups"))
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
