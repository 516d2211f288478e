"""Numbers of the package that may not grow."""

import json
import re
import subprocess
import sys
from pathlib import Path

import shardprep
from tests.support.builders import animals, write, zip_bytes


def test_one_class_receives_progress() -> None:
    sources = [path.read_text() for path in Path(shardprep.__file__).parent.rglob("*.py")]
    parts = [
        part
        for text in sources
        for part in re.split(r"^ *class (?=\w)", text, flags=re.MULTILINE)[1:]
    ]
    methods = {re.match(r"\w+", part)[0]: re.findall(r" def (\w+)", part) for part in parts}  # type: ignore[index]
    receivers = {name for name, own in methods.items() if {"start", "advance"} <= {*own}}
    assert receivers == {"Watch"}


_RECORDED = """
import json, os, sys
import simplejpeg
from shardprep.__main__ import main
from shardprep.writer.engine import worker_main
from shardprep.writer.engine.pool import Worker

def decode(*_, **__):
    frame, names = sys._getframe(1), []
    while frame is not None:
        names.append(f"{frame.f_globals['__name__']}.{frame.f_code.co_name}")
        frame = frame.f_back
    os.write(1, json.dumps(names[::-1]).encode())
    os._exit(0)

def send_order(worker):  # encodes here what it would send
    shard = worker._owned
    worker_main.encoded(worker._work, worker._todo[0] if shard is None else shard.task)

simplejpeg.decode_jpeg = decode
Worker.send_order = send_order
sys.argv = ["shardprep", "build", "photos.zip", "--workers", "1", "--quiet"]
main()
"""


def test_few_frames_lead_from_the_command_line_to_a_pixel(tmp_path: Path) -> None:
    """A worker's frames are added to those of its parent, which sends it a chunk.

    Typer counts once. What measures a stage does not count.
    """
    write(tmp_path / "photos.zip", zip_bytes(animals(2)))
    done = subprocess.run(
        [sys.executable, "-c", _RECORDED], cwd=tmp_path, check=True, stdout=subprocess.PIPE
    )
    names = json.loads(done.stdout)
    frames = [name for name in names if name.startswith("shardprep.")]
    frames = [name for name in frames if not name.startswith("shardprep.profiling.")]
    frames += ["typer", "shardprep.writer.engine.worker_main.serve", "Worker.send_order"]
    assert any(name.startswith("typer.") for name in names)
    assert "shardprep.writer.engine.worker_main.encoded" in frames
    assert len(frames) <= 22, "\n".join(frames)


_MOST_LINES, _MOST_MODULES, _MOST_TEST_LINES = 80_142, 350, 78_488
"""Budgets: a capability says in its change how many lines it adds, and what goes for them."""


def test_the_package_and_its_tests_do_not_grow() -> None:
    package = Path(shardprep.__file__).parent
    modules = [*package.rglob("*.py")]
    tests = [*Path(__file__).parent.rglob("*.py")]
    sources = [*modules, *package.rglob("*.[ch]")]
    assert len(modules) <= _MOST_MODULES
    assert sum(len(path.read_bytes().splitlines()) for path in sources) <= _MOST_LINES
    assert sum(len(path.read_bytes().splitlines()) for path in tests) <= _MOST_TEST_LINES
