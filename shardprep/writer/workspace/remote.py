"""A workspace in object storage, where nothing can be renamed and nothing locked.

Where no finished dataset stands, shards and documents are written under their final names and the
manifest, which comes last, makes them a dataset. Where one stands, they are written as a draft
beside it, which `dataset.draft` puts in force.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.dataset.draft import DRAFT_PREFIX, draft_in_force, draft_name, in_force, under
from shardprep.dataset.folder import INCOMPLETE_SUFFIX, SCHEMA_FILE, belongs, inventory, is_own
from shardprep.dataset.manifest import MANIFEST_FILE, parse_manifest
from shardprep.dataset.remote import RemoteDataset
from shardprep.dataset.schema import parse_schema
from shardprep.errors import BuildError, BusyError
from shardprep.storage import objects
from shardprep.storage.folder import ObjectFolder
from shardprep.storage.lock import locked
from shardprep.writer.workspace.states import BUILD_FILE, dump_build, read_build, taken_over

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardprep.dataset.manifest import Fingerprint, Manifest
    from shardprep.storage.folder import Folder
    from shardprep.storage.objects import ObjectFacts
    from shardprep.storage.url import ObjectUrl

_NUM_THREADS = 16
"""Number of threads that wait for the store."""


@dataclass(frozen=True, slots=True)
class ObjectWorkspace:
    """A workspace in object storage, kept by the fingerprint in its `BUILD_FILE`.

    Its methods are documented in `LocalWorkspace`.
    """

    url: ObjectUrl

    is_exclusive = False

    @property
    def location(self) -> str:
        return str(self.url)

    @property
    def state(self) -> ObjectFolder:
        return ObjectFolder(self.url._replace(key=self.url.key + INCOMPLETE_SUFFIX))

    def output(self, fingerprint: Fingerprint) -> Folder:
        draft = self.url / draft_name(fingerprint)
        return ObjectFolder(draft, below=self.url) if self.stands() else self._root

    @property
    def _root(self) -> ObjectFolder:
        return ObjectFolder(self.url)

    def stands(self) -> bool:
        return objects.head(self.url / MANIFEST_FILE) is not None

    def finished(self) -> Manifest | None:
        return self._manifest(MANIFEST_FILE)

    def _manifest(self, name: str) -> Manifest | None:
        data = self._root.read(name)
        return None if data is None else parse_manifest(data, str(self.url / name))

    def files(self) -> Mapping[str, ObjectFacts]:
        return in_force(self.url, self._found())

    def _found(self) -> dict[str, ObjectFacts]:
        return {facts.name: facts for facts in objects.listing(self.url)}

    def sealed(self) -> Manifest | None:
        begun = read_build(self.state)
        return None if begun is None else self._manifest(f"{draft_name(begun)}/{MANIFEST_FILE}")

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

    def start(self, fingerprint: Fingerprint, *, over: bool, may_stand: bool) -> bool:
        state, build = self.state, dump_build(fingerprint)
        if over:  # before anything is removed, so that the other build stops
            state.write(BUILD_FILE, build)
        found, old_state = self._found(), state.names()
        if not over and (BUILD_FILE in old_state or not state.create(BUILD_FILE, build)):
            return False
        draft = draft_name(fingerprint)
        if self.stands():
            if not may_stand:
                state.remove([BUILD_FILE])
                raise BuildError(
                    self.location, "another build has just finished here", "run the command again"
                )
            now = draft_in_force(self.url, found)
            if now is not None and now[0] == draft:
                self._move_draft(now[1], found)
            else:
                self._remove_draft(draft, found)
        else:
            # There is no manifest; if one comes now, the same build was begun beside this one, and
            # has ended.
            self._root.remove([name for name in found if _is_removed(name)])
        state.remove([name for name in old_state if name != BUILD_FILE])
        return True

    def discard(self) -> None:
        begun = read_build(self.state)
        if begun is not None:
            draft = draft_name(begun)
            found = self._found()
            if f"{draft}/{MANIFEST_FILE}" not in found:
                self._remove_draft(draft, found)
        self._forget()

    def adopt(self, file: str, mark: str, name: str) -> str:
        if file == name or not is_own(name):
            return mark
        begun = read_build(self.state)
        facts = objects.head(self.url / file)
        if begun is None or facts is None or facts.etag != mark:
            return mark
        to = self.url / draft_name(begun) / name
        objects.copy(self.url / file, to, facts.num_bytes)
        copied = objects.head(to)
        return mark if copied is None else copied.etag

    def seal(self, manifest: Manifest, output: Folder) -> None:
        data = manifest.dumps().encode()
        if output != self._root:
            output.write(MANIFEST_FILE, data)
        elif not self._root.create(MANIFEST_FILE, data) and self._root.read(MANIFEST_FILE) != data:
            raise self._overtaken()

    def is_settled(self, manifest: Manifest) -> bool:
        begun = read_build(self.state)
        if begun not in (None, manifest.fingerprint):
            return True  # another build is at work, which removes what it finds
        draft = draft_name(manifest.fingerprint)
        sealed = self._root.read(f"{draft}/{MANIFEST_FILE}")
        if sealed is not None and sealed == self._root.read(MANIFEST_FILE):
            return False
        # A draft that is not the one in force: the same build has been begun anew.
        return begun is None or bool(objects.listing(self.url / draft))

    def publish(self, manifest: Manifest) -> None:
        self._check_own(manifest.fingerprint)
        data = manifest.dumps().encode()
        if self._root.read(f"{draft_name(manifest.fingerprint)}/{MANIFEST_FILE}") == data:
            old, new = self._root.read(MANIFEST_FILE), self.url / MANIFEST_FILE
            is_done = objects.create(new, data) if old is None else objects.replace(new, old, data)
            if not is_done:
                raise self._overtaken()
            self._move_draft(manifest, self._found())
        self._forget()

    def _overtaken(self) -> BuildError:
        return BuildError(
            self.location,
            "another build was published here meanwhile",
            "add --overwrite to replace it, or give another --version or --name",
        )

    def _check_own(self, fingerprint: Fingerprint) -> None:
        """Check that no other build has taken over."""
        if read_build(self.state) not in (None, fingerprint):
            raise taken_over(self.state)

    def _move_draft(self, manifest: Manifest, found: Mapping[str, ObjectFacts]) -> None:
        """Copy the files of the draft in force to their final names, and remove all others."""
        draft = draft_name(manifest.fingerprint)
        above = under(draft, found)
        above.pop(MANIFEST_FILE, None)

        def copy(name: str) -> None:
            self._check_own(manifest.fingerprint)
            # A file that is gone was copied by another run of the same build.
            objects.copy(self.url / draft / name, self.url / name, above[name].num_bytes)

        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            list(pool.map(copy, [name for name in above if belongs(name, manifest)]))
        schema = parse_schema(
            (self._root.read(SCHEMA_FILE) or b"").decode(), str(self.url / SCHEMA_FILE)
        )
        stays = inventory(manifest, schema)
        others = [name for name in found if not name.startswith(f"{draft}/")]
        self._root.remove([name for name in others if _is_removed(name) and name not in stays])
        self._remove_draft(draft, found, is_in_force=True)

    def _remove_draft(
        self, draft: str, found: Mapping[str, ObjectFacts], *, is_in_force: bool = False
    ) -> None:
        """Remove a draft so that it stays what it was if this is interrupted.

        The manifest of one in force goes last, so that the next run goes on; else it goes first,
        so that what is left is not taken for complete.
        """
        inside = [name for name in found if name.startswith(f"{draft}/")]
        seal = f"{draft}/{MANIFEST_FILE}"
        for seals in (False, True) if is_in_force else (True, False):
            self._root.remove([name for name in inside if (name == seal) == seals])

    def _forget(self) -> None:
        """Remove the state of the build, the `BUILD_FILE` last."""
        state = self.state
        state.remove([name for name in state.names() if name != BUILD_FILE])
        state.remove([BUILD_FILE])

    def documents(self, output: Folder | None = None) -> Path:
        found = self.files() if output is None else self._found()
        if output not in (None, self._root):
            found = under(str(output).removeprefix(f"{self.url}/"), found)
        return RemoteDataset(self.url, found).documents()


def _is_removed(name: str) -> bool:
    """Tell whether a file goes where another dataset comes: one of a dataset, or of a draft."""
    return is_own(name) or name.startswith(DRAFT_PREFIX)


def _sweep(folder: Path) -> None:
    """Remove a folder of unpacked archives that a killed process has left here."""
    with contextlib.suppress(BuildError):  # one that is at work holds it, or it is another user's
        if not folder.is_symlink():
            with locked(folder) as is_held:
                if is_held:
                    shutil.rmtree(folder, ignore_errors=True)


def _new_scratch(start: str, ending: contextlib.ExitStack) -> Path:
    """Return a new folder, held, and removed at the end."""
    while True:
        made = tempfile.TemporaryDirectory(prefix=start, ignore_cleanup_errors=True)
        folder = Path(ending.enter_context(made))
        try:
            ending.enter_context(locked(folder))
        except BusyError:  # another build has just begun, and swept out what was not held
            continue
        return folder
