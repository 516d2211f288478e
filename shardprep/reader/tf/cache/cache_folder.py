"""The folder of all caches: the names of what lies in it, its lock, its removal.

TensorFlow, which fills it, is not imported here; see `tf.folder_cache`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from shardprep.dataset.folder import INDEX_DIR, index_name
from shardprep.dataset.manifest import Shard
from shardprep.errors import BusyError, DatasetError
from shardprep.storage.lock import take

_CACHE = re.compile(r"[0-9a-f]{16}")
"""The name of a folder of twins: a hash of the options of decoding."""
_FILE = re.compile(r".+\.[0-9a-f]{16}(\.idx)?(\.tmp)?")
"""The name of a twin or its index, also of one that is being written."""
_LOCK = "lock"


def twin_name(shard: Shard) -> str:
    """Return the name of the decoded twin of a shard."""
    return f"{shard.name}.{shard.sha256[:16]}"


@contextlib.contextmanager
def alone(folder: Path, *, waits: bool = True) -> Iterator[None]:
    """Wait until no other process holds a folder of twins, then hold it, at most till one's end.

    BusyError where it is held and this does not wait.
    """
    with (folder / _LOCK).open("wb") as file:
        try:
            is_held = take(file.fileno(), waits=waits)
        except BlockingIOError:
            hint = "try again when it has ended"
            raise BusyError(str(folder), "another process fills this cache", hint) from None
        if not is_held:
            hint = "cache in a folder of another disk, or in memory"
            raise DatasetError(str(folder), "cannot be locked: the disk or system has none", hint)
        yield


def forget(folder: Path, shards: Iterable[Shard]) -> None:
    """Remove the twins of some shards from a folder that is held, and the folder with the last."""
    for shard in shards:
        (folder / twin_name(shard)).unlink(missing_ok=True)
        (folder / index_name(twin_name(shard))).unlink(missing_ok=True)
    if not any(_FILE.fullmatch(path.name) for path in folder.iterdir()):
        _remove_empty(folder)


def clear(place: Path) -> int:
    """Remove all twins below a folder, and nothing else; return the bytes they had.

    Raises:
        DatasetError: there is no such folder, or a file cannot be removed.
        BusyError: another process is filling one.

    """
    if not place.is_dir():
        raise DatasetError(str(place), "no such folder", "give the one that cache= was")
    num_bytes = 0
    for folder in place.iterdir():
        if _CACHE.fullmatch(folder.name) and (folder / _LOCK).is_file():
            try:
                num_bytes += _clear(folder)
            except OSError as error:
                what = f"cannot be removed ({error.strerror})"
                raise DatasetError(str(folder), what, "remove it by hand") from error
    return num_bytes


def _clear(folder: Path) -> int:
    num_bytes = 0
    with alone(folder, waits=False):
        for path in (*folder.iterdir(), *(folder / INDEX_DIR).glob("*")):
            if _FILE.fullmatch(path.name) and path.is_file():
                num_bytes += path.lstat().st_size
                path.unlink()
        _remove_empty(folder)
    return num_bytes


def _remove_empty(folder: Path) -> None:
    (folder / _LOCK).unlink()
    with contextlib.suppress(OSError):  # something else lies there
        (folder / INDEX_DIR).rmdir()
        folder.rmdir()
