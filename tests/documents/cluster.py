"""Stand-ins for sbatch, kubectl, ssh and shardprep: `python cluster.py COMMAND ARGUMENTS…`.

The first three take what the real ones are given in docs/scale.md, refuse what they do not know,
and run the jobs here, one after the other. `shardprep` lets the test process run its command line:
a process of its own takes a second to start, and so do its workers.
"""

import os
import re
import subprocess
import sys
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

JOB = "4711"
ADDRESS = "TEST_PROCESS"
"""Environment variable with the address of the test process."""


def install(folder: Path) -> None:
    folder.mkdir()
    for name in STAND_INS:
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {name} "$@"\n')
        (folder / name).chmod(0o755)


def shardprep(arguments: list[str]) -> None:
    here = str(Path.cwd())
    out, errors, code = order(os.environ[ADDRESS], (arguments, here, dict(os.environ)))
    sys.stdout.write(out)
    sys.stderr.write(errors)
    sys.exit(code)


def order(address: str, what: object) -> Any:
    """Send an order to the test process; return its answer, which None does not get."""
    with Client(address) as test:
        test.send(what)
        return what and test.recv()


def sbatch(arguments: list[str]) -> None:
    options = dict(_option(a) for a in arguments if a.startswith("--") and a != "--wrap")
    script = "" if "--wrap" in arguments else arguments[-1]
    lines = Path(script).read_text().splitlines() if script else []
    asked = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    options = {**dict(map(_option, asked)), **options}
    assert options.keys() <= {
        "parsable", "job-name", "array", "cpus-per-task", "mem", "time", "requeue", "dependency",
        "kill-on-invalid-dep",
    }, options  # fmt: skip
    assert options.get("dependency", f"afterok:{JOB}") == f"afterok:{JOB}"
    if script:
        ids = [n for run in options["array"].split(",") for n in _run(run)]
        for number in ids:
            task = {
                "SLURM_ARRAY_TASK_ID": str(number),
                "SLURM_ARRAY_TASK_COUNT": str(len(ids)),
                "SLURM_CPUS_PER_TASK": "1",
            }
            _execute(["bash", script], task)
    else:
        _execute(["sh", "-c", arguments[arguments.index("--wrap") + 1]])
    sys.stdout.write(f"{JOB}\n" if "parsable" in options else f"Submitted batch job {JOB}\n")


def _option(text: str) -> tuple[str, str]:
    name, _, value = text.removeprefix("--").partition("=")
    return name, value


def _run(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def kubectl(arguments: list[str]) -> None:
    """Run the pods of a Job when it is applied."""
    if arguments[0] == "wait":
        assert arguments[1] == "--for=condition=complete"
        assert arguments[-1].startswith("job/")
        return
    assert arguments[:2] == ["apply", "-f"]
    import yaml  # type: ignore[import-untyped]

    job = yaml.safe_load(Path(arguments[2]).read_text())
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    spec = job["spec"]
    is_indexed = spec.get("completionMode") == "Indexed"
    for index in range(spec.get("completions", 1)):
        task = {"JOB_COMPLETION_INDEX": str(index)} if is_indexed else {}
        _pod(spec["template"]["spec"], task)


def _pod(spec: dict[str, Any], task: dict[str, str]) -> None:
    (container,) = spec["containers"]
    volumes = {volume["name"] for volume in spec["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts.keys() == volumes
    assert container["workingDir"] in mounts.values()
    assert container["resources"]["limits"].keys() == {"cpu", "memory"}
    assert spec["restartPolicy"] == "Never"
    _execute([*container["command"], *container.get("args", [])], task, container["workingDir"])


def ssh(arguments: list[str]) -> None:
    """Run the command of a host in another folder."""
    host, command = arguments
    assert re.fullmatch(r"node\d", host)
    _execute(["sh", "-c", command], cwd="/")


def _execute(command: list[str], task: dict[str, str] | None = None, cwd: str = ".") -> None:
    done = subprocess.run(
        command, env={**os.environ, **(task or {})}, cwd=cwd, check=False, stdout=sys.stderr
    )
    if done.returncode:
        sys.exit(done.returncode)


STAND_INS = {"sbatch": sbatch, "kubectl": kubectl, "ssh": ssh, "shardprep": shardprep}

if __name__ == "__main__":
    STAND_INS[sys.argv[1]](sys.argv[2:])
