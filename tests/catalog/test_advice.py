"""The flags in a note or an error work as they are, and what they build is right."""

import re
import shlex
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shardprep.catalog.catalog import Catalog
from shardprep.catalog.survey import survey_source
from shardprep.errors import QuestionError, SourceError
from tests.catalog.builders import VOC, catalog, grey, images, lettered
from tests.support.builders import jpeg

_FLAG = r"--[a-z-]+ (?:'[^']+'|[^\s;,()']+)"
_FLAGS = re.compile(rf"{_FLAG}(?: {_FLAG}| --instances)*")
_PLACEHOLDER = re.compile(r"\b(PATTERN|FILE|ID|LABEL|DIR|RATIOS|VALUE)\b")
_SPLITS = ("train", "test")


@dataclass(frozen=True, slots=True)
class Source:
    """A source that `auto` cannot decide alone, and what each image truly is."""

    members: dict[str, bytes]
    labels: Mapping[str, str]
    """Key → its only right label; keys without one have no label."""
    objects: Mapping[str, tuple[str, ...]] = ()  # type: ignore[assignment]
    """Key → the classes of its objects."""
    masks: tuple[str, ...] = ()
    """Keys of masks, which are not images."""
    keys: tuple[tuple[str, str], ...] = ()
    """Options of the build whose advice is followed."""


def _twins(tables: Mapping[str, bytes], **truth: str) -> Source:
    members = images(*(f"{split}/{i}.jpg" for split in _SPLITS for i in range(6)))
    labels = {f"{s}/{i}.jpg": letters[i % 2] for s, letters in truth.items() for i in range(6)}
    return Source(members | dict(tables), labels)


def _two_columns() -> Source:
    members = images(*(f"{i}.jpg" for i in range(6)))
    rows = (f"{i},{'xy'[i % 2]},{'xy'[i % 2]}" for i in range(6))
    members["t.csv"] = "\n".join(["name,first,second", *rows]).encode()
    return Source(members, {f"{i}.jpg": "xy"[i % 2] for i in range(6)})


def _boxes_and_masks() -> Source:
    members = {f"images/{i}.jpg": jpeg(48, 64, seed=i) for i in range(6)}
    members |= {f"annotations/{i}.xml": VOC for i in range(6)}
    masks = {f"masks/{i}.png": grey(*([0] * 32 + [255] * 32)) for i in range(6)}
    objects = {f"images/{i}.jpg": ("cat",) for i in range(6)}
    return Source(members | masks, {}, objects, tuple(masks))


def _labels_and_boxes() -> Source:
    members = {f"{c}/{i}.jpg": jpeg(48, 64, seed=i) for c in ("cat", "dog") for i in range(3)}
    members |= {f"{c}/{i}.xml": VOC for c in ("cat", "dog") for i in range(3)}
    objects = dict.fromkeys((key for key in members if key.endswith(".jpg")), ("cat",))
    return Source(members, {key: key[:3] for key in objects}, objects)


SOURCES = {
    "a table of test alone": _twins({"test.csv": lettered("ab")}, test="ab"),
    "a table of no split": _twins({"labels.csv": lettered("ab")}, train="ab", test="ab"),
    "one split of a table of another": Source(
        images(*(f"{split}/{i}.jpg" for split in _SPLITS for i in range(6)))
        | {"train/labels.csv": lettered("ab")},
        {f"train/{i}.jpg": "ab"[i % 2] for i in range(6)},
        keys=(("labels", "csv:train/labels.csv:id:label"), ("root", "test")),
    ),
    "two columns": _two_columns(),
    "boxes and masks": _boxes_and_masks(),
    "labels and boxes": _labels_and_boxes(),
}


def advice(text: str) -> list[dict[str, Any]]:
    """Return the options of each group of flags in a text, without those with placeholders."""
    found = []
    for match in _FLAGS.finditer(text):
        if not _PLACEHOLDER.search(match[0]):
            keys = defaultdict[str, list[str]](list)
            words = iter(shlex.split(match[0]))
            for word in words:
                keys[word[2:].replace("-", "_")].append(
                    word if word == "--instances" else next(words)
                )
            several = ("include", "exclude", "join")
            found.append(
                {
                    key: True if key == "instances" else tuple(v) if key in several else v[0]
                    for key, v in keys.items()
                }
            )
    return found


def check(made: Catalog, source: Source) -> None:
    """Fail if an item has a label, an object or a split that is not its own."""
    names = made.label_names
    of_objects = () if made.annotations is None else made.annotations.names
    assert made.items
    for item in made.items:
        assert item.key not in source.masks
        if item.label >= 0:
            assert names[item.label] == source.labels.get(item.key), item.key
        if item.annotation is not None and item.annotation.labels:
            labels = tuple(of_objects[label] for label in item.annotation.labels)
            spec = None if made.annotations is None else made.annotations.spec
            is_mask = spec is not None and spec.masks != "none" and not spec.boxes
            assert labels == (("object",) if is_mask else source.objects[item.key])
        folder = item.key.partition("/")[0]
        assert item.split == (folder if folder in _SPLITS else "train")


@pytest.mark.parametrize("name", SOURCES)
def test_the_flags_of_notes_and_errors_build_what_is_right(name: str, tmp_path: Path) -> None:
    source = SOURCES[name]
    keys = dict(source.keys)
    try:
        made = catalog(tmp_path / "first", source.members, keys.pop("labels", "auto"), **keys)
        text, table = "\n".join(made.findings), ""
    except (SourceError, QuestionError) as error:
        text, table = f"{error.what}; {error.hint}", error.where
    tried = advice(text)
    # "train/{id} instead of id" is advice as well: a path of columns in place of the column.
    tried += [{"labels": f"csv:{table}:{path}:label"} for path in re.findall(r"(\w+/\{id\})", text)]
    assert tried or "or use a table of test" in text, text
    for i, options in enumerate(tried):
        check(catalog(tmp_path / str(i), source.members, **options), source)


@pytest.mark.parametrize("name", [name for name in SOURCES if not SOURCES[name].keys])
def test_the_candidates_of_init_build_what_is_right(name: str, tmp_path: Path) -> None:
    source = SOURCES[name]
    made = catalog(tmp_path / "first", source.members, "none")
    survey = survey_source(tmp_path / "first" / "source", tmp_path / "work", lambda _: None)
    assert made.items
    for i, one in enumerate(survey.rules):
        check(catalog(tmp_path / str(i), source.members, **dict(one.options)), source)
