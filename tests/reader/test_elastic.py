"""Training that continues on another number of hosts, in processes of their own that are killed."""

import json
import signal
import time
from pathlib import Path
from typing import Any

from shardprep import reader
from tests.reader.datasets import merged
from tests.support.processes import Program

GLOBAL_BATCH = 12
HOST = """
import json, sys, time, zlib
from shardprep import reader

place, out, state, host, hosts, pause = sys.argv[1:]
dataset = reader.Dataset(place, as_supervised=False)
batches = dataset.batches(
    12 // int(hosts), shuffle=True, seed=4, epochs=2, random_resized_crop=(16, 16),
    num_shards=int(hosts), shard_index=int(host), as_supervised=False,
)
if state:
    batches.load_state_dict(json.loads(state))
with open(out, "w") as file:
    for batch in batches:
        keys = zip(batch["image/filename"], batch["image"])
        line = [f"{key} {zlib.crc32(image.tobytes())}" for key, image in keys]
        print(json.dumps([line, batches.state_dict()]), file=file, flush=True)
        time.sleep(float(pause))
"""


def lines(out: Path) -> list[Any]:
    """Return what a host has written: images with the CRC of their pixels, and the state after."""
    return [json.loads(line) for line in out.read_text().splitlines()[:1000] if line.endswith("]")]


def run(place: Path, folder: Path, state: Any, hosts: int, pause: float) -> list[Any]:
    """Start hosts and return their processes, each with the file that it writes."""
    given = json.dumps(state) if state else ""
    found = []
    for host in range(hosts):
        out = folder / f"{hosts}-{host}"
        arguments = (place, out, given, host, hosts, pause)
        found.append((Program(HOST, *arguments, framework="none"), out))
    return found


def test_hosts_that_are_killed_continue_as_another_cluster_to_the_byte(
    shapes: Path, tmp_path: Path
) -> None:
    """The crops of the images are those of an undisturbed run, too."""
    place = shapes / "tfrecords" / "shapes"
    num_batches = len(reader.Dataset(place).batches(GLOBAL_BATCH, epochs=2))
    found: list[list[str]] = []
    state: Any = None
    for hosts in (2, 3):
        processes = run(place, tmp_path, state, hosts, pause=0.05)
        deadline = time.monotonic() + 60
        while min(len(lines(out)) if out.exists() else 0 for _, out in processes) < 5:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for process, _ in processes:
            process.signal(signal.SIGKILL)
            process.wait()
        written = [lines(out) for _, out in processes]
        common = min(map(len, written))
        states = [one[common - 1][1] for one in written]
        assert states == states[:1] * hosts
        state = states[0]
        found += merged([[line for line, _ in one[:common]] for one in written])
    ((last, out),) = run(place, tmp_path, state, 1, pause=0)
    assert last.wait(60).returncode == 0
    found += [line for line, _ in lines(out)]
    ((alone, out),) = run(place, tmp_path, None, 1, pause=0)
    assert alone.wait(60).returncode == 0
    assert found == [line for line, _ in lines(out)]
    assert len(found) == num_batches
