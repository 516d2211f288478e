"""Each flag that a command prints works: the next command is right, and no message is forgotten."""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from PIL import Image

from shardprep.cli.app import program
from tests.catalog.advice_rows import pics, table, voc
from tests.catalog.advice_rows_objects import ROWS
from tests.support.advice_sites import Site, sites, values_beside_options
from tests.support.builders import encoded, jpeg, write_folder, zip_bytes
from tests.support.command import run
from tests.support.paths import DATA, ROOT

SIX = pics(*(f"{'cat' if i < 3 else 'dog'}/{i}.jpg" for i in range(6)), height=40, width=40)
BUILD = ("build", "source", "--size", "16x16")
STACK = ("build", "source", "--stack", "{id}/*.png", "--labels", "none")
MASKS = ("build", "source", "--masks", "masks/{name}", "--labels", "none")
SIX_WITH_ONE_CUT = {key: data[:-200] if key == "cat/0.jpg" else data for key, data in SIX.items()}


@dataclass(frozen=True)
class Case:
    """A command that prints advice, and the command that follows it."""

    says: str
    members: Mapping[str, bytes]
    first: tuple[tuple[str, ...], ...]
    """Commands; the last one prints the message."""
    then: tuple[str, ...]
    see: Callable[[Any], Any]
    """What to find in the JSON of the next command."""
    right: Any


def counts(done: Any) -> tuple[int, int]:
    totals = done["manifest"]["totals"]
    return totals["num_written"], totals["num_rejected"]


def kinds(done: Any) -> list[str]:
    return sorted(done["manifest"]["schema"]["features"])


def _swapped(data: bytes) -> bytes:
    """Return a zip whose names are Shift-JIS, without the flag of UTF-8."""
    return data.replace(b"XXXXXX", "猫犬猫".encode("cp932"))


CASES = [
    Case(
        "add --overwrite to replace it, or give another …",
        SIX,
        (BUILD, (*BUILD, "--quality", "80")),
        (*BUILD, "--quality", "80", "--overwrite"),
        counts,
        (6, 0),
    ),
    Case(
        "give --items stacks.csv instead of --stack, a table such as image,sample,order / …",
        pics("red/a.png", "green/a.png")
        | {"s.csv": table("image,sample,order", "red/a.png,a,0", "green/a.png,a,1")},
        (("build", "source", "--stack", "{red,green}/{id}.png"),),
        ("build", "source", "--items", "source/s.csv", "--size", "16x16"),
        counts,
        (1, 0),
    ),
    Case(
        "--version or --name",
        SIX,
        (BUILD, (*BUILD, "--quality", "80")),
        (*BUILD, "--quality", "80", "--version", "1.0.1"),
        lambda done: done["path"].rpartition("/")[2],
        "1.0.1",
    ),
    Case(
        "--version or --name",
        SIX,
        (BUILD, (*BUILD, "--quality", "80")),
        (*BUILD, "--quality", "80", "--name", "other"),
        lambda done: done["path"].split("/")[-2],
        "other",
    ),
    Case(
        "use --shards … or fewer",
        SIX,
        ((*BUILD, "--shards", "9"),),
        (*BUILD, "--shards", "6"),
        lambda done: len(done["manifest"]["splits"]["train"]["shards"]),
        6,
    ),
    Case(
        "… with a higher --max-rejected to leave them out",
        SIX | {"cat/9.jpg": b"\xff\xd8\xff no image"},
        (BUILD,),
        (*BUILD, "--max-rejected", "0.5"),
        counts,
        (6, 1),
    ),
    Case(
        "the file ends before its image does; give --truncated recover to store its readable part",
        SIX_WITH_ONE_CUT,
        (BUILD,),
        (*BUILD, "--truncated", "recover", "--overwrite"),
        counts,
        (6, 0),
    ),
    Case(
        "add --overwrite or remove this folder to start again, or give the former options",
        SIX_WITH_ONE_CUT,
        (BUILD, (*BUILD, "--truncated", "recover")),
        (*BUILD, "--truncated", "recover", "--overwrite"),
        counts,
        (6, 0),
    ),
    Case(
        "is larger than --max-member-size … (… bytes)",
        SIX | {"cat/9.jpg": jpeg(200, 200, quality=100)},
        ((*BUILD, "--max-member-size", "10KB"),),
        (*BUILD, "--max-member-size", "1MB", "--overwrite"),
        counts,
        (7, 0),
    ),
    Case(
        "give their encoding with --zip-encoding, such as cp932 or gbk",
        {"a.zip": _swapped(zip_bytes({f"XXXXXX/{i}.jpg": jpeg(8, 8, seed=i) for i in range(2)}))},
        (BUILD,),
        (*BUILD, "--zip-encoding", "cp932", "--labels", "folder", "--overwrite"),
        lambda done: done["manifest"]["labels"]["names"],
        ["猫犬猫"],
    ),
    Case(
        "say where they are with --boxes or --masks, or leave --schema out",
        pics("a.jpg", "b.jpg") | {"t.csv": table("id,p,q,r,s", "a,1,1,9,9", "b,1,1,9,9")},
        ((*BUILD, "--schema", "detection"),),
        (*BUILD, "--schema", "detection", "--boxes", "csv:t.csv:id:xyxy(p,q,r,s)"),
        counts,
        (2, 0),
    ),
    Case(
        "say where they are with --labels, or leave --schema out",
        pics("a.jpg", "b.jpg") | {"t.csv": table("id,p,q", "a,x,y", "b,y,x")},
        ((*BUILD, "--schema", "classification", "--labels", "none"),),
        (*BUILD, "--schema", "classification", "--labels", "csv:t.csv:id:p"),
        lambda done: done["manifest"]["labels"]["names"],
        ["x", "y"],
    ),
    Case(
        "…, but the first image is …; give --size …",
        {f"s/{i}.png": encoded(Image.new("L", (8 + i, 8)), "PNG") for i in range(2)},
        ((*STACK, "--size", "none"),),
        (
            "build",
            "source",
            "--size",
            "8x8",
            "--stack",
            "{id}/*.png",
            "--labels",
            "none",
            "--overwrite",
        ),
        counts,
        (1, 0),
    ),
    Case(
        "…; --dedup leaves them out",
        {"a.zip": zip_bytes({**SIX, "cat/9.jpg": SIX["cat/0.jpg"]})},
        (("init", "source"),),
        (*BUILD, "--dedup"),
        counts,
        (6, 0),
    ),
    Case(
        "……; build --dedup keeps one",
        {**SIX, "cat/9.jpg": SIX["cat/0.jpg"]},
        (BUILD, ("inspect", "tfrecords")),
        (*BUILD, "--dedup", "--overwrite"),
        counts,
        (6, 0),
    ),
    Case(
        "… smaller than --size; a smaller --size keeps the shards small",
        SIX,
        (("build", "source", "--size", "64x64"),),
        ("build", "source", "--size", "40x40", "--overwrite"),
        counts,
        (6, 0),
    ),
    Case(
        "%s of %s images have another size than their annotations state, so their annotations were "
        "scaled; --annotated-size image takes them as pixels of the image",
        pics("a.jpg", height=96, width=128) | voc("a.jpg"),
        ((*BUILD, "--boxes", "voc"),),
        (*BUILD, "--boxes", "voc", "--annotated-size", "image", "--overwrite"),
        counts,
        (1, 0),
    ),
    Case(
        "skipped … outside; --follow-links follows links",
        SIX,
        ((*BUILD, "--labels", "none"),),
        (*BUILD, "--labels", "none", "--follow-links", "--overwrite"),
        counts,
        (7, 0),
    ),
    Case(
        "a split that the ratios leave out stays whole, as in --split validation=0.1",
        {
            f"{s}/{c}/{i}.jpg": jpeg(8, 8, seed=i)
            for s in ("train", "test")
            for c in "xy"
            for i in range(10)
        },
        ((*BUILD, "--split", "train=0.8,validation=0.1,test=0.1"),),
        (*BUILD, "--split", "validation=0.1", "--overwrite"),
        lambda done: {name: one["num_records"] for name, one in done["manifest"]["splits"].items()},
        {"test": 20, "train": 18, "validation": 2},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.says[:50])
def test_the_next_command_of_a_message_is_right(case: Case, tmp_path: Path) -> None:
    write_folder(tmp_path / "source", case.members)
    if "links" in case.says:
        (tmp_path / "far.jpg").write_bytes(jpeg(8, 8, seed=77))
        (tmp_path / "source/cat/far.jpg").symlink_to(tmp_path / "far.jpg")
    *before, last = case.first
    for command in before:
        run(*command, cwd=tmp_path)
    done = run(*last, cwd=tmp_path)
    text = " ".join((done.stdout + done.stderr).split())
    assert Site("", case.says.replace("%s", "…")).in_message().search(text), text
    assert any(f"{word} " in f"{text} " for word in case.then if word.startswith("--")), text
    done = run(*case.then, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert case.see(json.loads(done.stdout)) == case.right


KNOWN = tomllib.loads((DATA / "advice.toml").read_text(encoding="utf-8"))


def test_each_text_with_an_option_has_a_row_or_a_reason() -> None:
    """A new message with a flag fails here until a table runs its flags."""
    rows = {*(one.says for one in CASES), *(one.says.strip() for one in ROWS)}
    elsewhere = {text for several in KNOWN["tests"].values() for text in several}
    without = {text for several in KNOWN["no_flags_to_run"].values() for text in several}
    known = rows | elsewhere | without
    texts = {one.text.strip() for one in sites()}
    assert sorted(texts - known) == []
    assert sorted(known - texts) == []
    assert not (rows & elsewhere) | (rows & without) | (elsewhere & without)


def test_a_value_is_spelled_with_its_option_for_python_too() -> None:
    assert [*values_beside_options()] == []


@pytest.mark.parametrize("test", KNOWN["tests"])
def test_the_test_that_runs_the_flags_of_a_text_is_there(test: str) -> None:
    file, _, name = test.partition("::")
    code = (ROOT / "tests" / file).read_text(encoding="utf-8")
    assert f"def {name}(" in code
    for text in KNOWN["tests"][test]:
        words = re.findall(r"--([a-z-]+)", text)
        assert any(re.search(rf"--{one}|{one.replace('-', '_')}\W", code) for one in words), text


def test_each_option_in_a_text_exists() -> None:
    known = {"--help", "--version", "--ignore-zeros", "--format"}  # two of tar and aws
    for command in vars(typer.main.get_command(program()))["commands"].values():
        for option in command.params:
            known.update((*option.opts, *option.secondary_opts))
    named = {(word, one) for one in sites() for word in re.findall(r"--[a-z][a-z-]*", one.text)}
    assert [pair for pair in named if pair[0] not in known | {"--no-"}] == []
