"""Small copies of the competitions of 2023 to 2026, built by the commands of docs/competitions.md.

An independent reading of their files says what must be stored.
"""

import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardprep
from shardprep.catalog.survey import recipe_text, survey_source
from shardprep.dataset.manifest import load_manifest
from shardprep.dataset.schema import Schema
from shardprep.recipe.document import toml_value
from tests.support.arrays import decoded
from tests.support.builders import write, zip_bytes
from tests.support.competitions.page import (
    COMPETITIONS,
    OUTSIDE,
    PAGE,
    is_right,
    options_of,
    page_text,
)
from tests.support.competitions.twin import Competition
from tests.support.quick_command import build_command, encode_here
from tests.writer.records import records

_PICTURES = ("image", "images", "segmentation_mask", "target_image", "objects/mask")
each = pytest.mark.parametrize("twin", COMPETITIONS, ids=lambda twin: twin.slug)


def value_of(name: str, record: Mapping[str, Any], schema: Schema) -> list[Any]:
    """Return the values of a feature: pixels as arrays, classes as names."""
    values = record[name]
    if name in _PICTURES:
        return [*map(decoded, values)]
    own = schema.labels if name in ("label", "labels") else schema.features[name].labels
    if name != "targets" and own:
        values = ["" if index < 0 else own[index] for index in values]
    return sorted(values) if name == "labels" else list(values)


def is_alike(found: list[Any], wanted: Any, name: str) -> bool:
    if name == "objects/bbox":
        return np.allclose(found, wanted, atol=1e-6)
    if name not in _PICTURES:
        return repr(found) == repr(list(wanted))  # NaN is equal to NaN
    return len(found) == len(wanted) and all(
        np.array_equal(one.reshape(-1), np.reshape(two, -1))
        for one, two in zip(found, wanted, strict=True)
    )


@each
def test_the_command_of_the_page_stores_what_the_files_say(
    twin: Competition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode_here(monkeypatch, cuts_tiles="--tile" in twin.flags)
    monkeypatch.chdir(tmp_path)
    members = twin.members()
    write(tmp_path / "source.zip", zip_bytes(members))
    flags = twin.flags
    for text, other in twin.small.items():
        flags = flags.replace(text, other)
    own = ["--size", "none", "--max-rejected", "1", "--max-dropped", "1"]
    own += [] if "--depth 16" in flags else ["--format", "png"]
    answer = build_command("source.zip", *shlex.split(flags), *own)
    path = Path(answer["path"])
    manifest, found = load_manifest(path), records(path)
    schema = Schema.model_validate_json((path / "schema.json").read_bytes())
    expected = twin.expected(members)
    assert sorted(found) == sorted(expected)
    for key, values in expected.items():
        for name, wanted in values.items():
            value = value_of(name, found[key], schema)
            assert is_alike(value, wanted, name), (key, name, value, wanted)
    assert manifest.totals.skipped == twin.skipped
    assert manifest.totals.rejected == twin.rejected
    objects = manifest.annotations or {}
    assert sum((Counter(one.dropped) for one in objects.values()), Counter()) == twin.dropped
    assert manifest.labels.num_rows_without_image == twin.rows_without_image
    assert shardprep.verify(path, workers=1).problems == ()


@pytest.mark.parametrize(
    "twin", [one for one in COMPETITIONS if one.proposal], ids=lambda twin: twin.slug
)
def test_init_proposes_the_flags(twin: Competition, tmp_path: Path) -> None:
    source = write(tmp_path / "source.zip", zip_bytes(twin.members()))
    text = recipe_text(survey_source(source, tmp_path, lambda _: None))
    given = {line.removeprefix("# ").partition("  #")[0] for line in text.splitlines()}
    for key, value in options_of(twin.proposal).items():
        line, flag = f"{key} = {toml_value(value)}", f"--{key} {value} "
        assert line in given or flag in text, text


@pytest.mark.parametrize(
    ("slug", "flag"),
    [
        ("stable-diffusion-image-to-prompts", "--target text"),
        ("image-matching-challenge-2024", "{dataset}/images/{image_name}"),
        ("rsna-2023-abdominal-trauma-detection", "any_injury --join train.csv"),
        ("UBC-OCEAN", "--exclude 'test_thumbnails/*'"),
        ("isic-2024-challenge", "--images test-image.hdf5"),
    ],
)
def test_a_build_without_flags_names_them(
    slug: str, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    twin = next(one for one in COMPETITIONS if one.slug == slug)
    write(tmp_path / "source.zip", zip_bytes(twin.members()))
    try:
        said = "\n".join(shardprep.build("source.zip", dry_run=True).plan.findings)
    except shardprep.QuestionError as error:
        said = str(error)
    assert flag in said


def test_most_competitions_are_whole_and_most_flags_are_proposed() -> None:
    slugs = [one.slug for one in (*COMPETITIONS, *OUTSIDE)]
    assert len(slugs) == len({*slugs}) == 30
    assert sum(not one.missing for one in COMPETITIONS) >= 24
    assert sum(map(is_right, COMPETITIONS)) >= 18


def test_the_page_has_the_table_of_these_competitions() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_text(page), "run: python -m tests.support.competitions.page"
