"""What a build stores of a row of the corpus, and whether a person wants that.

A build is planned and not encoded: a plan has the split, target, masks and boxes of each key.
"""

import contextlib
import re
import tempfile
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardprep.catalog.items import Item
from shardprep.catalog.target_values import TargetValues
from shardprep.errors import ShardprepError, name_options_as_flags
from shardprep.recipe.recipe import make_recipe
from shardprep.writer.plan.build_plan import BuildPlan
from shardprep.writer.plan.source_plan import make_plan
from tests.support.builders import Quiet
from tests.support.corpus import FOLDER, Fact, Row, evident, options_of, without_choices

RESULTS = FOLDER / "results.toml"
STATUSES = ("right", "question", "partly", "refused", "wrong")
"""From the best to the worst."""
_PROPOSAL = re.compile(
    r"--[a-z](?:'[^'\n]*'|.)*?(?=; | \(|, or | and |, --| leaves | takes | keeps |$)", re.MULTILINE
)
_MOST_TRIED = 8
_NO_TARGET = ("no label", "no annotation", "no mask", "no target image")
_IMAGE = re.compile(r"\.(jpe?g|png|tiff?|bmp|gif|webp|p[gp]m|dcm|npy|h5)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a build: facts by key and notes, or an error."""

    facts: Mapping[str, Fact]
    labels_from: str = ""
    notes: tuple[str, ...] = ()
    unlabelled: frozenset[str] = frozenset()
    """Images that are left out because they have no target."""
    error: str = ""


def outcome(source: Path, options: Mapping[str, Any]) -> Outcome:
    """Return the outcome of `shardprep build SOURCE` with options."""
    name_options_as_flags()
    try:
        with tempfile.TemporaryDirectory() as folder:
            keys = {"source": str(source), "out": f"{folder}/out"}
            recipe = make_recipe(keys, "test", {"max_dropped": 1.0, **options})
            plan = make_plan(recipe, Path(folder), Quiet())
            found = {
                item.key: _fact(plan, item, is_target="target_image" in plan.schema.features)
                for shard in plan.shards
                for item in shard.items
            }
    except ShardprepError as error:
        return Outcome({}, error=str(error))
    lost = frozenset(one.key for one in plan.skipped if one.reason in _NO_TARGET)
    return Outcome(found, plan.labels_from, tuple(plan.findings), lost)


def _fact(plan: BuildPlan, item: Item, *, is_target: bool) -> Fact:
    fact, names = {"split": item.split}, plan.schema.labels
    match item.target:
        case int():
            fact["label"] = names[item.target]
        case tuple():
            fact["labels"] = ",".join(sorted(names[one] for one in item.target))
        case TargetValues():
            fact |= {one: "|".join(map(str, values)) for one in ("numbers", "classes", "texts")
                     if (values := getattr(item.target, one))}  # fmt: skip
        case float() | str():
            fact["text" if isinstance(item.target, str) else "number"] = str(item.target)
    if item.companions:
        masks = ",".join(sorted(mask.key for mask in item.companions))
        fact["target" if is_target else "mask"] = masks
    if item.annotation is not None and plan.annotations is not None:
        every = (plan.annotations.names[one] for one in item.annotation.labels)
        labels = sorted(",".join(every).split(","))  # a name may have commas
        spec = plan.annotations.spec
        fact |= {"boxes": ",".join(labels)} if spec.boxes else {}
        fact |= {"shapes": ",".join(labels)} if spec.masks != "none" and not item.companions else {}
        points = item.annotation.points
        lacks_points = spec.keypoints is None and (points is None or not points[:, 2].any())
        fact |= {"points": ""} if spec.has_points and not lacks_points else {}
    return fact


def judged(
    row: Row,
    source: Path,
    wanted: Mapping[str, Fact],
    free: Collection[str],
    *,
    enough: str = STATUSES[0],
) -> tuple[str, str]:
    """Return the status of a build of the row without flags, and what it does.

    `wanted` and `free` are those of `wanted_facts`. If "refused" is `enough`, no proposal of an
    error is built to see whether it is a question.
    """
    found = outcome(source, {})
    if found.error:
        is_enough = enough in STATUSES[STATUSES.index("refused") :]
        is_answered = not is_enough and _is_answered(row, source, wanted, found.error)
        return "question" if is_answered else "refused", found.error
    own, others = _of_first_copies(row, found.facts), _of_first_copies(row, wanted)
    if own and others and not any(_differences(own, others, free).values()):
        return "right", ""
    lines = _differences(found.facts, wanted, free)
    if not any(lines.values()):
        return "right", ""
    shown = [line for several in lines.values() for line in several]
    detail = f"{shown[0]} ({len(shown)} of {len({*found.facts, *wanted})} keys)"
    notes = " ".join(found.notes)
    is_said = _names_flags(row, notes) or _names_file(row, notes, wanted)
    is_said |= "none found" in found.labels_from and not lines["more"]
    return "partly" if is_said and not lines["wrong"] else "wrong", detail


def wanted_facts(row: Row, source: Path) -> tuple[Mapping[str, Fact], Collection[str]]:
    """Return the facts that a person wants, and the keys that may have no target."""
    if row.facts is not None:
        return row.facts, row.free
    found = outcome(source, without_choices(row.flags))
    assert not found.error, f"{row.id}: {found.error}"
    return found.facts, found.unlabelled


def _of_first_copies(row: Row, facts: Mapping[str, Fact]) -> Mapping[str, Fact]:
    """Return the facts by the first of files with equal bytes; {} if two of them have facts."""
    firsts: dict[bytes, str] = {}
    first = {key: firsts.setdefault(data, key) for key, data in row.members().items()}

    def named(text: str) -> str:
        return ",".join(first.get(one, one) for one in text.split(","))

    found = {named(key): {k: named(one) for k, one in own.items()} for key, own in facts.items()}
    return found if len(found) == len(facts) else {}


def _differences(
    found: Mapping[str, Fact], wanted: Mapping[str, Fact], free: Collection[str]
) -> dict[str, list[str]]:
    """Return lines about records that are wrong, more than wanted, and lack a part."""
    lines: dict[str, list[str]] = {"wrong": [], "more": [], "lacking": []}
    for key in sorted({*found, *wanted}):
        own, other = found.get(key), wanted.get(key)
        if own == other or (key in free and own is not None and own.keys() == {"split"}):
            continue
        kind = "lacking"
        if own is not None:
            rest = {k: v for k, v in own.items() if (k, v) != ("split", "train")}
            if other is None:
                kind = "wrong" if rest.keys() - {"split"} else "more"
            elif rest.items() - other.items():
                kind = "wrong"
        lines[kind].append(f"{key}: {_shown(own)}, not {_shown(other)}")
    return lines


def _shown(fact: Fact | None) -> str:
    if fact is None:
        return "left out"
    return " ".join([fact["split"], *(f"{k}={v}" for k, v in fact.items() if k != "split")])


def _names_file(row: Row, text: str, wanted: Mapping[str, Fact]) -> bool:
    """Return whether a text names a file or a folder that has what records lack."""
    others = [key for key in row.members() if key not in wanted]
    names = {key.rpartition("/")[0].rpartition("/")[2] for key in others if _IMAGE.search(key)}
    names |= {key.rpartition("/")[2] for key in others if not _IMAGE.search(key)}
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for name in names if name)


def _names_flags(row: Row, text: str) -> bool:
    """Return whether a text has all flags of the row that its files can show."""
    pairs = [
        (f"--{key.replace('_', '-')}", one)
        for key, value in evident(row.flags).items()
        for one in (value if isinstance(value, list) else [value])
    ]
    ways = [[flag] if one is True else [f"{flag} {one}", f"{flag} '{one}'"] for flag, one in pairs]
    return bool(ways) and all(
        any(re.search(rf"{re.escape(way)}(?![\w:/.*-])", text) for way in both) for both in ways
    )


def _is_answered(row: Row, source: Path, wanted: Mapping[str, Fact], error: str) -> bool:
    """Return whether an error names the flags, or others that build the row right."""
    if _names_flags(row, error):
        return True
    for flags in [*dict.fromkeys(_PROPOSAL.findall(error))][:_MOST_TRIED]:
        with contextlib.suppress(ValueError):  # an open quote
            facts = outcome(source, options_of(flags.strip().rstrip(".,:"))).facts
            both = (facts, wanted), (_of_first_copies(row, facts), _of_first_copies(row, wanted))
            if any(a and not any(_differences(a, b, row.free).values()) for a, b in both):
                return True
    return False


def stored_statuses() -> dict[str, str]:
    """Return id of a row → its status in tests/layouts/results.toml."""
    return tomllib.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
