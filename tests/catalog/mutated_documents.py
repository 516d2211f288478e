"""Annotation documents as accidents and strangers change them, and what a build makes of each.

A try is a number: the same seed and number give the same source. A build ends with a dataset that
`verify` finds nothing wrong with, or with one line.
"""

import random
import re
import resource
import shutil
import time
import tomllib
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from shardprep.dataset.local_files import LocalFiles
from shardprep.errors import ShardprepError
from shardprep.verifier.dataset import verify_dataset
from tests.support.builders import Quiet, Told, build, encoded, png, write, zip_bytes
from tests.support.paths import DATA

MOST_S, MOST_KIB = 20.0, 500 << 10
"""Seconds that one try may take, and memory that all of them may add to the process."""
SEED = 20261123
HEIGHT, WIDTH = 30, 40
_STEMS = ("a", "b", "c")
_NOT_IN_A_LINE = re.compile("[\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True)
class Form:
    """A source in one format: what is mutated, what is not, and the options that read it."""

    documents: dict[str, bytes]
    options: dict[str, Any]
    others: dict[str, bytes] = field(default_factory=dict)


@dataclass
class Tally:
    """The ends of tries."""

    built: int = 0
    refused: int = 0
    faults: list[str] = field(default_factory=list)
    """Tries that ended otherwise, with their number."""
    slowest_s: float = 0.0


def _mask(values: Iterable[int]) -> bytes:
    pixels = np.zeros((HEIGHT, WIDTH), np.uint8)
    for at, value in enumerate(values):
        pixels[at * 5 : at * 5 + 5] = value
    return encoded(Image.fromarray(pixels), "PNG")


def _files(given: dict[str, Any]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for key, value in given.items():
        if isinstance(value, str):
            data = value.encode()
        else:
            data = _mask(value) if value else png(HEIGHT, WIDTH)
        found |= {key.replace("*", stem): data for stem in _STEMS}
    return found


def _forms() -> dict[str, Form]:
    forms = tomllib.loads((DATA / "mutated_documents.toml").read_text("utf-8"))
    return {
        name: Form(
            _files(forms[form.get("like", name)]["documents"]),
            form["options"],
            _files(form.get("others", {})),
        )
        for name, form in forms.items()
    }


def images() -> dict[str, bytes]:
    """Return the images of every form."""
    return {f"images/{stem}.png": png(HEIGHT, WIDTH, i) for i, stem in enumerate(_STEMS)}


NUM_DOCUMENTS = 200
"""Tries of a run of the suite; `make soak` makes 8,000."""
FORMS = _forms()
_NUMBERS = (
    "9" * 401, "9" * 5000, "-1", "0", "1e999", "-1e308", "1e308", "NaN", "Infinity", "-Infinity",
    "18446744073709551616", "9223372036854775808", "2147483648", "1e-400", "1_0", "0x10", "٣", "",
    "null", "true", "[]", "{}", '"7"', "[[[[1]]]]", "1:30", "59:" * 2000, "!!bool foo", "!!int ''",
    "!!timestamp x", "&a [*a]", "-", "+5", "1 2", "1,2", "4294967295",
)  # fmt: skip
_TEXTS = (
    '""', '"\\ud800"', '"\\u0000"', '"a\\nb"', '"' + "x" * 200_000 + '"', "null", "7", "[]", "{}",
    '"../../x"', '"images/a.png"', '"/etc/passwd"', '"\\u202e"', '"', "'", '"\x1b[2J"', "true",
    '"background"', '"ignore"', '"0"', '" "', '"cat\\tdog"', '"' + "é" * 300 + '"',
)  # fmt: skip
_PIECES = (
    "[" * 5000, '{"a":' * 5000, "<a>" * 5000, "<![CDATA[x]]>", "&#0;", "&#55296;", "&x;", "\0", '"',
    "'", ",", "\n", "\r", "\x0b", "\x1b[2J", "\u2028", "<!DOCTYPE a [<!ENTITY x 'y'>]>", "<<: *a",
    "\ufeff", ":", "- ", "#", "%", "\t", "]" * 200, "}" * 200, "</object>", ";", "x" * 140_000,
)  # fmt: skip
NUMBER = re.compile(rb"-?\d+(\.\d+)?")
_TEXT = re.compile(rb'"[^"]*"|(?<=>)[^<>]+(?=<)|[A-Za-z_]+')


def _replaced(
    draw: random.Random, data: bytes, what: re.Pattern[bytes], by: Iterable[str]
) -> bytes:
    matches = [*what.finditer(data)]
    if not matches:
        return data
    match = draw.choice(matches)
    return data[: match.start()] + draw.choice([*by]).encode() + data[match.end() :]


def _span(draw: random.Random, data: bytes) -> tuple[int, int]:
    start = draw.randrange(len(data) + 1)
    return start, min(len(data), start + 1 + int(draw.random() ** 3 * len(data)))


def _inserted(draw: random.Random, data: bytes) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + draw.choice(_PIECES).encode() + data[at:]


def _deleted(draw: random.Random, data: bytes) -> bytes:
    start, stop = _span(draw, data)
    return data[:start] + data[stop:]


def _repeated(draw: random.Random, data: bytes) -> bytes:
    start, stop = _span(draw, data)
    times = min(draw.choice((2, 3, 1000)), 1 + 2_000_000 // max(stop - start, 1))
    return data[:start] + data[start:stop] * times + data[stop:]


def _moved(draw: random.Random, data: bytes) -> bytes:
    (start, stop), at = _span(draw, data), draw.randrange(len(data) + 1)
    return data[:at] + data[start:stop] + data[at:]


def _flipped(draw: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 8))):
        if changed:
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _coded(draw: random.Random, data: bytes) -> bytes:
    text = data.decode("utf-8", "replace")
    return text.encode(draw.choice(("utf-16", "utf-16-le", "utf-8-sig", "utf-32")), "replace")


_CHANGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    lambda draw, data: _replaced(draw, data, NUMBER, _NUMBERS),
    lambda draw, data: _replaced(draw, data, NUMBER, _NUMBERS),
    lambda draw, data: _replaced(draw, data, _TEXT, _TEXTS),
    lambda draw, data: _replaced(draw, data, _TEXT, (*_TEXTS, *_NUMBERS)),
    lambda draw, data: data[: draw.randrange(len(data) + 1)],
    _inserted, _deleted, _repeated, _moved, _flipped, _coded,
)  # fmt: skip


def changed_text(draw: random.Random, data: bytes, *, is_text: bool) -> bytes:
    """Return the bytes with one change. Without `is_text`, it is one that needs no text."""
    changes = _CHANGES if is_text else (_deleted, _repeated, _moved, _flipped, _CHANGES[4])
    return draw.choice(changes)(draw, data)


def mutated(number: int) -> tuple[str, dict[str, bytes], dict[str, Any]]:
    """Return the name of the form, the members and the options of a try."""
    name = [*FORMS][number % len(FORMS)]
    form, draw = FORMS[name], random.Random(f"{SEED} {number}")
    documents = dict(form.documents)
    for _ in range(draw.choice((1, 1, 2, 3))):
        key = draw.choice([*documents])
        documents[key] = changed_text(draw, documents[key], is_text=True)
    return name, {**images(), **form.others, **documents}, form.options


def try_out(
    numbers: Iterable[int],
    folder: Path,
    make: Callable[[int], tuple[str, dict[str, bytes], dict[str, Any]]] = mutated,
    survey: Callable[[Path], None] = lambda _: None,
) -> Tally:
    """Return how the builds of these tries ended; they share an empty folder.

    `survey` looks at a source before it is built.
    """
    tally, first_kib = Tally(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in numbers:
        name, members, options = make(number)
        source = write(folder / f"{number}.zip", zip_bytes(members))
        begun = time.monotonic()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # users asked for no warning of numpy
                survey(source)
                fault = try_source(source, folder / f"out{number}", options, tally)
        except Exception:
            fault = traceback.format_exc()
        taken_s = time.monotonic() - begun
        tally.slowest_s = max(tally.slowest_s, taken_s)
        if not fault and taken_s > MOST_S:
            fault = f"took {taken_s:.0f} s"
        if not fault and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > first_kib + MOST_KIB:
            fault, first_kib = "took more than 500 MiB", first_kib + MOST_KIB
        if fault:
            tally.faults.append(f"try {number} ({name}): {fault}")
        source.unlink()
        shutil.rmtree(folder / f"out{number}", ignore_errors=True)
    return tally


def try_source(source: Path, out: Path, options: dict[str, Any], tally: Tally) -> str:
    """Count the end of a build; return what is wrong with it, "" if nothing is."""
    watcher = Quiet()
    keys: dict[str, Any] = {"size": "32x24", "format": "png", "shards": 1, "max_rejected": 1.0}
    try:
        path = build(source, out, watcher=watcher, **keys, **options).path
    except ShardprepError as error:
        tally.refused += 1
        return _not_a_line(str(error)) if type(error) is not ShardprepError else repr(error)
    tally.built += 1
    problems = verify_dataset(
        LocalFiles.at(path), decode=True, num_workers=1, watcher=Told()
    ).problems
    counts = Counter(f"{one.kind} {one.file}: {one.what}" for one in problems)
    return ", ".join(counts)


def _not_a_line(text: str) -> str:
    """Return why a text is no line that a person can be shown, "" if it is one."""
    if len(text) > 2200:
        return f"a line of {len(text):,} characters"
    return f"not printable: {text!r}" if _NOT_IN_A_LINE.search(text) else ""
