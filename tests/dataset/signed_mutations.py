"""Mutated datasets with correct hashes, and the outcome of every command and reader."""

import json
import random
import re
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardprep import reader
from shardprep.dataset.schema import BOX, IMAGE, MASK, OBJECT_MASK
from shardprep.errors import ShardprepError
from tests.dataset.resigned import Signed, huge_png
from tests.support.annotated import annotated
from tests.support.builders import build, jpeg, png, write, zip_bytes
from tests.support.command import run
from tests.support.viewing import served

NUM_GATE, NUM_SOAK = 12, 320
"""Datasets in a run of the suite, and in `make soak`."""
KINDS = ("manifest", "schema", "table", "records", "bytes", "index")
_TEXTS = ("", "..", "/x", "a\0b", "\x1b[2J", "\N{SNOWMAN}", "x" * 3000, "<b>", "nan", "1e400")
_NUMBERS = (0, -1, 1, 7, 255, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63))
_FLOATS = (0.0, -1.0, 0.5, 2.0, 1e30, float("nan"), float("inf"), float("-inf"))
_MOST_LINE = 2000


def bases(folder: Path) -> list[Signed]:
    """Return small datasets of every kind of content."""
    members = {f"{'ab'[i % 2]}/{i}.jpg": jpeg(20 + i, 30, i) for i in range(8)}
    source = write(folder / "photos.zip", zip_bytes(members))
    rows = "".join(f"{i},{i % 3} {(i + 1) % 3}\n" for i in range(8))
    table = {"t.csv": f"id,label\n{rows}".encode()}
    several = zip_bytes(table | {f"{i}.png": png(16, 16, i) for i in range(8)})
    tagged = write(folder / "tagged.zip", several)
    made = [
        build(source, folder / "free", size="none", format="keep", shards=2).path,
        build(source, folder / "raw", size="16x16", format="raw", shards=2).path,
        build(
            tagged,
            folder / "tags",
            size="16x16",
            format="png",
            shards=1,
            labels="csv:t.csv",
            separator=" ",
        ).path,
        annotated(folder / "marked", BOX, *_OBJECTS, shards=2),
        annotated(folder / "masks", MASK, shards=1, size="none"),
    ]
    return [Signed.read(one) for one in made]


_OBJECTS = ("objects/label", "objects/is_crowd", OBJECT_MASK)


def mutated(base: Signed, seed: int) -> Signed:
    """Return a copy with one to three changes, of a kind that follows from the seed."""
    draw = random.Random(seed)
    found = Signed(
        base.folder,
        json.loads(json.dumps(base.manifest)),
        json.loads(json.dumps(base.schema)),
        base.rows,
        {name: [*payloads] for name, payloads in base.payloads.items()},
        base.dtypes,
    )
    for _ in range(draw.randint(1, 3)):
        _MUTATIONS[KINDS[seed % len(KINDS)]](found, draw)
    return found


def _other(value: Any, draw: random.Random) -> Any:
    """Return a value that is not the one of a document."""
    similar: list[Any] = [None, draw.choice(_TEXTS), draw.choice(_NUMBERS), [], {}, [value, value]]
    if isinstance(value, int):
        similar += [value + draw.choice((-1, 1)), draw.choice(_NUMBERS)] * 4
    elif isinstance(value, str):
        similar += [value[:-1], value.upper(), value + "x", draw.choice(_TEXTS)] * 2
    elif isinstance(value, list):
        similar += [value[:-1], value[::-1], value + value[-1:]] * 4
    elif isinstance(value, dict) and value:
        lost, twice = dict(value), dict(value)
        name = draw.choice([*value])
        del lost[name]
        twice[f"{name}_"] = twice[name]
        similar += [lost, twice] * 4
    return draw.choice(similar)


def _document(name: str, found: Signed, draw: random.Random) -> None:
    place: Any = getattr(found, name)
    while True:
        key = draw.choice([*place] if isinstance(place, dict) else range(len(place)))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or draw.random() < 0.15:
            place[key] = _other(inner, draw)
            return
        place = inner


def _table(found: Signed, draw: random.Random) -> None:
    at = draw.randrange(found.rows.num_columns)
    field = found.rows.schema.field(at)
    values = found.rows[field.name].to_pylist()
    kind = field.type
    for row in range(len(values)):
        if draw.random() < 0.5:
            values[row] = _cell(kind, values[row], draw)
    if draw.random() < 0.2:
        draw.shuffle(values)
    if pa.types.is_dictionary(kind):
        array = pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    else:
        array = pa.array(values, kind)
    found.rows = found.rows.set_column(at, field, array)


def _cell(kind: Any, value: Any, draw: random.Random) -> Any:
    if draw.random() < 0.3:
        return None
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind):
        return draw.choice((*_TEXTS, "written", "rejected", value))
    if pa.types.is_integer(kind):
        low, high = (-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
        return min(max(draw.choice((*_NUMBERS, (value or 0) + 1)), low), high)
    if pa.types.is_floating(kind):
        return draw.choice(_FLOATS)
    if pa.types.is_list(kind):
        return draw.choice(([], [_cell(kind.value_type, 0, draw)] * draw.randint(1, 3), value))
    return value


def _records(found: Signed, draw: random.Random) -> None:
    shard = draw.choice([*found.payloads])
    record = draw.randrange(len(found.payloads[shard]))
    try:
        features = found.features(shard, record)
    except ShardprepError:  # it was changed before
        return
    name = draw.choice([*features, IMAGE])
    values = features.get(name, [])
    how = draw.choice(("none", "twice", "other", "bytes"))
    if how == "none":
        features[name] = [] if draw.random() < 0.5 else values[:-1]
    elif how == "twice":
        features[name] = values * 2
    elif values and isinstance(values[0], bytes):
        features[name] = [_blob(one, draw) for one in values]
    elif values:
        among = _FLOATS if isinstance(values[0], float) else _NUMBERS
        features[name] = [draw.choice(among) for _ in values]
    found.replace(shard, record, features)


def _blob(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data) or 1)
    flipped = (
        data[:at] + bytes([(data[at] if data else 0) ^ 1 << draw.randrange(8)]) + data[at + 1 :]
    )
    return draw.choice(
        (
            b"", data[:at], flipped, b"\xff\xd8\xff", draw.choice(_TEXTS).encode(), png(9, 7),
            jpeg(7, 9), huge_png(20_000, 20_000), data * 2, b"\x89PNG\r\n\x1a\n" + bytes(40),
        )
    )  # fmt: skip


def _bytes(found: Signed, draw: random.Random) -> None:
    shard = draw.choice([*found.payloads])
    record = draw.randrange(len(found.payloads[shard]))
    found.payloads[shard][record] = _blob(found.payloads[shard][record], draw)


def _count(found: Signed, draw: random.Random) -> None:
    """Drop or double a record, so that indexes and tables are of others."""
    shard = draw.choice([*found.payloads])
    payloads = found.payloads[shard]
    at = draw.randrange(len(payloads))
    payloads[at : at + 1] = [payloads[at]] * draw.choice((0, 2))


_MUTATIONS: dict[str, Callable[[Signed, random.Random], None]] = {
    "manifest": partial(_document, "manifest"),
    "schema": partial(_document, "schema"),
    "table": _table,
    "records": _records,
    "bytes": _bytes,
    "index": _count,
}


# --- what becomes of one --------------------------------------------------------------------------

COMMANDS: dict[str, tuple[str, ...]] = {
    "inspect": ("inspect", "{set}"),
    "inspect --boxes": ("inspect", "{set}", "--boxes", "sheet.png"),
    "report": ("report", "{set}", "--output", "page.html"),
    "verify": ("verify", "{set}", "--decode"),
    "verify --leaks": ("verify", "{set}", "--leaks"),
    "leaks": ("leaks", "{set}", "{whole}"),
    "diff": ("diff", "{set}", "{whole}"),
    "repack": ("repack", "{set}", "--out", "repacked"),
    "export webdataset": ("export", "{set}", "--to", "webdataset", "--out", "w"),
    "export parquet": ("export", "{set}", "--to", "parquet", "--out", "p"),
    "export folder": ("export", "{set}", "--to", "folder", "--out", "f"),
}
READERS = (*COMMANDS, "view", "Dataset", "Dataset.batches", "load", "mean_std")
"""What opens each dataset."""
RESULT, LINE = "a result", "one line"


def ends(folder: Path, whole: Path, work: Path) -> Counter[tuple[str, str]]:
    """Return how each of `READERS` ended on a dataset; AssertionError for other outcomes."""
    found: Counter[tuple[str, str]] = Counter()
    for name, words in COMMANDS.items():
        arguments = [word.format(set=folder, whole=whole) for word in words]
        done = run(*arguments, cwd=work)
        is_result = done.returncode in (0, 3)
        assert is_result or done.returncode in (1, 2), (name, done)
        assert "Traceback" not in done.stderr, (name, done.stderr)
        if not is_result:
            _judge(name, done.stderr.strip().splitlines()[-1], folder)
        found[name, RESULT if is_result else LINE] += 1
    found["view", _viewed(folder)] += 1
    for name, read in _READS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read(folder)
        except ShardprepError as error:
            _judge(name, str(error), folder)
            found[name, LINE] += 1
        except Exception as error:
            # TensorFlow wraps what a call of its threads raises.
            line, *_ = str(error).splitlines()
            if not type(error).__module__.startswith("tensorflow."):
                raise
            _judge(name, line, folder)
            found[name, LINE] += 1
        else:
            found[name, RESULT] += 1
    return found


def _judge(name: str, line: str, folder: Path) -> None:
    assert "\n" not in line, (name, line)
    assert line.isprintable(), (name, line)
    assert len(line) < _MOST_LINE, (name, line)
    assert "Traceback" not in line, (name, line)
    assert re.search(r"\w", line), (name, folder)


def _viewed(folder: Path) -> str:
    try:
        with served(folder) as one:
            number = one.viewer.num_items
            pages = ["/", "/findings", "/?label=0&status=written"]
            for item in range(min(number, 12)):
                pages += [f"/{what}/{item}" for what in ("item", "tile", "image")]
            for page in pages:
                answer = one.client.get(page)
                assert answer.status in (200, 404, 422, 410, 409), (page, answer)
                assert b"Traceback" not in answer.body
    except ShardprepError as error:
        _judge("view", str(error), folder)
        return LINE
    return RESULT


def _items(folder: Path) -> None:
    data = reader.Dataset(folder, _split(folder))
    for number in range(len(data)):
        try:
            data[number]
        except ShardprepError as error:
            _judge("Dataset", str(error), folder)


def _batches(folder: Path) -> None:
    data = reader.Dataset(folder, _split(folder))
    for batch in data.batches(3, ragged=True, as_supervised=False, shuffle=False):
        np.asarray(batch[IMAGE], object)


def _split(folder: Path) -> str:
    return "+".join(json.loads((folder / "manifest.json").read_bytes())["splits"])


def _loaded(folder: Path) -> None:
    for _ in reader.load(folder, _split(folder), as_supervised=False, shuffle=False):
        pass


_READS: dict[str, Callable[[Path], object]] = {
    "Dataset": _items,
    "Dataset.batches": _batches,
    "load": _loaded,
    "mean_std": lambda folder: reader.mean_std(folder, _split(folder)),
}
