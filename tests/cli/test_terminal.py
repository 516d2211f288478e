"""Output on a terminal, to a pipe that closes, to a file; nothing in it steers a terminal."""

import fcntl
import json
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from shardprep.api import reports
from shardprep.api.display import Bar
from shardprep.cli import streams
from shardprep.cli.console import Terminal
from shardprep.progress import Progress, Watch
from tests.support.builders import animals, build, jpeg, write, zip_bytes
from tests.support.command import COMMAND_ERRORS, NARROW, error_of, ran, run

WIDE = {name: value for name, value in NARROW.items() if name != "COLUMNS"}
LONG = "a-folder-with-a-name-of-many-letters/" * 4
FIRST = "pets-train.tfrecord-00000-of-00001"


@pytest.fixture(name="shop", scope="module")
def _shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a dataset whose keys are long, two of its records damaged."""
    shop = tmp_path_factory.mktemp("shop")
    source = write(shop / "pets.zip", zip_bytes(animals(12, folder=LONG)))
    folder = build(source, shop / "tfrecords", labels="prefix", size="32x32").path
    data = bytearray((folder / FIRST).read_bytes())
    sizes = [int(line.split()[1]) for line in (folder / f"index/{FIRST}.idx").open()]
    for record in (1, 4):
        data[sum(sizes[:record]) + 40] ^= 1
    (folder / FIRST).write_bytes(bytes(data))
    return shop


def shell(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a pipeline in which `shardprep` is ours; it fails if any part of it does."""
    program = (
        f"set -o pipefail; shardprep() {{ '{sys.executable}' -m shardprep \"$@\"; }}; {command}"
    )
    return subprocess.run(
        ["bash", "-c", program], cwd=cwd, env=WIDE, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("shardprep inspect --json | head -1", 0),
        ("shardprep build --help | head -1", 0),
        ("shardprep verify | head -1", 3),
        ("shardprep build pets.zip --dry-run 2>&1 | true", 0),
    ],
)
def test_a_pipe_that_closes_early_changes_no_exit_code(shop: Path, command: str, code: int) -> None:
    done = shell(command, shop)
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device")  # noqa: PTH110
def test_a_full_disk_behind_stdout_is_one_line(shop: Path) -> None:
    done = shell("shardprep inspect > /dev/full", shop)
    assert (done.returncode, done.stderr) == (1, "shardprep: no space left on device\n")


def test_without_a_terminal_a_problem_is_one_line(shop: Path) -> None:
    done = shell("shardprep verify | grep '^damaged .*offset'", shop)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all(
        re.search(rf"{LONG}\w+\.\d\.jpg: data CRC is \w+, stored \w+$", one) for one in lines
    )


def test_on_a_terminal_lines_are_wrapped_to_it(shop: Path) -> None:
    """Except for colours, the output equals that with COLUMNS=80."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
    command = [sys.executable, "-m", "shardprep", "inspect"]
    with subprocess.Popen(command, cwd=shop, env=WIDE, stdout=theirs, stdin=theirs) as process:
        os.close(theirs)
        shown = b""
        while part := read(ours):
            shown += part
    os.close(ours)
    assert process.returncode == 0
    text = re.sub(r"\x1b\[[\d;]*m", "", shown.decode()).replace("\r\n", "\n")
    assert text == run("inspect", cwd=shop).stdout
    assert max(map(len, text.splitlines())) <= 80


def read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # Linux says so of a terminal that nobody writes to any more
        return b""


@pytest.fixture(name="here")
def _here(tmp_path: Path) -> Path:
    write(tmp_path / "pets.zip", zip_bytes(animals(6)))
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ("build", "pets.zip", "--quiet"),
        ("--quiet", "build", "pets.zip"),
        ("build", "pets.zip", "--log-level", "warning"),
        ("--log-level", "debug", "build", "pets.zip", "--log-level", "error"),
    ],
)
def test_quiet_does_not_change_the_result(here: Path, arguments: tuple[str, ...]) -> None:
    done = run(*arguments, cwd=here)
    assert (done.returncode, done.stderr) == (0, "")
    assert "6 = 6 written" in done.stdout


def test_quiet_still_shows_errors(here: Path) -> None:
    write(here / "bad.zip", zip_bytes({"a/1.jpg": jpeg(), "b/2.jpg": b"no"}))
    done = run("build", "bad.zip", "--quiet", cwd=here)
    assert "1 of 2 images are rejected" in error_of(done, 1)
    assert done.stderr.count("\n") == 1


def test_debug_shows_where_an_error_was_raised(here: Path) -> None:
    done = run("--log-level", "debug", "inspect", "nowhere", cwd=here)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("nowhere: no such folder")


def test_an_error_about_a_level_lists_all_levels(here: Path) -> None:
    said = error_of(run("inspect", "--log-level", "loud", cwd=here), 2)
    assert said == "--log-level: 'loud' is not one of debug, info, warning, error"


def test_messages_are_shown_by_their_level(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def at(*_: Any, **__: Any) -> None:
        for say in ("debug", "info", "warning"):
            getattr(logging.getLogger("shardprep.reader"), say)("%s [red] \x1b", say)
        sys.exit(0)

    monkeypatch.setattr(reports, "dataset_at", at)
    levels = ("debug", "info", "warning", "error")
    for i, level in enumerate(levels):
        done = ran("inspect", "--log-level", level, cwd=here)
        assert done.stderr.splitlines() == [f"{one} [red] \\x1b" for one in levels[i:3]]


# --- names of strangers -------------------------------------------------------------------------

HOSTILE = "\x1b[31m[bold]x[/] [/nope] :smile: \u202edlot\u2066 \x07\x9b2J"
"""Terminal control, markup, an emoji code and text direction."""
CLASS = "[bold]x[/] [/nope] :smile: \u202edlot\u2066"
"""The same without control characters, which class names may not have."""


@pytest.fixture(name="strange", scope="module")
def _strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("strange")
    rows = "".join(f'{i},"{CLASS} {i % 2}"\n' for i in range(9))
    broken = "".join(f'{i},"{HOSTILE}\n{i % 2}"\n' for i in range(9))
    members = {f"{HOSTILE}/{i}.jpg": jpeg(seed=i) for i in range(8)}
    members |= {f"{HOSTILE}/8.jpg": b"no", f"{HOSTILE}.{HOSTILE}": b"", f"../{HOSTILE}": b""}
    members["labels.csv"] = f"id,kind\n{rows}".encode()
    members[f"{HOSTILE}.csv"] = f"id,{HOSTILE}\n{rows}".encode()
    members["odd.csv"] = f"id,kind\n{broken}".encode()
    members["odd.json"] = json.dumps([{"id": str(i), "kind": HOSTILE} for i in range(9)]).encode()
    write(here / f"{HOSTILE}.zip", zip_bytes(members))
    return here


RULE = ("--labels", "csv:labels.csv:id:kind", "--max-rejected", "100%", "--name", "strange")
OUT = ("--out", f"out {HOSTILE}")
PLACE = f"out {HOSTILE}/strange"


def test_hostile_names_do_not_control_the_terminal(strange: Path) -> None:
    names = {
        "SOURCE": (f"{HOSTILE}.zip",), "RULE": RULE, "LABELS": RULE[:2], "OUT": OUT,
        "PLACE": (PLACE,), "NEW": (f"new {HOSTILE}",), "HOSTILE": (HOSTILE,),
    }  # fmt: skip
    for words, code in COMMAND_ERRORS["hostile"]:
        arguments = [one for word in words.split() for one in names.get(word, (word,))]
        check(strange, tuple(arguments), code)
    (file,) = (strange / PLACE / "1.0.0").glob("*.tfrecord-*")
    file.write_bytes(file.read_bytes()[:300])
    write(file.parent / f"unknown {HOSTILE}", b"")
    assert HOSTILE[5:16] in check(strange, ("verify", PLACE), 3)
    check(strange, ("verify", PLACE, "--json"), 3)


def check(here: Path, arguments: tuple[str, ...], code: int) -> str:
    done = run(*arguments, cwd=here, environment=WIDE)
    out, err = done.stdout, done.stderr
    assert done.returncode == code, err
    assert "Traceback" not in err
    kinds = {one: unicodedata.category(one) for one in {*out, *err} - {"\n"}}
    assert not [one for one, kind in kinds.items() if kind in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    if "--json" in arguments:
        json.loads(out)
    return out


def test_a_benchmark_interprets_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    from dataclasses import replace

    from shardprep.benchmark.result import Way
    from shardprep.cli.reports import print_benchmark
    from tests.support.benchmark import example

    found: Any = example(naive=Way("naive", HOSTILE), load=Way("load", yields=HOSTILE))
    print_benchmark(Terminal(), replace(found, split=HOSTILE, path=HOSTILE))
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert shown.count("[bold]x[/] [/nope] :smile:") == 3


def test_the_bar_interprets_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar(Terminal(stderr=True)) as bar:
        watch = Watch(bar)
        watch.start(HOSTILE, 100, "bytes")
        watch.advance(1)
        watch.notice(HOSTILE)
    assert "[bold]x[/] [/nope] :smile: \\u202e" in capsys.readouterr().err


def test_colour_without_a_terminal_does_not_move_the_cursor(tmp_path: Path) -> None:
    """The kernels of notebooks set FORCE_COLOR."""
    write(tmp_path / "pets.zip", zip_bytes(animals(12)))
    colourful = {name: value for name, value in WIDE.items() if name != "NO_COLOR"}
    done = ran("build", "pets.zip", cwd=tmp_path, environment={**colourful, "FORCE_COLOR": "1"})
    assert "\x1b[1minputs" in done.stdout
    codes = set(re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|\r", done.stdout + done.stderr))
    assert all(code.endswith("m") for code in codes), "the others steer a terminal"
    assert "12 images to 1 shard" in done.stderr
    assert "encoding" not in done.stderr, "no bar"
    plain = run("build", "pets.zip", cwd=tmp_path, environment={**colourful, "FORCE_COLOR": ""})
    assert "\x1b" not in plain.stdout + plain.stderr


def test_a_warning_is_printed_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich replaces stderr while a bar is shown."""
    parent, child = pty.openpty()
    with os.fdopen(child, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        streams.start_logging("info")
        with Bar(Terminal(stderr=True)) as bar:
            bar(Progress("encoding", 5, 10, "images"))
            logging.getLogger("shardprep").warning("train: dark\x1b[31m images")
        terminal.flush()
        said = b""
        while b"dark\\x1b[31m images" not in said:  # a read may return a part of it
            said += os.read(parent, 1 << 16)
    os.close(parent)
    lines = re.split(r"[\r\n]+|\x1b\[2K", said.decode())
    assert r"train: dark\x1b[31m images" in [line.rstrip() for line in lines]
