"""Runs of the writer over a store in memory, where a schedule orders every request.

Each run has a thread that waits before each request to the store until the schedule lets it go on,
so that one run moves at a time and a schedule is a list of names. A run depends on its answers
alone: the same answers of the store bring it to the same place. So two schedules that give each run
the same answers and leave the same objects are in one state, and only one of them needs to be
continued.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from unittest import mock

from shardprep.dataset import remote_files
from shardprep.storage import objects
from shardprep.storage.objects import ListedObject
from shardprep.storage.store import ChangedError
from shardprep.storage.url import ObjectUrl
from shardprep.writer.workspace.files import BUILD_FILE

Objects = Mapping[str, bytes]

_MOST_STEPS = 1500
"""Steps of a schedule; more are a run that never ends."""
_POOLS = (
    "shardprep.writer.run",
    "shardprep.writer.finalize",
    "shardprep.writer.shard",
    "shardprep.writer.workspace.remote",
    "shardprep.writer.workspace.states",
    "shardprep.dataset.remote_files",
)


class Killed(BaseException):
    """The process of a run was killed: none of its further requests happens."""


class Pool:
    """Does the work of a thread pool in the calling thread, so that runs are repeatable."""

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments))
        except Exception as error:
            done.set_exception(error)
        return done

    def map(self, work: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
        return list(map(work, *arguments))

    def shutdown(self, **_: object) -> None: ...


class _Runner(threading.Thread):
    def __init__(self, name: str, work: Callable[[], object], world: World) -> None:
        super().__init__(name=name, daemon=True)
        self.work, self.world = work, world
        self.turn = threading.Semaphore(0)
        self.fate = ""
        self.is_over = False
        self.outcome: object = None
        """What the work returned, or the exception that ended it."""
        self.heard = b""
        """Hash of all requests and answers so far."""
        self.requests: list[str] = []
        self.num_tokens = 0
        self.has_looked = False
        """Whether the last request asked who owns the place."""

    def run(self) -> None:
        try:
            self.outcome = self.work()
        except BaseException as error:
            self.outcome = error.with_traceback(None)
        self.is_over = True
        self.world.moved.release()

    def wait_turn(self) -> None:
        """Wait before a request; raise the exception of the run's fate."""
        if self.fate == "kill":
            raise Killed
        self.world.moved.release()
        self.turn.acquire()
        if self.fate == "kill":
            raise Killed
        if self.fate == "interrupt":
            self.fate = ""
            self.hear("interrupt", None)
            raise KeyboardInterrupt

    def hear(self, request: str, answer: object) -> None:
        self.requests.append(request)
        self.heard = hashlib.blake2b(self.heard + repr((request, answer)).encode()).digest()


@dataclass
class World:
    """A store and the runs that use it, from their beginning up to some step."""

    objects: dict[str, bytes]
    moved: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    runners: dict[str, _Runner] = field(default_factory=dict)
    is_prompt: bool = False
    """Whether a change follows at once on the look at who owns the place."""
    num_steps: int = 0

    def start(self, runs: Mapping[str, Callable[[], object]]) -> None:
        """Bring all runs to their first request, one after the other."""
        for name, work in runs.items():
            self.runners[name] = _Runner(name, work, self)
            self.runners[name].start()
            self.moved.acquire()

    def step(self, name: str, fate: str = "") -> None:
        self.num_steps += 1
        runner = self.runners[name]
        runner.fate = fate
        runner.turn.release()
        self.moved.acquire()

    def end(self) -> None:
        for name in self.waiting():
            self.step(name, "kill")
        for runner in self.runners.values():
            runner.join()

    def waiting(self) -> list[str]:
        return [name for name, runner in self.runners.items() if not runner.is_over]

    def state(self) -> bytes:
        """Return a hash of the store and of the answers that the runs got."""
        digest = hashlib.blake2b()
        for key in sorted(self.objects):
            digest.update(f"{key} {etag_of(self.objects[key])};".encode())
        for runner in self.runners.values():
            digest.update(b"%b %d" % (runner.heard.ljust(64), runner.is_over))
        return digest.digest()

    def token(self, num_bytes: int) -> str:
        """Return another token for each run and each time, the same in every schedule."""
        runner = threading.current_thread()
        assert isinstance(runner, _Runner)
        runner.num_tokens += 1
        text = f"{runner.name} {runner.num_tokens}"
        return hashlib.sha256(text.encode()).hexdigest()[: 2 * num_bytes]

    def ask(self, request: str, act: Callable[[], Any], shown: Callable[[Any], object]) -> Any:
        """Do a request of the run whose thread this is, when its turn has come."""
        runner = threading.current_thread()
        if not isinstance(runner, _Runner):
            return act()
        is_sent_at_once = self.is_prompt and runner.has_looked and is_change(request)
        runner.has_looked = request.startswith("get ") and request.endswith(f"/{BUILD_FILE}")
        if not is_sent_at_once:
            runner.wait_turn()
        try:
            answer = act()
        except Exception as error:
            runner.hear(request, type(error).__name__)
            raise
        runner.hear(request, shown(answer))
        return answer


def is_change(request: str) -> bool:
    return not request.startswith(("get ", "head ", "list "))


def etag_of(data: bytes) -> str:
    """Return the ETag of an object: the hash of its bytes, as in S3 without multipart upload."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _bytes_mark(data: object) -> object:
    return etag_of(data) if isinstance(data, bytes) else data


class _Store:
    """The functions of `storage.objects` over the objects of a world."""

    def __init__(self, world: World) -> None:
        self.world = world

    def _ask(
        self, request: str, act: Callable[[], Any], shown: Callable[[Any], object] = _bytes_mark
    ) -> Any:
        return self.world.ask(request, act, shown)

    def get(self, url: ObjectUrl) -> bytes | None:
        return self._ask(f"get {url.key}", lambda: self.world.objects.get(url.key))  # type: ignore[no-any-return]

    def read_whole(self, url: ObjectUrl, etag: str, _: object = None) -> Iterator[bytes]:
        def act() -> bytes:
            data = self.world.objects.get(url.key)
            if data is None:
                raise objects._gone(url)
            if etag not in ("", etag_of(data)):
                raise ChangedError(str(url), "has changed since it was found", "open it again")
            return data

        yield self._ask(f"get {url.key}", act)

    def sha256(self, url: ObjectUrl) -> str:
        return hashlib.sha256(b"".join(self.read_whole(url, ""))).hexdigest()

    def put(self, url: ObjectUrl, content: Any) -> str:
        if isinstance(content, bytes):
            data = content
        else:
            content.seek(0)
            data = content.read()

        def act() -> str:
            self.world.objects[url.key] = data
            return etag_of(data)

        return self._ask(f"put {url.key}", act)  # type: ignore[no-any-return]

    def create(self, url: ObjectUrl, content: bytes) -> bool:
        def act() -> bool:
            return self.world.objects.setdefault(url.key, content) == content

        return self._ask(f"create {url.key}", act)  # type: ignore[no-any-return]

    def replace(self, url: ObjectUrl, old: bytes, new: bytes) -> bool:
        def act() -> bool:
            if self.world.objects.get(url.key) == old:
                self.world.objects[url.key] = new
            return self.world.objects.get(url.key) == new

        return self._ask(f"replace {url.key}", act)  # type: ignore[no-any-return]

    def copy(self, source: ObjectUrl, to: ObjectUrl, _num_bytes: int) -> bool:
        def act() -> bool:
            data = self.world.objects.get(source.key)
            if data is not None:
                self.world.objects[to.key] = data
            return data is not None

        return self._ask(f"copy {source.key} {to.key}", act)  # type: ignore[no-any-return]

    def head(self, url: ObjectUrl) -> ListedObject | None:
        def act() -> ListedObject | None:
            data = self.world.objects.get(url.key)
            return None if data is None else ListedObject("", len(data), etag_of(data))

        return self._ask(f"head {url.key}", act)  # type: ignore[no-any-return]

    def listing(self, url: ObjectUrl) -> list[ListedObject]:
        start = f"{url.key}/"

        def act() -> list[ListedObject]:
            return [
                ListedObject(key.removeprefix(start), len(data), etag_of(data))
                for key, data in sorted(self.world.objects.items())
                if key.startswith(start)
            ]

        return self._ask(f"list {url.key}", act)  # type: ignore[no-any-return]

    def delete(self, urls: Sequence[ObjectUrl]) -> None:
        step = (
            max(1, len(urls)) if self.world.is_prompt else 1
        )  # else a store may stop after any of them
        for start in range(0, len(urls), step):
            keys = [url.key for url in urls[start : start + step]]

            def act(keys: Sequence[str] = keys) -> None:
                for key in keys:
                    self.world.objects.pop(key, None)

            self._ask(f"delete {' '.join(keys)}", act)


@contextlib.contextmanager
def opened(
    there: Objects, runs: Mapping[str, Callable[[], object]], *, is_prompt: bool = False
) -> Iterator[World]:
    """Give a world whose runs are at their first request."""
    world = World(dict(there), is_prompt=is_prompt)
    store = _Store(world)
    memory = Path("/dev/shm")
    cache = Path(tempfile.mkdtemp(prefix="two-runs-", dir=memory if memory.is_dir() else None))
    with contextlib.ExitStack() as patched:
        patched.callback(shutil.rmtree, cache, ignore_errors=True)
        for name in (
            "get", "read_whole", "sha256", "put", "create", "replace", "copy", "head", "listing",
            "delete",
        ):  # fmt: skip
            patched.enter_context(mock.patch.object(objects, name, getattr(store, name)))
        for module in _POOLS:
            patched.enter_context(mock.patch(f"{module}.ThreadPoolExecutor", Pool))
        patched.enter_context(
            mock.patch.object(  # noqa: PT008 - a folder for each thread
                remote_files, "cache_root", lambda: cache / threading.current_thread().name
            )
        )
        patched.enter_context(mock.patch("secrets.token_hex", world.token))
        world.start(runs)
        patched.callback(world.end)
        yield world


Step = tuple[str, str]
"""Name of the run that moves, and what befalls it: "", "kill" or "interrupt"."""


@dataclass(frozen=True)
class Scenario:
    """Objects, runs that begin together, and what must be true for every order."""

    there: Objects
    runs: Mapping[str, Callable[[], object]]
    check: Callable[[World], None]
    """Raises AssertionError about a world whose runs are all over."""
    always: Callable[[Objects], None] = lambda _: None
    """Raises AssertionError about the objects of a moment."""
    is_prompt: bool = False

    def play(self, choose: Callable[[World], Step | None]) -> None:
        """Play one schedule; a choice of None leaves it."""
        taken: list[Step] = []
        with opened(self.there, self.runs, is_prompt=self.is_prompt) as world:
            try:
                while world.waiting():
                    step = choose(world)
                    if step is None:
                        return
                    taken.append(step)
                    world.step(*step)
                    assert world.num_steps < _MOST_STEPS, "a run never ends"
                    self.always(world.objects)
                self.check(world)
            except AssertionError as error:
                error.add_note(_told(world, taken))
                raise


def _told(world: World, taken: Sequence[Step]) -> str:
    """Return the requests of a schedule in their order, and how the runs ended."""
    lines, at = [], dict.fromkeys(world.runners, 0)
    for name, fate in taken:
        requests = world.runners[name].requests
        request = requests[at[name]] if at[name] < len(requests) else ""
        at[name] += 1
        lines.append(f"{name}: {fate or request}")
    ends = [f"{name} ended with {runner.outcome!r}" for name, runner in world.runners.items()]
    return "\n".join([*lines, *ends])


def all_orders(scenario: Scenario, fates: Sequence[Step] = (), most: int = 10**9) -> int:
    """Play all schedules, but one from each state on, `most` at most; return their number.

    One of the `fates` befalls its run at each step, once in a schedule.
    """
    seen: set[bytes] = set()
    todo: list[list[Step]] = [[]]
    num_played = 0
    while todo and num_played < most:
        num_played += 1
        todo += _orders_beside(todo.pop(), scenario, fates, seen)
    return num_played


def _orders_beside(
    prefix: list[Step], scenario: Scenario, fates: Sequence[Step], seen: set[bytes]
) -> list[list[Step]]:
    """Play a schedule that begins like this, up to a state that was `seen`; return its branches."""
    taken: list[Step] = []
    branches: list[list[Step]] = []

    def choose(world: World) -> Step | None:
        if len(taken) < len(prefix):
            step = prefix[len(taken)]
        else:
            is_fated = any(fate for _, fate in taken)
            state = world.state() + bytes([is_fated])
            if state in seen:
                return None
            seen.add(state)
            options = [(name, "") for name in world.waiting()]
            if not is_fated:
                options += [one for one in fates if one[0] in world.waiting()]
            step, *others = options
            branches.extend([*taken, other] for other in others)
        taken.append(step)
        return step

    scenario.play(choose)
    return branches


def one_change(scenario: Scenario, first: str, num_steps: int) -> None:
    """Play one schedule: a run pauses after some steps until the other one is over."""

    def choose(world: World) -> Step:
        is_first = world.num_steps < num_steps and first in world.waiting()
        others = [name for name in world.waiting() if name != first]
        return (first if is_first or not others else others[0]), ""

    scenario.play(choose)


def drawn_order(scenario: Scenario, seed: int, fate: str = "") -> None:
    """Play a random schedule. If a fate is given, the first run gets it at a random step."""
    draw = random.Random(seed)
    probability, at = draw.choice((0.03, 0.1, 0.3)), draw.randrange(5, 110)
    first, *_ = scenario.runs
    turn: list[str] = []
    fated: list[int] = []

    def choose(world: World) -> Step:
        waiting = world.waiting()
        if not turn or turn[-1] not in waiting or draw.random() < probability:
            turn.append(draw.choice(waiting))
        if fate and not fated and turn[-1] == first and world.num_steps >= at:
            fated.append(world.num_steps)
            return first, fate
        return turn[-1], ""

    scenario.play(choose)
