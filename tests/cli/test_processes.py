"""Commands in processes of their own: what they import, Ctrl-C, and too little memory."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.support.builders import animals, build, png, write, zip_bytes
from tests.support.command import python, run, run_process
from tests.support.processes import loaded, servers, wait_until, workers

OF_NO_COMMAND = frozenset((
    "tensorflow", "keras", "kaggle", "pandas", "matplotlib", "obstore", "pydicom",
    "pillow_heif", "py7zr", "yaml", "requests", "urllib3", "http", "asyncio",
))  # fmt: skip
"""Libraries that no command needs for a folder or a zip of ordinary images."""
OF_PIXELS = frozenset(("PIL", "simplejpeg", "pycocotools"))
OF_SOURCES = frozenset(("xml", "isal"))
OF_VALIDATORS = frozenset(("typer._adapters",))


@pytest.fixture(name="pets", scope="module")
def _pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pets")
    write(folder / "pets.zip", zip_bytes(animals()))
    assert run("build", "pets.zip", cwd=folder).returncode == 0
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "others"),
    [
        ("build pets.zip --version 2.0.0", OF_VALIDATORS),
        ("build pets.zip --version 2.0.0 --dry-run", frozenset[str]()),
        ("verify", OF_VALIDATORS | {"shardprep.catalog.catalog"}),
        ("inspect", OF_PIXELS | OF_SOURCES | OF_VALIDATORS | {"shardprep.writer"}),
        ("repack --shards 2 --version 3.0.0", OF_PIXELS | OF_SOURCES),
        ("export --to webdataset", OF_PIXELS | OF_SOURCES),
        ("diff tfrecords/pets tfrecords/pets", OF_PIXELS | OF_SOURCES),
    ],
)
def test_a_command_does_not_import_libraries_that_it_does_not_need(
    pets: Path, tmp_path: Path, arguments: str, others: frozenset[str]
) -> None:
    shutil.copytree(pets, tmp_path, dirs_exist_ok=True)
    code = (
        "import contextlib, io\n"
        "from shardprep.__main__ import main\n"
        f"sys.argv = ['shardprep', *{arguments.split()!r}]\n"
        "try:\n"
        "    with contextlib.redirect_stdout(io.StringIO()):\n"
        "        main()\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0\n"
    )
    with contextlib.chdir(tmp_path):
        found = loaded(code)
    assert "shardprep" in found
    assert not found & (OF_NO_COMMAND | others)


# --- Ctrl-C from a terminal, which all processes of a command hear, in its first seconds ---


def hears_interrupts(number: int) -> bool:
    lines = Path(f"/proc/{number}/status").read_text().splitlines()
    masks = [line.split()[1] for line in lines if line.startswith(("SigBlk:", "SigIgn:"))]
    return not any(int(mask, 16) & 1 << (signal.SIGINT - 1) for mask in masks)


@pytest.mark.parametrize("flags", [(), ("--dedup", "near")])
def test_the_server_of_workers_never_receives_ctrl_c(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    write(tmp_path / "pets.zip", zip_bytes(animals(40)))
    with subprocess.Popen(
        [sys.executable, "-m", "shardprep", "build", "pets.zip", "--workers", "2", *flags],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "SHARDPREP_CACHE": str(tmp_path / "cache")}, start_new_session=True,
    ) as process:  # fmt: skip
        wait_until(lambda: servers(process.pid))
        forked = servers(process.pid) + workers(process.pid)
        assert forked
        assert not any(map(hears_interrupts, forked))
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    (line,) = errors.splitlines()
    assert line.startswith("interrupted")


# --- memory ---


@pytest.mark.parametrize(
    ("limit", "most", "said"),
    [
        ("RLIMIT_FSIZE", 200 << 10, "does not fit"),
        ("RLIMIT_AS", 300_000 << 10, "there is not enough memory"),
    ],
)
def test_a_limit_that_tiles_exceed_is_one_line(
    limit: str, most: int, said: str, tmp_path: Path
) -> None:
    write(tmp_path / "slides.zip", zip_bytes({"a.png": png(500, 700), "b.png": png(500, 700, 1)}))
    lower = partial(resource.setrlimit, getattr(resource, limit), (most, most))
    command = ("build", "slides.zip", "--tile", "100")
    done = run_process(*command, cwd=tmp_path, preexec_fn=lower)
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_errors_in_finalizers_are_silent_without_memory_and_reported_otherwise(
    tmp_path: Path,
) -> None:
    """They would be printed before the line that says that memory is short."""
    code = """
import sys
from shardprep.cli import app

class Ending:
    def __init__(self, error): self.error = error
    def __del__(self): raise self.error

sys.unraisablehook = app._unraisable
Ending(MemoryError()), Ending(OSError(12, "Cannot allocate memory"))
Ending(ValueError("a bug"))
"""
    done = python("-c", code, cwd=tmp_path, check=True)
    assert done.stderr.count("Exception ignored in") == 1
    assert done.stderr.rstrip().endswith("ValueError: a bug")


_MEGABYTES = (240, 245, 250, 235, 255, 260)
"""Too few for each command, enough to import most libraries."""


@pytest.mark.parametrize(
    "command",
    [
        "build pets.zip --out new --workers 1",
        "repack out --out small",
        "report out --output page.html",
    ],
)
def test_too_little_address_space_is_one_line(command: str, tmp_path: Path) -> None:
    source = write(tmp_path / "pets.zip", zip_bytes(animals(4)))
    build(source, tmp_path / "out")
    for limit in _MEGABYTES:
        lower = partial(resource.setrlimit, resource.RLIMIT_AS, (limit << 20, limit << 20))
        done = run_process(*command.split(), cwd=tmp_path, preexec_fn=lower)
        if done.returncode >= 0:  # OpenBLAS or Rust may abort where they cannot start a thread
            assert done.returncode == 1
            lines = done.stderr.splitlines()
            lines = [one for one in lines if not one.startswith("<jemalloc>")]  # pyarrow's own
            assert len(lines) == 1, done.stderr
            assert lines[0].startswith("shardprep: there is not enough memory; ")
            return
    pytest.fail("a library aborted the process at each limit")
