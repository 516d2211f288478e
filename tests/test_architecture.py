"""Which module may import which, and what may not be imported at all."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "shardprep"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}

LAYERS = [
    ["errors", "stages", "engine.limits", "engine.cores", "grammar", "storage.regular_file"],
    ["engine.server", "json_document"],
    ["verify.problem", "verify.layout"],
    ["storage.url", "storage.cache", "part"],
    ["engine.cluster"],
    ["storage.faults", "storage.patience", "storage.apart"],
    ["storage.objects"],
    ["durable", "tfrecord", "example", "resample"],
    ["storage.folder"],
    ["storage.staging"],
    ["reader.augment.batch", "reader.arguments", "reader.extras"],
    ["reader.augment.color", "reader.augment.geometry", "reader.augment.mix"],
    ["reader.augment.compose"],
    ["reader.augment.layer"],
    ["reader.augment"],
    ["source.remote"],
    ["source.prefix"],
    [
        "source.sniff",
        "source.names",
        "source.folder",
        "catalog.searcher",
        "catalog.splits",
        "source.extent",
    ],
    ["catalog.patterns"],
    ["source.kaggle.ref", "source.kaggle.credentials", "source.kaggle.watcher"],
    ["source.kaggle.client", "source.kaggle.faults"],
    ["schema", "source.streams", "catalog.table", "catalog.targets", "source.sevenzip"],
    ["source.limits", "source.directory"],
    [
        "options",
        "report.bar",
        "report.terminal",
        "source.kaggle.attempt",
        "source.kaggle.damage",
        "source.kaggle.shelf",
    ],
    ["colour", "truncation", "nonimage", "jpeg", "spec"],
    ["decode"],
    ["recipe_problems", "recipe_file"],
    [
        "recipe",
        "image",
        "manifest",
        "source.containers",
        "source.unpack",
        "catalog.lookup",
        "verify.pixels",
    ],
    [
        "source.archive",
        "catalog.labels",
        "source.sample",
        "tfds",
        "dataset",
        "source.kaggle.download",
    ],
    ["catalog.select", "catalog.dedup", "catalog.columns", "catalog.groups", "catalog.documents"],
    ["inventory"],
    ["draft"],
    ["catalog.catalog", "fingerprint", "remote"],
    ["stratify", "chunk", "reader.slices", "reader.order", "reader.index", "reader.memory"],
    ["reader.calls", "reader.remote", "reader.shuffled"],
    ["reader.config", "reader.held", "reader.fetched", "reader.wanted"],
    ["reader.decode", "reader.records", "reader.opened", "reader.cache"],
    ["reader.good", "reader.batches", "reader.advice"],
    ["reader.kept"],
    ["plan"],
    ["items", "prepare", "engine.local"],
    ["reader.arrays.layout", "reader.arrays.records", "reader.arrays.epochs"],
    ["reader.arrays.values"],
    ["reader.arrays.examples"],
    ["reader.arrays.filling"],
    ["reader.arrays.batches", "reader.filled"],
    ["reader.loaded", "reader.diagnosis"],
    ["shard", "tally", "report.facts", "reader.pipeline", "reader.arrays.dataset", "verify.rows"],
    ["bench.result", "reader.probe", "reader.stall"],
    ["engine.commits"],
    ["outline", "engine.job"],
    ["engine.preflight"],
    ["engine.ray"],
    ["remote_place"],
    ["finish", "place", "reader.resume", "reader.strategy", "rejected"],
    ["begin", "fetch", "remains", "unfinished"],
    ["complete"],
    ["reader", "verify.examples", "verify.documents"],
    ["reader.ways", "bench.run"],
    ["reader.timeline"],
    ["build", "verify.search", "verify.table"],
    ["verify.shard", "verify.folder"],
    ["verify.workers"],
    ["verify.dataset"],
    ["repair", "survey", "report.summary", "report.progress", "report.transfer"],
    ["report.survey", "report.verification", "report.profile", "report.benchmark", "report.plot"],
    ["arguments", "commands.result"],
    ["commands.terminal"],
    [
        "commands.bench",
        "commands.build",
        "commands.download",
        "commands.fetch",
        "commands.finalize",
        "commands.init",
        "commands.inspect",
        "commands.sample",
        "commands.verify",
    ],
    ["cli"],
    ["__main__"],
]
"""A module imports only from layers above its own, in this table and in the code."""


def imports(path: Path, *, typing: bool = False) -> set[str]:
    """Return the modules of ours that a file imports; those for types alone only if asked."""
    found = set()
    tree = ast.parse(path.read_text())
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not typing:
            skipped.update(child for part in node.body for child in ast.walk(part))
    for node in ast.walk(tree):
        if node in skipped or not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        if node.module.split(".")[0] == "shardprep":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
    return {name.removeprefix("shardprep").removeprefix(".") for name in found}


def test_every_module_has_its_layer() -> None:
    packages = {
        "", "bench", "catalog", "commands", "engine", "reader.arrays", "report", "source",
        "source.kaggle", "storage", "verify",
    }  # fmt: skip
    named = {name for layer in LAYERS for name in layer}
    assert {m.removeprefix("shardprep").removeprefix(".") for m in MODULES} - packages == named


@pytest.mark.parametrize("level", range(len(LAYERS)))
def test_imports_point_one_way(level: int) -> None:
    above = {name for layer in LAYERS[:level] for name in layer} | {""}
    for name in LAYERS[level]:
        wrong = imports(MODULES[f"shardprep.{name}"]) - above
        assert not wrong, f"{name} imports {wrong}"


def loaded(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return {module.split(".")[0] for module in out.stdout.split()}


def test_the_command_line_starts_without_heavy_modules() -> None:
    heavy = {"tensorflow", "numpy", "pyarrow", "PIL", "kaggle", "simplejpeg", "pydantic"}
    assert not loaded("import shardprep.cli") & heavy


def test_workers_never_import_tensorflow_or_protobuf() -> None:
    code = "import shardprep.chunk, shardprep.engine.local, shardprep.build, shardprep.report.facts"
    assert not loaded(code) & {"tensorflow", "google.protobuf", "keras", "kaggle"}


def test_importing_the_reader_costs_nothing() -> None:
    heavy = {"tensorflow", "numpy", "pyarrow", "PIL", "simplejpeg", "pydantic"}
    assert not loaded("from shardprep import reader") & heavy


def test_only_the_reader_imports_tensorflow() -> None:
    users = {
        name
        for name, path in MODULES.items()
        if "import tensorflow" in path.read_text() or "from tensorflow" in path.read_text()
    }
    assert users
    assert all(name.startswith("shardprep.reader.") for name in users)


def test_help_answers_in_under_0_3_seconds() -> None:
    """Seconds of its processor: those of the wall would be those of the tests beside it.

    They too grow where another test shares the core, so the least of several counts.
    """
    times: list[float] = []
    while len(times) < 15 and min(times, default=1.0) >= 0.3:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "shardprep", "--help"], check=True, stdout=-3)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.3


def test_there_is_no_room_for_odds_and_ends() -> None:
    assert not [name for name in MODULES if name.rpartition(".")[2] in {"utils", "helpers", "misc"}]
