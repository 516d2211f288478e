"""A Ray cluster of two nodes on this machine: python -m tests.writer.ray_cluster FOLDER.

Ray listens on all interfaces of a machine. So it runs in a network of its own that has nothing
but a loopback, and only those who step into that (`inside`) can reach it.

It prints one JSON object and lives until its standard input ends; a line on that kills the second
node.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a-token-of-the-tests-0123456789abcdef"}
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal", "NO_COLOR": "1"}
_ALONE = ["unshare", "--map-root-user", "--net"]
_STORE_BYTES = 80 << 20
_HERE = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": _STORE_BYTES}


@dataclass
class RayCluster:
    address: str
    number: int
    pipe: IO[str]
    environment: dict[str, str] = field(default_factory=dict)

    def inside(self, *command: object) -> list[str]:
        step = ["nsenter", "--preserve-credentials", "--user", "--net", "-t", self.number]
        return [*map(str, step), *map(str, command)]

    def writers(self) -> list[int]:
        """Return the processes that write a shard at the moment."""
        found = []
        network = Path(f"/proc/{self.number}/ns/net").readlink()
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                is_task = (place / "cmdline").read_bytes().startswith(b"ray::shardprep ")
                if is_task and (place / "ns/net").readlink() == network:
                    found.append(int(place.name))
        return found

    def kill_a_node(self) -> None:
        """End one of the two nodes and its processes by SIGKILL."""
        self.pipe.write("\n")
        self.pipe.flush()


def can_be_alone() -> bool:
    """Return whether processes can have their own network here."""
    if not all(shutil.which(name) for name in ("unshare", "nsenter", "ip")):
        return False
    tried = subprocess.run([*_ALONE, "true"], capture_output=True, check=False)
    return tried.returncode == 0


@contextlib.contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """Run a cluster of two nodes with one processor each."""
    environment = {**os.environ, **_QUIET, **TOKEN, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [*_ALONE, sys.executable, "-m", "tests.writer.ray_cluster", folder],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            facts = json.loads(process.stdout.readline())
            yield RayCluster(facts["address"], process.pid, process.stdin, environment)
        finally:
            process.stdin.close()
            process.wait(60)
            process.stdout.close()


def main(folder: str) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    said = os.dup(1)
    os.dup2(2, 1)
    os.environ["RAY_TMPDIR"] = folder
    Path(folder, "ray").mkdir()  # Ray notes its address there, and takes it for granted
    from ray.cluster_utils import Cluster

    head = {**_HERE, "include_dashboard": False, "temp_dir": folder}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(**_HERE)
    facts = {"address": cluster.address}
    os.write(said, f"{json.dumps(facts)}\n".encode())
    if sys.stdin.readline():
        cluster.remove_node(second, allow_graceful=False)
        sys.stdin.readline()
    cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
    if second in cluster.worker_nodes:
        second.kill_all_processes(check_alive=False, allow_graceful=False)


if __name__ == "__main__":
    main(sys.argv[1])
