"""Execute the notebooks, and write their pages and `.ipynb` files: `make notebooks`.

`python -m tests.documents.notebooks NAME` does this for one notebook.
"""

import base64
import functools
import io
import itertools
import os
import random
import re
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import jupytext
import nbformat
from jupyter_client.provisioning import local_provisioner
from nbclient import NotebookClient
from PIL import Image

from shardprep.api.sample_archive import draw_shape
from tests.support.builders import code_for_sample, encoded, write_folder, zip_bytes
from tests.support.object_store import Bucket, ObjectStore, environment
from tests.support.paths import ROOT
from tests.support.processes import Program

NOTEBOOKS = ROOT / "notebooks"
PAGES = {
    "classify": "tutorial_classify",
    "detect": "tutorial_detect",
    "segment": "tutorial_segment",
    "kaggle": "notebook",
    "cluster": "tutorial_cluster",
}
"""Notebook → its page in docs/."""
FRAMEWORKS = {"cluster": "none", "detect": "torch"}
"""Notebook → what it imports first, except for TensorFlow."""
MOUNTED = """
from pathlib import Path
from shardprep.source.kaggle import download
download.MOUNT_ROOT = Path({!r})
"""
_TRACED_ONCE = """
import keras
from tests.documents.page_code import traced_once
keras.Model.fit = traced_once(keras.Model.fit)
"""
_KERNEL = """
import os, sys
os.setsid()  # a client that ends a kernel sends signals to its group
os.chdir(sys.argv[1])
from ipykernel.kernelapp import launch_new_instance
print("begun", flush=True)
launch_new_instance(sys.argv[2:])
"""
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "KERAS_BACKEND": "tensorflow"}
_PAIR = re.compile(r"(?:^|; )([a-z ]+): ")
_WIDTH = 110


class _Kernel(Program):
    """A new kernel, forked from a process that has imported a framework; its client's `Popen`."""

    stdin = stdout = stderr = None

    def __init__(self, name: str, command: list[str], **options: Any) -> None:
        framework = FRAMEWORKS.get(name, "tensorflow")
        more = {"framework": framework, **options["env"]}
        super().__init__(_KERNEL, options["cwd"], *command[3:], **more)
        self.wait_for("begun")

    def poll(self) -> int | None:
        return self.code

    send_signal = Program.signal

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    terminate = kill


def mount(folder: Path) -> Path:
    """Write a small dogs-vs-cats as Kaggle mounts it, read only: cats are circles."""
    shapes = {"cat": "circle", "dog": "triangle"}
    train = {f"train/{name}.{i}.jpg": shape for i in range(60) for name, shape in shapes.items()}
    test = {f"test1/{i}.jpg": random.Random(i).choice([*shapes.values()]) for i in range(1, 11)}
    members = {
        "train.zip": zip_bytes(_drawn(train)),
        "test1.zip": zip_bytes(_drawn(test)),
        "sampleSubmission.csv": "\n".join(["id,label", *(f"{i},0" for i in range(1, 11))]).encode(),
    }
    source = write_folder(folder / "competitions" / "dogs-vs-cats", members)
    for path in (*source.iterdir(), source, source.parent, folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    return folder


def _drawn(shapes: Mapping[str, str]) -> dict[str, bytes]:
    return {name: encoded(draw_shape(shapes[name], random.Random(name))) for name in shapes}


def executed(
    name: str, folder: Path, variables: Mapping[str, str] | None = None, before: str = ""
) -> Any:
    """Return a notebook with its outputs. `before` is a cell that is not kept."""
    notebook: Any = jupytext.read(NOTEBOOKS / f"{name}.py")
    if name not in FRAMEWORKS:
        before += _TRACED_ONCE
    if before:
        notebook.cells.insert(0, nbformat.v4.new_code_cell(before))
    client = NotebookClient(
        notebook,
        timeout=250,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        shutdown_kernel="immediate",
    )
    paths = {"PYTHONPATH": str(ROOT), "SHARDPREP_CACHE": str(folder / ".cache")}
    environment = {**os.environ, **_QUIET, **paths, **(variables or {})}
    begin = functools.partial(_Kernel, name)
    with mock.patch.object(local_provisioner, "launch_kernel", begin):
        client.execute(env=environment)
    if before:
        del notebook.cells[0]
    return notebook


def page_text(name: str, notebook: Any) -> str:
    """Return the page of an executed notebook. Its pictures are in `pictures`."""
    parts, numbers, heading = [], itertools.count(1), ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source.replace("../docs/", ""))
            heading = re.findall(r"^#+ (.*)", f"# {heading}\n{cell.source}", re.MULTILINE)[-1]
            continue
        parts.append(f"```python\n{cell.source}\n```")
        printed = "".join(one.text for one in cell.outputs if one.get("name") == "stdout")
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
        for data in _shown(cell):
            if "image/png" in data:
                link = f"tutorials/{name}_{next(numbers)}.png"
                parts.append(f"![{heading}: the output]({link})")
            else:
                parts.append(_table(data["text/plain"]))
    source = f"`make notebooks` runs `notebooks/{name}.py` and writes this page."
    return "\n\n".join([*parts, source]) + "\n"


def pictures(name: str, notebook: Any) -> dict[str, bytes]:
    """Return the pictures of an executed notebook, with few colours."""
    found = [data["image/png"] for cell in notebook.cells for data in _shown(cell)
             if "image/png" in data]  # fmt: skip
    small = {}
    for number, text in enumerate(found, 1):
        picture = Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB")
        picture.thumbnail((1000, 1000))
        small[f"{name}_{number}.png"] = encoded(picture.quantize(64), "PNG", optimize=True)
    return small


def _shown(cell: Any) -> Iterator[Any]:
    """Yield the results of a cell, but not the bars that `progress=True` shows."""
    if cell.cell_type == "code":
        yield from (one.data for one in cell.outputs if one.output_type == "execute_result")


def _table(text: str) -> str:
    """Return the one line of a result as a table, as a notebook shows it."""
    name, _, rest = text.strip("<>").partition(" ")
    _, *pairs = _PAIR.split(rest)
    if not pairs:
        return f"```text\n{text}\n```"
    rows = [f"| {key} | {value} |" for key, value in zip(pairs[::2], pairs[1::2], strict=True)]
    return "\n".join([f"| {name} | value |", "|---|---|", *rows])


def steady(text: str) -> str:
    """Replace what differs between machines: times, rates, scores, folders."""
    text = re.sub(r"\d[\d.,]* (s|MB|kB|images/s)\b", r"# \1", text)
    text = re.sub(r"(loss|accuracy|IoU|right in|to) \d\.\d+", r"\1 #", text)
    return re.sub(r"predicted: .*", "predicted: #", text)


def run(name: str, folder: Path) -> Any:
    """Return a notebook, executed in a new kernel and folder, with its mount or store."""
    here = folder / name
    here.mkdir()
    if name == "kaggle":
        given = mount(folder / "input")
        notebook = executed(name, here, before=MOUNTED.format(str(given)))
        return _replaced(notebook, str(given), "/kaggle/input")
    before = code_for_sample(folder / "drawn")
    if name == "cluster":
        with ObjectStore() as store:
            variables = {**environment(store.endpoint), "BUCKET": Bucket(store, "my-bucket").url}
            return executed(name, here, variables, before)
    return executed(name, here, before=before)


def _replaced(notebook: Any, before: str, after: str) -> Any:
    return nbformat.reads(nbformat.writes(notebook).replace(before, after), nbformat.NO_CONVERT)


def main(arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments or PAGES:
            notebook = run(name, Path(folder))
            nbformat.write(notebook, NOTEBOOKS / f"{name}.ipynb")
            (ROOT / "docs" / f"{PAGES[name]}.md").write_text(page_text(name, notebook))
            write_folder(ROOT / "docs" / "tutorials", pictures(name, notebook))


if __name__ == "__main__":
    main(sys.argv[1:])
