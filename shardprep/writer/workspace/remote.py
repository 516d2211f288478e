"""Where a dataset is built in object storage, in which nothing can be renamed.

Where no finished dataset stands, shards and documents are written where they will be, and the
manifest, which comes last and only where there is none, makes them a dataset. Where one stands,
they are written as a draft beside it: `draft` says how it comes to be in force. What must be
remembered until then lies below `<version>.incomplete/`. There are no locks either: the
`BUILD_FILE` there says whose the place is. It is created only where there is none; who is to take
the place of another build writes it before anything else, and who has lost it commits nothing
more, and takes its manifest back.
"""

from __future__ import annotations

import contextlib
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.dataset.draft import DRAFT_PREFIX, draft_in_force, draft_name, in_force
from shardprep.dataset.folder import INCOMPLETE_SUFFIX, SCHEMA_FILE
from shardprep.dataset.inventory import belongs, inventory, is_own
from shardprep.dataset.manifest import MANIFEST_FILE, parse_manifest
from shardprep.dataset.schema import parse_schema
from shardprep.errors import BuildError
from shardprep.storage import objects
from shardprep.storage.folder import LayeredFolder, ObjectFolder
from shardprep.storage.shard_cache import stage_documents
from shardprep.writer.shard import BUILD_FILE, parse_build, read_build

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardprep.dataset.manifest import Fingerprint, Manifest
    from shardprep.storage.folder import Folder
    from shardprep.storage.objects import ObjectFacts
    from shardprep.storage.url import ObjectUrl

_NUM_THREADS = 16
"""Threads that wait for the store."""


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """A key in object storage."""

    url: ObjectUrl

    @property
    def location(self) -> str:
        """The address of the dataset."""
        return str(self.url)

    @property
    def work(self) -> str:
        """The address of what is remembered of an unfinished build."""
        return str(self.parts.url)

    @property
    def parts(self) -> ObjectFolder:
        """The folder of what is remembered of it."""
        return ObjectFolder(self.url._replace(key=self.url.key + INCOMPLETE_SUFFIX))

    def shards(self, fingerprint: Fingerprint) -> Folder:
        """Return the place itself, or a draft over the dataset that stands there."""
        draft = ObjectFolder(self.url / draft_name(fingerprint))
        return LayeredFolder(draft, self._root) if self.stands() else self._root

    @property
    def _root(self) -> ObjectFolder:
        return ObjectFolder(self.url)

    @property
    def is_exclusive(self) -> bool:
        """There are no locks."""
        return False

    def stands(self) -> bool:
        """Look for a manifest, which only a complete dataset has."""
        return objects.head(self.url / MANIFEST_FILE) is not None

    def finished(self) -> Manifest | None:
        """Return the manifest."""
        data = self._root.read(MANIFEST_FILE)
        return None if data is None else parse_manifest(data, str(self.url / MANIFEST_FILE))

    def files(self) -> Mapping[str, ObjectFacts]:
        """List what the dataset consists of, a draft in force included."""
        return in_force(self.url, self._found())

    def _found(self) -> dict[str, ObjectFacts]:
        return {facts.name: facts for facts in objects.listing(self.url)}

    def sealed(self) -> Manifest | None:
        """Return the manifest of a draft that is complete, and may be in force already."""
        begun = read_build(self.parts)
        if begun is None:
            return None
        name = f"{draft_name(begun)}/{MANIFEST_FILE}"
        data = self._root.read(name)
        return None if data is None else parse_manifest(data, str(self.url / name))

    def held(self, *, alone: bool) -> contextlib.AbstractContextManager[bool]:
        """Do nothing: the manifest is written by one build alone."""
        del alone
        return contextlib.nullcontext(enter_result=False)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Give a temporary folder."""
        with tempfile.TemporaryDirectory(prefix="shardprep-") as folder:
            yield Path(folder)

    def start(self, build: bytes, *, over: bool, may_stand: bool) -> bool:
        """Take the place first, then remove what was there before, but no finished dataset.

        Raises:
            BuildError: another build has published its dataset meanwhile.

        """
        parts = self.parts
        if over:
            parts.write(BUILD_FILE, build)
        found, old_parts = self._found(), parts.names()
        if not over and (BUILD_FILE in old_parts or not parts.create(BUILD_FILE, build)):
            return False
        draft = draft_name(parse_build(parts, build))
        if self.stands():
            if not may_stand:
                parts.remove([BUILD_FILE])
                raise BuildError(
                    self.location, "another build has just finished here", "run the command again"
                )
            now = draft_in_force(self.url, found)
            if now is not None and now.prefix == draft:
                self._bring_home(now.manifest, found)
            else:
                self._remove_draft(draft, found)
        else:
            own = [name for name in found if is_own(name) or name.startswith(DRAFT_PREFIX)]
            self._root.remove([MANIFEST_FILE, *own])
        parts.remove([name for name in old_parts if name != BUILD_FILE])
        return True

    def discard(self) -> None:
        """Remove what is remembered, and a draft that is not complete."""
        begun = read_build(self.parts)
        if begun is not None:
            draft = draft_name(begun)
            found = self._found()
            if f"{draft}/{MANIFEST_FILE}" not in found:
                self._remove_draft(draft, found)
        self._forget()

    def adopt(self, file: str, name: str, mark: str) -> str:
        """Leave what has its name already, let the store copy what has another's."""
        if file == name or not is_own(name):
            return mark
        begun = read_build(self.parts)
        facts = objects.head(self.url / file)
        if begun is None or facts is None or facts.etag != mark:
            return mark
        to = self.url / draft_name(begun) / name
        objects.copy(self.url / file, to, facts.num_bytes)
        copied = objects.head(to)
        return mark if copied is None else copied.etag

    def seal(self, manifest: Manifest, shards: Folder) -> None:
        """Create the manifest, in the draft where there is one.

        Raises:
            BuildError: another build was first, with other bytes.

        """
        data = manifest.dumps().encode()
        if shards != self._root:
            shards.write(MANIFEST_FILE, data)
        elif not self._root.create(MANIFEST_FILE, data) and self._root.read(MANIFEST_FILE) != data:
            raise self._overtaken()

    def is_settled(self, manifest: Manifest) -> bool:
        """See that nothing is left of the draft that the dataset was, nor of what was remembered.

        What another build than that of the dataset remembers is its own matter, and so is what the
        same one has begun anew.
        """
        begun = read_build(self.parts)
        if begun not in (None, manifest.fingerprint):
            return True
        draft = draft_name(manifest.fingerprint)
        sealed = self._root.read(f"{draft}/{MANIFEST_FILE}")
        if sealed is not None and sealed == self._root.read(MANIFEST_FILE):
            return False
        return begun is None or bool(objects.listing(self.url / draft))

    def publish(self, manifest: Manifest) -> None:
        """Put a draft in force and bring it home, then remove what was remembered.

        Raises:
            BuildError: another build is at work here, or was published here meanwhile.

        """
        self._check_own(manifest.fingerprint)
        data = manifest.dumps().encode()
        if self._root.read(f"{draft_name(manifest.fingerprint)}/{MANIFEST_FILE}") == data:
            old, new = self._root.read(MANIFEST_FILE), self.url / MANIFEST_FILE
            is_done = objects.create(new, data) if old is None else objects.replace(new, old, data)
            if not is_done:
                raise self._overtaken()
            self._bring_home(manifest, self._found())
        self._forget()

    def _overtaken(self) -> BuildError:
        return BuildError(
            self.location,
            "another build was published here meanwhile",
            "add --overwrite to replace it, or give another --version or --name",
        )

    def _check_own(self, fingerprint: Fingerprint) -> None:
        """See that no other build has taken the place."""
        if read_build(self.parts) not in (None, fingerprint):
            raise BuildError(
                self.work,
                "another build has taken the place of this one",
                "end one of them, or give another --name or --version",
            )

    def _bring_home(self, manifest: Manifest, found: Mapping[str, ObjectFacts]) -> None:
        """Give the files of the draft in force their final names, and remove all others.

        Raises:
            BuildError: another build has taken the place.

        """
        draft = draft_name(manifest.fingerprint)
        above = {
            name.removeprefix(f"{draft}/"): facts.num_bytes
            for name, facts in found.items()
            if name.startswith(f"{draft}/") and name != f"{draft}/{MANIFEST_FILE}"
        }

        def bring(name: str) -> None:
            self._check_own(manifest.fingerprint)
            # One that is gone was brought home by another run of the same build.
            objects.copy(self.url / draft / name, self.url / name, above[name])

        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            list(pool.map(bring, [name for name in above if belongs(name, manifest)]))
        schema = parse_schema(
            (self._root.read(SCHEMA_FILE) or b"").decode(), str(self.url / SCHEMA_FILE)
        )
        stays = inventory(manifest, schema)
        self._root.remove(
            [
                name
                for name in found
                if (is_own(name) and name not in stays)
                or (name.startswith(DRAFT_PREFIX) and not name.startswith(f"{draft}/"))
            ]
        )
        self._remove_draft(draft, found, is_in_force=True)

    def _remove_draft(
        self, draft: str, found: Mapping[str, ObjectFacts], *, is_in_force: bool = False
    ) -> None:
        """Remove a draft so that what is left of it counts as what it was.

        Its manifest goes last where it is in force, for whoever is to end this, and else first.
        """
        seal = f"{draft}/{MANIFEST_FILE}"
        others = [name for name in found if name.startswith(f"{draft}/") and name != seal]
        steps: Sequence[list[str]] = (others, [seal]) if is_in_force else ([seal], others)
        for names in steps:
            self._root.remove([name for name in names if name in found])

    def _forget(self) -> None:
        """Remove what was remembered, by whose it is last."""
        names = self.parts.names()
        self.parts.remove([name for name in names if name != BUILD_FILE])
        self.parts.remove([name for name in names if name == BUILD_FILE])

    def documents(self) -> Path:
        """Return a copy."""
        return stage_documents(self.url, self.files())

    def draft(self, shards: Folder) -> Path:
        """Return a copy."""
        if shards == self._root:
            return stage_documents(self.url, self._found())
        below = f"{shards}/".removeprefix(f"{self.url}/")
        return stage_documents(
            self.url,
            {n.removeprefix(below): f for n, f in self._found().items() if n.startswith(below)},
        )
