"""A workspace in object storage, where nothing can be renamed or locked.

Without a finished dataset, shards and documents are written under their final names, and the
manifest, which is written last, makes them a dataset. With a finished dataset, they are written to
a draft folder in it. One write of the manifest puts the draft in force (`dataset.remote_files`).

Any number of runs of one build may work here at the same time, and each may end at any request. A
store can write an object on a condition, but not remove one. Five rules make this safe:

1. `BUILD_FILE` is created only if none exists, or replaced only if it is unchanged since it was
   read. A random token makes its bytes unique, so exactly one run has begun the build.
2. Equal runs write equal bytes, so it does not matter which run wrote an object.
3. The draft is named by the token. So it has no files of an earlier draft, and a manifest in it
   means that all its files are complete.
4. A run removes only what no equal run can need: files that are not part of the dataset, a draft
   when all its files have their final names, and the state of the build, `BUILD_FILE` last.
5. A run that misses state or a draft looks for the manifest of the run that removed them. If an
   equal dataset was published since this run began, this dataset is the result; otherwise the run
   begins again (`states.shared`).

A run checks `BUILD_FILE` before each write under a final name, and stops if it was replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from shardprep.dataset.folder import INCOMPLETE_SUFFIX, SCHEMA_FILE, belongs, inventory, is_own
from shardprep.dataset.manifest import MANIFEST_FILE, Fingerprint, Manifest, parse_manifest
from shardprep.dataset.remote_files import (
    DRAFT_PREFIX,
    RemoteFiles,
    draft_in_force,
    in_force,
    under,
)
from shardprep.dataset.schema import parse_schema
from shardprep.errors import BuildError, BusyError, OptionName
from shardprep.storage import objects
from shardprep.storage.folder import Folder, ObjectFolder
from shardprep.storage.lock import locked
from shardprep.storage.objects import ListedObject
from shardprep.storage.store import ChangedError
from shardprep.storage.url import ObjectUrl
from shardprep.writer.workspace.files import (
    BUILD_FILE,
    Build,
    disturbed,
    new_build,
    read_build,
    taken_over,
)

Found = TypeVar("Found")

_NUM_THREADS = 16
_MOST_LOOKS = 4


@dataclass(frozen=True, slots=True)
class ObjectWorkspace:
    """A workspace in object storage. `LocalWorkspace` documents the methods."""

    url: ObjectUrl

    is_exclusive = False

    @property
    def location(self) -> str:
        return str(self.url)

    @property
    def state(self) -> ObjectFolder:
        return ObjectFolder(self.url._replace(key=self.url.key + INCOMPLETE_SUFFIX))

    def output(self, build: Build, old: bytes | None) -> Folder:
        if old is None:
            return self._root
        return ObjectFolder(self.url / _draft_of(build), below=self.url)

    @property
    def _root(self) -> ObjectFolder:
        return ObjectFolder(self.url)

    def stands(self) -> bool:
        return objects.head(self.url / MANIFEST_FILE) is not None

    def published(self) -> bytes | None:
        return self._root.read(MANIFEST_FILE)

    def finished(self) -> Manifest | None:
        return self._manifest(MANIFEST_FILE)

    def _manifest(self, name: str) -> Manifest | None:
        data = self._root.read(name)
        return None if data is None else parse_manifest(data, str(self.url / name))

    def files(self) -> Mapping[str, ListedObject]:
        return self._looked(lambda found: in_force(self.url, found))

    def _looked(self, look: Callable[[dict[str, ListedObject]], Found]) -> Found:
        """Return `look(objects)`; list the objects again if another run has moved some of them."""
        for num_left in reversed(range(_MOST_LOOKS)):
            try:
                return look(self._found())
            except ChangedError:
                if not num_left:
                    raise
        raise AssertionError

    def _found(self) -> dict[str, ListedObject]:
        return {facts.name: facts for facts in objects.listing(self.url)}

    def sealed(self) -> Manifest | None:
        begun = read_build(self.state)
        return None if begun is None else self._manifest(f"{_draft_of(begun)}/{MANIFEST_FILE}")

    def held(self, *, alone: bool) -> contextlib.AbstractContextManager[bool]:
        del alone
        return contextlib.nullcontext(enter_result=False)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        start = f"shardprep-{hashlib.sha256(self.location.encode()).hexdigest()[:16]}-"
        for left in Path(tempfile.gettempdir()).glob(f"{start}*"):
            _sweep(left)
        with contextlib.ExitStack() as ending:
            yield _new_scratch(start, ending)

    def start(self, fingerprint: Fingerprint, *, over: bytes | None) -> bool:
        state, build = self.state, new_build(fingerprint)
        left = state.names()
        place = state.url / BUILD_FILE
        if not (
            objects.create(place, build) if over is None else objects.replace(place, over, build)
        ):
            return False
        state.remove([name for name in left if name != BUILD_FILE])
        return True

    def discard(self) -> None:
        begun = read_build(self.state)
        if begun is None:
            return
        self._forget(begun.fingerprint)
        # Without its `BUILD_FILE`, a draft that is sealed later is not published. A draft that is
        # sealed already may come into force at any moment.
        draft = _draft_of(begun)
        files = under(draft, self._found())
        if MANIFEST_FILE not in files:
            self._root.remove([f"{draft}/{name}" for name in files])

    def adopt(self, name: str) -> None:
        """Do nothing: the file stays in place, and the draft is put in force over it."""

    def remove_foreign(self, manifest: Manifest, output: Folder) -> None:
        if output == self._root:  # else `publish` removes them when the draft is in force
            self._remove_others(manifest, self._found())

    def seal(self, manifest: Manifest, output: Folder) -> None:
        data = manifest.dumps().encode()
        if output != self._root:
            output.write(MANIFEST_FILE, data)
        elif not self._root.create(MANIFEST_FILE, data):
            raise self._overtaken()

    def is_settled(self, manifest: Manifest) -> bool:
        begun = read_build(self.state)
        if begun is not None and begun.fingerprint != manifest.fingerprint:
            return True  # another build is running and will remove such files

        def is_settled(found: Mapping[str, ListedObject]) -> bool:
            drafts = {name.partition("/")[0] for name in found if name.startswith(DRAFT_PREFIX)}
            if begun is None:
                return not drafts and not self.state.names()
            # The draft is not in force: the same build has been begun again.
            return _draft_of(begun) in drafts and draft_in_force(self.url, found) is None

        return self._looked(is_settled)

    def publish(self, manifest: Manifest, old: bytes | None) -> None:
        data, there = manifest.dumps().encode(), self.published()
        if there != data:
            sealed, new = self.sealed(), self.url / MANIFEST_FILE
            if sealed is None or sealed.dumps().encode() != data or self._owner(manifest) is None:
                raise disturbed(self.state)
            is_done = objects.create(new, data) if old is None else objects.replace(new, old, data)
            if not is_done:
                raise self._overtaken()
        if old is not None:
            self._move_draft(manifest)
        self._forget(manifest.fingerprint)

    def _overtaken(self) -> BuildError:
        what = "another build was published here at the same time"
        hint = f"build again with another {OptionName('version')} or {OptionName('name')}"
        return BuildError(self.location, what, hint)

    def _owner(self, manifest: Manifest) -> Build | None:
        begun = read_build(self.state)
        if begun is not None and begun.fingerprint != manifest.fingerprint:
            raise taken_over(self.state)
        return begun

    def _check_published(self, manifest: Manifest) -> None:
        if self._owner(manifest) is None and self.published() != manifest.dumps().encode():
            raise disturbed(self.state)

    def _move_draft(self, manifest: Manifest) -> None:
        """Move files of the draft in force to their final names; remove files of old datasets."""
        found, now = self._looked(lambda found: (found, draft_in_force(self.url, found)))
        if now is None:  # another run, perhaps an interrupted one, has moved all of it
            self._remove_others(manifest, found)
            return
        draft = now[0]
        above = under(draft, found)
        above.pop(MANIFEST_FILE, None)

        def copy(name: str) -> None:
            self._check_published(manifest)
            # If the file is gone, another run of the same build has copied it.
            objects.copy(self.url / draft / name, self.url / name, above[name].num_bytes)

        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            list(pool.map(copy, [name for name in above if belongs(name, manifest)]))
        self._remove_others(manifest, [name for name in found if not name.startswith(f"{draft}/")])
        # The manifest of the draft is removed last, so that an equal run can continue until then.
        seal = f"{draft}/{MANIFEST_FILE}"
        self._check_published(manifest)
        self._root.remove([f"{draft}/{name}" for name in above])
        self._check_published(manifest)
        self._root.remove([seal])

    def _remove_others(self, manifest: Manifest, found: Iterable[str]) -> None:
        schema = parse_schema(
            (self._root.read(SCHEMA_FILE) or b"").decode(), str(self.url / SCHEMA_FILE)
        )
        stays = inventory(manifest, schema)
        of_datasets = (name for name in found if is_own(name) or name.startswith(DRAFT_PREFIX))
        others = [name for name in of_datasets if name not in stays]
        self._check_published(manifest)
        self._root.remove(others)

    def _forget(self, fingerprint: Fingerprint) -> None:
        state = self.state
        others = [name for name in state.names() if name != BUILD_FILE]
        for names in (others, [BUILD_FILE]):
            begun = read_build(state)
            if begun is not None and begun.fingerprint != fingerprint:
                return
            state.remove(names)
        left = state.names()  # written by runs that read `BUILD_FILE` before its removal
        if BUILD_FILE not in left:
            state.remove(left)

    def documents(self, output: Folder | None = None) -> Path:
        def copied(found: Mapping[str, ListedObject]) -> Path:
            if output is None:
                found = in_force(self.url, found)
            elif output != self._root:
                found = under(str(output).removeprefix(f"{self.url}/"), found)
            return RemoteFiles(self.url, found).copies()

        return self._looked(copied)


def _draft_of(build: Build) -> str:
    return f"{DRAFT_PREFIX}{build.token or 'unnamed'}"


def _sweep(folder: Path) -> None:
    """Remove a folder of unpacked archives, unless a running process has locked it."""
    with contextlib.suppress(BuildError):  # in use, or another user's
        if not folder.is_symlink():
            with locked(folder) as is_held:
                if is_held:
                    shutil.rmtree(folder, ignore_errors=True)


def _new_scratch(start: str, ending: contextlib.ExitStack) -> Path:
    while True:
        made = tempfile.TemporaryDirectory(prefix=start, ignore_cleanup_errors=True)
        folder = Path(ending.enter_context(made))
        try:
            ending.enter_context(locked(folder))
        except BusyError:  # another build has just removed unlocked folders
            continue
        return folder
