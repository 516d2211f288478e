"""The record of a soak: attacks, results, and the part of docs/trust.md about them."""

import json
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.soak.attacks import Blow

RECORD = Path(__file__).parent / "record.json"
DOCUMENTS = RECORD.with_name("documents.json")


@dataclass
class DocumentRecord:
    date: str
    seed: int
    tried: int
    built: int
    refused: int
    slowest_s: float


@dataclass
class Ordeal:
    """Attacks on the builds of one place, and the contents of their last dataset."""

    place: str
    undisturbed_s: float
    attacked_s: float
    num_builds: int
    num_written: int
    num_rejected: int
    requests: dict[str, int]
    """Kind of fault → number of requests."""
    verify: str
    lost: list[str]
    wrong: list[str]
    faults: list[str]
    blows: list[Blow]

    @property
    def held_s(self) -> float:
        return sum(blow.held_s for blow in self.blows)

    @property
    def lost_s(self) -> float:
        """Time lost to restarts and repeated work, without the attacks themselves."""
        return max(0.0, self.attacked_s - self.held_s - self.num_builds * self.undisturbed_s)


@dataclass
class Record:
    date: str
    version: str
    seed: int
    num_images: int
    num_photos: int
    stop_s: float
    elapsed_s: float
    ordeals: list[Ordeal]

    @property
    def problems(self) -> list[str]:
        return [
            f"{one.place}: {line}"
            for one in self.ordeals
            for line in (*one.faults, *one.lost, *one.wrong)
        ]

    def dumps(self) -> str:
        return json.dumps(_rounded(asdict(self)), indent=1) + "\n"


def load(path: Path = RECORD) -> Record:
    found = json.loads(path.read_text())
    ordeals = [
        Ordeal(**{**one, "blows": [Blow(**blow) for blow in one["blows"]]})
        for one in found.pop("ordeals")
    ]
    return Record(**found, ordeals=ordeals)


def load_documents() -> DocumentRecord:
    return DocumentRecord(**json.loads(DOCUMENTS.read_text()))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 1)
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value


def attack_rows(record: Record) -> list[tuple[str, int, str]]:
    blows = [blow for one in record.ordeals for blow in one.blows]
    rows = []
    for kind, number in sorted(Counter(blow.kind for blow in blows).items()):
        ends = Counter(blow.exit_code for blow in blows if blow.kind == kind)
        went_on = ends.pop(None, 0) + ends.pop(0, 0)
        how = [f"{went_on} continued"] if went_on else []
        how += [f"{n} ended with {_code(code)}" for code, n in sorted(ends.items())]
        rows.append((kind, number, ", ".join(how)))
    return rows


def _code(code: int | None) -> str:
    return {-9: "SIGKILL", -15: "SIGTERM"}.get(code or 0, f"exit code {code}")


def figure_rows(record: Record) -> list[tuple[str, ...]]:
    figures: dict[str, Callable[[Ordeal], str]] = {
        "attacks": lambda one: f"{len(one.blows):,}",
        "requests that failed": lambda one: str(one.requests.get("failed", "–")),
        "answers that were cut": lambda one: str(one.requests.get("cut", "–")),
        "datasets completed": lambda one: f"{one.num_builds:,}",
        "images written": lambda one: f"{one.num_written:,}",
        "images rejected, all truncated": lambda one: f"{one.num_rejected:,}",
        "images lost": lambda one: f"{len(one.lost):,}",
        "wrong files or records": lambda one: f"{len(one.wrong):,}",
        "builds that hung, or ended in another way than allowed": lambda one: (
            f"{len(one.faults):,}"
        ),
        "time of an undisturbed build": lambda one: f"{one.undisturbed_s:,.0f} s",
        "time of all builds under attack": lambda one: f"{one.attacked_s:,.0f} s",
        "– of this, while processes were paused, the disk was full …": lambda one: (
            f"{one.held_s:,.0f} s"
        ),
        "– of this, lost by restarts and repeated work": lambda one: f"{one.lost_s:,.0f} s",
    }
    return [(name, *map(value, record.ordeals)) for name, value in figures.items()]


def page_part(record: Record, table: Callable[[tuple[str, ...], list[Any]], str]) -> str:
    """Return the part of docs/trust.md; `table` makes a table of Markdown."""
    num_attacks = sum(len(one.blows) for one in record.ordeals)
    figures = table(("", *(f"on a {one.place}" for one in record.ordeals)), figure_rows(record))
    kinds = table(("attack", "times", "the build"), attack_rows(record))
    when = (
        f"These are the figures of the run on {record.date}: {record.num_images:,} small images, "
        f"{record.num_photos:,} photos, {num_attacks} attacks, pauses of processes of "
        f"{record.stop_s:g} s, {record.elapsed_s / 60:.0f} minutes in total. A soak of "
        "some seconds runs with the tests."
    )
    return f"""## The soak

`make soak` builds one archive under attack. The archive has small images and photos, archives in an
archive, and labels in a CSV; one image in 500 is truncated. Builds are attacked at random moments.
If an attack ends a build, the same command starts it again. The store fails 2% of the requests and
cuts 1% of the answers.

Each resulting dataset is compared with the dataset of an undisturbed build, file by file. For the
last dataset, `verify --decode` and both readers read every record. Keys, labels and bytes are
compared with the results of zipfile, csv and Pillow on the source.

{textwrap.fill(when, 100)}

{figures}

{kinds}
"""
