"""Files that readers keep open stay within half of what the system allows the process."""

import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from shardprep.storage import regular_file
from shardprep.storage.regular_file import OpenFiles, most_open, read_at, regular_descriptor
from tests.support.builders import animals, build, write, zip_bytes
from tests.support.processes import Program

NUM_SHARDS = 72
LIMIT = 64


def num_open() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


@contextmanager
def limited(number: int) -> Iterator[None]:
    """Limit the file descriptors of this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    for number in range(1000):
        (tmp_path / str(number)).write_bytes(bytes([number % 256]))
    return tmp_path


def reader_of(folder: Path) -> OpenFiles:
    return OpenFiles(lambda name: regular_descriptor(folder / name))


def test_readers_share_one_limit_and_the_least_recently_used_file_is_closed(folder: Path) -> None:
    base = num_open()
    with limited(3 * base + 9):
        first, second = reader_of(folder), reader_of(folder)
        most = most_open()
        assert most == (3 * base + 9) // 2
        for number in range(most + 5):
            (first, second)[number % 2].get(str(number))
            first.get("0")
        assert num_open() <= base + most
        assert first.find("0") is not None
        assert second.find("1") is None
        last = most + 4
        assert (first, second)[last % 2].find(str(last)) is not None
        del first, second
        assert num_open() <= base  # files of readers before this test may have been let go


def test_a_file_is_not_closed_while_a_thread_reads_it(folder: Path) -> None:
    with limited(2 * num_open() + 40):
        files = reader_of(folder)
        wrong: list[int] = []

        def read(start: int) -> None:
            for number in range(2000):
                name = (start + 7 * number) % 200
                file = files.get(str(name))
                if read_at(file.number, 1, 0) != bytes([name]):
                    wrong.append(name)

        threads = [threading.Thread(target=partial(read, 50 * i)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_a_child_forked_while_files_are_opened_can_open_files(folder: Path) -> None:
    files, is_held, is_over = reader_of(folder), threading.Event(), threading.Event()

    def hold() -> None:
        with regular_file._lock:
            is_held.set()
            is_over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)  # it would wait for the thread that it does not have
        os._exit(0 if files.get("5").num_bytes == 1 else 1)
    is_over.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


USES = {
    "TensorFlow": "print(sum(len(images) for images, _ in reader.load(folder, batch_size=9)))",
    "everything else": """
two = [reader.Dataset(folder, as_supervised=False) for _ in range(2)]
print(sum(item['image'].shape[0] for _ in range(2) for item in two[0]))
print(sum(len(images) for one in two for images, _ in one.batches(7, shuffle=True)))
print(sum(len(images) for images, _ in two[0].batches(7, weights='balanced', epochs=1)))
del two
print(shardprep.report(folder, output=out + '.html').num_measured)
assert not shardprep.verify(folder, decode=True).problems
shardprep.export(folder, to='webdataset', out=out)
shardprep.repack(folder, out + '2', shards=68)
with shardprep.view(folder) as viewer:
    opener = build_opener(HTTPCookieProcessor())
    opener.open(viewer.url).read()
    base = viewer.url.partition('?')[0].rstrip('/')
    for number in range(viewer.num_records):
        opener.open(f'{base}/tile/{number}').read()
links = [f'/proc/self/fd/{number}' for number in os.listdir('/proc/self/fd')]
held = [os.readlink(link) for link in links if os.path.exists(link)]
assert not [name for name in held if name.startswith(folder)], held""",
}
"""Programs that read the dataset `folder`; TensorFlow needs a process of its own."""
HEAD = f"""
import os, resource, sys
from urllib.request import HTTPCookieProcessor, build_opener
resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {LIMIT}))
import shardprep
from shardprep import reader
folder, out = sys.argv[1:]
"""


@pytest.fixture(name="many", scope="module")
def _many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of more shards than a process may open."""
    folder = tmp_path_factory.mktemp("many")
    source = write(folder / "pets.zip", zip_bytes(animals(NUM_SHARDS)))
    made = build(
        source, folder / "out", shards=NUM_SHARDS, size="8x8", split="train=1", format="raw"
    )
    return made.path


@pytest.mark.parametrize("use", USES)
def test_more_shards_than_a_process_may_open_can_be_read(
    use: str, many: Path, tmp_path: Path
) -> None:
    arguments = many, tmp_path / "out"
    framework = "tensorflow" if use == "TensorFlow" else "none"
    cache = str(tmp_path / "cache")
    done = Program(HEAD + USES[use], *arguments, framework=framework, SHARDPREP_CACHE=cache).wait()
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_reader_that_goes_at_the_end_of_the_program_needs_no_module(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python has set the globals of modules to None by then."""
    files = reader_of(folder)
    files.get("0")
    monkeypatch.setattr(regular_file, "_lock", None)
    files.__del__(lambda: True)
    with pytest.raises(TypeError, match="context manager"):
        files.__del__(lambda: False)
