"""Fixtures of several test modules."""

from __future__ import annotations

import functools
import gc
import logging
import os
import pickle
import re
import shutil
import signal
import sys
import tempfile
import uuid
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import pytest

from shardprep.api import sample_archive
from shardprep.api.sample_archive import write_sample
from shardprep.errors import name_options_as_flags
from shardprep.processes import ForkedContext
from shardprep.storage import store
from shardprep.writer.engine import PRELOADED
from tests.source.ordeal import Ordeal, made
from tests.support import builders, costs
from tests.support.browser import MISSING, need_browser
from tests.support.builders import build, sample
from tests.support.examples import load_profile
from tests.support.object_store import Bucket, ObjectStore, Proxy, environment
from tests.support.paths import shared_folder
from tests.support.processes import share_servers, skip_fsync, use_servers
from tests.support.rewritten import rewrite_part

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from xdist.workermanage import WorkerController

_DESCRIPTORS = Path("/proc/self/fd")
_MOST_DESCRIPTORS = 512
"""Maximum number of open file descriptors of a test process."""
_MEMORY, _LEAST_FREE_BYTES = Path("/dev/shm"), 8 << 30
"""A run writes less than a gigabyte, and a disk would cost it a tenth of its time."""
_QUICK_CASES = 2
_ABSENT: Any = None
"""Keras imports scikit-learn if it can, which takes more than a second and no test needs of it."""
_OF_WORKERS = [
    *PRELOADED, "shardprep.reader.arrays.worker", "pytest", "tests.support.builders",
    "tests.writer.test_engine", "tests.writer.test_owned_shards",
]  # fmt: skip


def _use_memory() -> None:
    """Let temporary files be in memory where there is plenty of it."""
    is_free = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _LEAST_FREE_BYTES
    if is_free and "TMPDIR" not in os.environ:
        os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick", action="store_true", help="each kind of proof, at a lower density (make check)"
    )


def pytest_configure(config: pytest.Config) -> None:
    _use_memory()
    name_options_as_flags()  # as nearly all tests expect; those of the Python functions undo it
    load_profile(quick=config.getoption("--quick"))
    skip_fsync()
    # A suite in the background may be started with it ignored, and so would all that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "programs" in (given := getattr(config, "workerinput", {})):
        use_servers(given["programs"])
        if given["is_whole"]:
            number = int(given["workerid"].removeprefix("gw"))
            rewrite_part(config, number, given["workercount"])
    else:
        config.pluginmanager.register(costs.Ledger())
    config.pluginmanager.register(costs.Meter())
    _preload_workers()


def _preload_workers() -> None:
    """Let the server of workers import what those of builds and of readers need, and of tests.

    A server serves all tests of a process, whichever of them starts it.
    """
    set_preload = ForkedContext.set_forkserver_preload

    def set_all(context: Any, modules: list[str]) -> None:
        set_preload(context, [*dict.fromkeys([*modules, *_OF_WORKERS])])

    ForkedContext.set_forkserver_preload = set_all  # type: ignore[assignment, method-assign]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Give a test process what it shares with the others.

    That is the address of the process that starts programs, and the tests to begin with: all have
    to have one order.
    """
    node.workerinput["programs"] = share_servers()
    node.workerinput["longest"] = _longest()
    node.workerinput["is_whole"] = node.config.args_source is pytest.Config.ArgsSource.TESTPATHS


@functools.cache
def _longest() -> list[str]:
    return costs.longest(costs.kept())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Pause the garbage collector, and freeze what is imported, a million objects of TensorFlow."""
    sys.modules.setdefault("sklearn", _ABSENT)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        if sys.modules["sklearn"] is _ABSENT:
            del sys.modules["sklearn"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest tests; with `--quick`, keep a few cases of those not thorough."""
    costs.begin_with(items, getattr(config, "workerinput", {}).get("longest", ()))
    if not config.getoption("--quick"):
        return
    cases = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("thorough") is None:
            cases[item.nodeid.partition("[")[0]].append(item)
    kept = {id(item) for own in cases.values() for item in _spread(own)}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = [item for item in items if id(item) in kept]


def _spread(cases: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return up to `_QUICK_CASES` cases, evenly spread."""
    step = max(1.0, (len(cases) - 1) / (_QUICK_CASES - 1))
    return [cases[round(i * step)] for i in range(min(len(cases), _QUICK_CASES))]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    number = sum(MISSING in str(one.longrepr) for one in skipped)
    if number:
        terminalreporter.write_line(f"{number} tests in a browser were skipped: {MISSING}")


@pytest.fixture(autouse=True)
def _no_logging() -> None:
    """Undo the logging set-up of a command in an earlier test."""
    log = logging.getLogger("shardprep")
    log.handlers.clear()
    log.setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def _few_open_files() -> Iterator[None]:
    """Fail a test that leaves many files open."""
    yield
    if _DESCRIPTORS.is_dir():
        open_files = [*_DESCRIPTORS.iterdir()]
        assert len(open_files) < _MOST_DESCRIPTORS, _shown(open_files)


def _shown(links: Sequence[Path]) -> str:
    targets = [os.path.realpath(link) for link in links]
    kinds = Counter(re.sub(r"\d+", "N", target) for target in targets)
    return ", ".join(f"{number} {kind}" for kind, number in kinds.most_common(20))


@pytest.fixture(autouse=True, scope="session")
def _one_sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Draw the sample once for all test processes."""

    @functools.cache
    def drawn() -> dict[str, bytes]:
        return builders.tree(shared_folder(tmp_path_factory, "sample", write_sample))

    with mock.patch.object(builders, "drawn_sample", drawn):
        yield


@pytest.fixture(name="drawn")
def _drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `shardprep sample` write the drawn sample, because drawing takes seconds."""
    archive = builders.drawn_sample()["shapes.zip"]
    monkeypatch.setattr(sample_archive, "_archive", lambda: archive)


@pytest.fixture(name="browser", scope="session")
def _browser() -> Iterator[Browser]:
    program = need_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(name="shapes", scope="session")
def _shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the sample's archive and its dataset, `tfrecords/shapes`; read only."""

    def make(folder: Path) -> None:
        out = folder / "tfrecords"
        build(sample(folder), out, labels="prefix", shards=4, name="shapes", size="64x64")

    return shared_folder(tmp_path_factory, "shapes", make)


@pytest.fixture(name="place")
def _place(shapes: Path, tmp_path: Path) -> Path:
    """Return a folder with `tfrecords/shapes`, the dataset of the documents."""
    (tmp_path / "tfrecords").symlink_to(shapes / "tfrecords")
    return tmp_path


@pytest.fixture(name="ordeal", scope="session")
def _ordeal(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Ordeal:
    """Return the results of the hostile archives that the suite makes."""
    quick = pytestconfig.getoption("--quick")

    def make(folder: Path) -> None:
        (folder / "ordeal").write_bytes(pickle.dumps(made(quick=quick)))

    found = shared_folder(tmp_path_factory, "ordeal", make) / "ordeal"
    return cast("Ordeal", pickle.loads(found.read_bytes()))


@pytest.fixture(name="object_store", scope="session")
def _object_store() -> Iterator[ObjectStore]:
    pytest.importorskip("obstore")
    pytest.importorskip("moto.server")
    with ObjectStore() as store:
        yield store


@pytest.fixture(name="bucket")
def _bucket(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bucket:
    """A new bucket and an empty cache. The environment has its address."""
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path / "cache"))
    for name, value in environment(object_store.endpoint).items():
        monkeypatch.setenv(name, value)
    return Bucket(object_store, f"b-{uuid.uuid4().hex[:20]}")


@pytest.fixture(name="proxy")
def _proxy(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy in front of the store. The environment has its address, and retries are fast."""
    monkeypatch.setattr(store, "_PAUSES_S", tuple(pause / 10 for pause in store._PAUSES_S))
    monkeypatch.setattr(store, "_FIRST_PAUSE_S", store._FIRST_PAUSE_S / 10)
    with Proxy(bucket.store) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy
