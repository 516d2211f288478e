"""Builds archives one after the other, each in a process that is bounded in time, memory and disk.

They are forked from one that starts nothing else, so that a fork is cheap and safe: no test's
threads are in it.
"""

import json
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shardprep.errors import ShardprepError
from tests.source.hostile import HOSTILE
from tests.support.builders import build, tree
from tests.support.processes import Program

MIN_ARCHIVES_OF_OTHERS = 125
MAX_CPU_S = 10
MAX_WALL_S = 120
MAX_FILE_BYTES = 256 << 20
MAX_MORE_BYTES = 1 << 30
"""Bytes of address space, beyond what Python and its libraries have taken."""
WHOLE, COUNTED, ERROR = "built completely", "built, the rest counted", "one-line error"

KINDS = {
    "path": "member names that lead out of the folder",
    "name": "odd, long or clashing names",
    "link": "links and devices as members",
    "member": "members that cannot be read",
    "archive": "an archive that cannot be read",
    "size": "false sizes",
    "cut": "truncated at any place",
    "damage": "damaged bytes",
    "hidden": "members that the directory does not list",
    "overlap": "members that share their bytes",
    "bomb": "decompression bombs",
    "depth": "nested too deeply",
    "time": "slow to read by construction",
    "junk": "junk before or after the archive",
    "nothing": "empty, or not an archive",
}
"""Start of the name of a hostile archive → its fault."""


@dataclass(frozen=True, slots=True)
class Ending:
    name: str
    ended: str
    """"built", "error" (one of ours), or what else has happened to the process."""
    line: str
    """Line of the error."""
    num_written: int
    num_left_out: int
    """Inputs rejected or skipped, each with its reason."""
    cpu_s: float
    peak_bytes: int
    """Memory resident at once."""


def try_all(folder: Path) -> list[Ending]:
    """Build every file of a folder in its own process; datasets go to a sibling folder."""
    code = """
        import sys
        from tests.source.ordeal import print_endings
        print_endings(sys.argv[1])
    """
    done = Program(code, folder, framework="none").wait(300)
    assert done.returncode == 0, done.stderr
    return [Ending(**json.loads(line)) for line in done.stdout.splitlines()]


class Ordeal(NamedTuple):
    endings: dict[str, Ending]
    """By the name each archive is known by."""
    before: dict[str, bytes]
    after: dict[str, bytes]
    """Files of the folder that all happens in, datasets aside."""


def put_to_ordeal(archives: dict[str, bytes]) -> Ordeal:
    """Build archives, deep in a folder of their own: what leads out of one lands in it."""
    with tempfile.TemporaryDirectory() as top:
        sources = Path(top, "a/b/c/d/e/sources")
        sources.mkdir(parents=True)
        names = {f"{i:03d}.evil": name for i, name in enumerate(archives)}
        for file, name in names.items():
            (sources / file).write_bytes(archives[name])
        before = tree(Path(top))
        endings = {names[ending.name]: ending for ending in try_all(sources)}
        out = "a/b/c/d/e/out/"
        after = {key: data for key, data in tree(Path(top)).items() if not key.startswith(out)}
    return Ordeal(endings, before, after)


def made(*, quick: bool = False) -> Ordeal:
    """Return how the archives that the suite makes end; if `quick`, some three of each kind."""
    kinds: dict[str, list[str]] = {}
    for name in HOSTILE:
        kinds.setdefault(name.partition(":")[0], []).append(name)
    names = [
        name for own in kinds.values() for name in own[:: max(1, len(own) // 2) if quick else 1]
    ]
    return put_to_ordeal({name: HOSTILE[name]() for name in names})


def outcome(ending: Ending) -> str:
    """Return the kind of an ending, for a table."""
    if ending.ended == "built":
        return COUNTED if ending.num_left_out else WHOLE
    return ERROR if ending.ended == "error" else ending.ended


def archive_rows(ordeal: Ordeal) -> list[tuple[str, int, dict[str, int]]]:
    """Return for each kind of hostile archive how many were tried, and how many ended how."""
    counts: dict[str, Counter[str]] = {}
    for name, ending in ordeal.endings.items():
        counts.setdefault(name.partition(":")[0], Counter())[outcome(ending)] += 1
    return [(kind, found.total(), dict(found)) for kind, found in counts.items()]


def _try(source: Path) -> Ending:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _bound()
        os.write(writing, json.dumps(_outcome(source)).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:  # noqa: PTH123 - a descriptor
        text = pipe.read()
    _, status, used = os.wait4(child, 0)
    outcome: dict[str, Any] = json.loads(text) if text else {"ended": f"died, wait status {status}"}
    return Ending(
        name=source.name,
        ended=outcome["ended"],
        line=outcome.get("line", ""),
        num_written=outcome.get("num_written", 0),
        num_left_out=outcome.get("num_left_out", 0),
        cpu_s=used.ru_utime + used.ru_stime,
        peak_bytes=used.ru_maxrss * 1024,
    )


def _bound() -> None:
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for what, most in (
        (resource.RLIMIT_AS, taken + MAX_MORE_BYTES),
        (resource.RLIMIT_CPU, MAX_CPU_S),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
    ):
        resource.setrlimit(what, (most, most))
    signal.alarm(MAX_WALL_S)


def _outcome(source: Path) -> dict[str, Any]:
    out = source.parent.with_name("out")
    try:
        result = build(source, out, name="tried", replace=True, max_rejected=1, size="16x16")
    except ShardprepError as error:
        return {"ended": "error", "line": str(error)}
    except BaseException:
        return {"ended": "crash", "line": traceback.format_exc()}
    totals = result.manifest.totals
    num_left_out = totals.num_rejected + totals.num_skipped
    assert totals.num_inputs == totals.num_written + num_left_out
    return {"ended": "built", "num_written": totals.num_written, "num_left_out": num_left_out}


def print_endings(folder: str) -> None:
    """Build every file of a folder; print a JSON object for each."""
    sys.modules["pandas"] = None  # type: ignore[assignment] # Arrow would import it in every child
    for source in sorted(Path(folder).iterdir()):
        sys.stdout.write(json.dumps(asdict(_try(source))) + "\n")
        sys.stdout.flush()
