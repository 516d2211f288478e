"""Read the files that name the classes of YOLO labels, and its keypoints and splits."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from shardprep.catalog.names import words_of_split
from shardprep.catalog.objects.formats.annotated_source import AnnotatedSource, named_as_images
from shardprep.catalog.objects.formats.pairing import Pairing
from shardprep.dataset.schema import MOST_POINTS
from shardprep.errors import OptionName, SourceError, counted, shown, some_of
from shardprep.image.annotation_types import Skeleton
from shardprep.source.members import Member
from shardprep.storage.text_file import decoded

_ID = re.compile(r"\d{1,9}", re.ASCII)
_MOST_SHOWN = 60
_NAME_FILES = ("data.yaml", "data.yml", "obj.names", "classes.txt", "_darknet.labels")
_NAME_SUFFIXES = (".yaml", ".yml", ".names", "classes.txt", "_darknet.labels")
_MOST_NAME_BYTES = 1 << 20
_MOST_DEPTH = 64
"""Maximum depth of YAML; its C loader crashes the process at a depth of about ten thousand."""
_NO_SHAPE = (None, "", "~", "null")
"""Values of `kpt_shape` in YAML that mean "not set"."""
_YAML_SPLITS = {"train": "train", "val": "validation", "test": "test"}


def stated_names(source: AnnotatedSource, argument: str, option: str) -> NameFile | None:
    """Return the file that `argument` names, or the first of the source, or None.

    SourceError if several files name the classes differently.
    """
    if argument:
        return NameFile(*source.documents.find(argument))
    files = name_files(source, is_strict=True)
    if any(one.names != files[0].names for one in files[1:]):
        both = some_of([one.key for one in files], 3)
        what = f"several files name the classes in different ways: {both}"
        hint = f"name one: {OptionName(option, f'yolo:{files[0].key}')}"
        raise SourceError(OptionName(option, "yolo"), what, hint)
    return next(iter(files), None)


def name_files(source: AnnotatedSource, *, is_strict: bool = False) -> list[NameFile]:
    """Return the files that name classes, in order of precedence.

    Files without label files below their folder are left out, unless all files lack them. With
    `is_strict`, a damaged file with a usual name is an error.
    """
    found = []
    for member in source.documents.members(*_NAME_SUFFIXES):
        try:
            found.append(NameFile(member.key, source.documents.find(member.key)[1]))
        except SourceError:
            if is_strict and member.key.rpartition("/")[2].lower() in _NAME_FILES:
                raise
    texts = named_as_images(source, ".txt")
    found = [one for one in found if members_below(texts, one.key)] or found
    ranks = {name: rank for rank, name in enumerate(_NAME_FILES)}
    return sorted(
        found, key=lambda one: (ranks.get(one.key.rpartition("/")[2].lower(), len(ranks)), one.key)
    )


def members_below(members: Sequence[Member], document: str) -> list[Member]:
    """Return the members in the folder of a document, or below it."""
    folder = f"/{document.rpartition('/')[0]}/".replace("//", "/")
    return [member for member in members if f"/{member.key}".startswith(folder)]


class PoseForm(NamedTuple):
    """Form of the keypoints in a line."""

    number: int = 0
    """Number of keypoints; 0 if unknown."""
    size: int = 3
    """Values of a keypoint: 2 for x and y, 3 for x, y and flag."""
    skeleton: Skeleton = Skeleton()
    is_wanted: bool = True
    """Whether a line that fits a pose and a polygon is a pose; matters if `number` is unknown."""

    def fits(self, numbers: Sequence[float]) -> bool:
        """Return whether the numbers of a line are a box and keypoints of this form."""
        num_values = len(numbers) - 5
        if self.number:
            return num_values == self.number * self.size
        if num_values < 2:
            return False
        has_flags = num_values % 3 == 0 and {0.0, 1.0, 2.0}.issuperset(numbers[7::3])
        if self.is_wanted:
            return has_flags or num_values % 2 == 0
        return has_flags and _have_flags(numbers)

    def keypoints(self, numbers: Sequence[float]) -> list[float]:
        """Return x, y, flag of each keypoint; a missing flag is 2, or 0 if x or y is negative."""
        size = self.size
        if not self.number and not {0.0, 1.0, 2.0}.issuperset(numbers[2::3]):
            size = 2
        if len(numbers) % size:
            raise ValueError("not the values of keypoints")
        points = [numbers[i : i + size] for i in range(0, len(numbers), size)]
        if size == 3:
            return [one for point in points for one in point]
        return [one for x, y in points for one in (x, y, 2.0 if min(x, y) >= 0 else 0.0)]


class NameFile:
    """Content of a names file: class names by id, and the paths of each split."""

    def __init__(self, key: str, data: bytes, fields: Sequence[str] = ("names",)) -> None:
        """Parse a file. In YAML, classes are under one of `fields`. SourceError if damaged."""
        self.key = key
        self.splits: dict[str, list[str]] = {}
        self.findings: list[str] = []
        self.pose: PoseForm | None = None
        """Form of the keypoints of a line; None if `kpt_shape` is not set or not valid."""
        self.pose_fault: SourceError | None = None
        """Reason why keypoints cannot be read, though boxes can; or None."""
        if len(data) > _MOST_NAME_BYTES:
            what = (
                f"has {len(data):,} bytes, but a file of class names may have {_MOST_NAME_BYTES:,}"
            )
            raise SourceError(key, what, "name another file of class names")
        if key.lower().endswith((".yaml", ".yml")):
            self.names = self._of_yaml(decoded(data), fields)
        else:
            lines = (line.strip() for line in decoded(data).splitlines())
            self.names = dict(enumerate(name for name in lines if name))
        if not self.names:
            raise SourceError(key, "names no classes", "name another file of class names")

    def _of_yaml(self, text: str, fields: Sequence[str]) -> dict[int, str]:
        """Return id → class name. YAML values stay texts, such as `yes`, `010` and `null`."""
        import yaml  # type: ignore[import-untyped] # noqa: PLC0415 - most sources never need it

        loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
        try:
            self._check_depth(yaml.parse(text, loader))
            document = yaml.load(text, loader)  # noqa: S506 - it creates only texts
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            line = getattr(getattr(error, "problem_mark", None), "line", None)
            place = "" if line is None else f" at line {line + 1:,}"
            raise SourceError(self.key, f"is damaged YAML{place}", "correct the file") from error
        parts = document if isinstance(document, dict) else {}
        names = next((parts[one] for one in fields if one in parts), None)
        pairs = enumerate(names) if isinstance(names, list) else ()
        found: dict[int, str] = {}
        for number, name in names.items() if isinstance(names, dict) else pairs:
            if not _ID.fullmatch(str(number)) or not isinstance(name, str) or not name.strip():
                what = f"has an invalid entry {shown(str(number), _MOST_SHOWN)!r} in 'names'"
                raise SourceError(self.key, what, "write names: [cat, dog]")
            if found.setdefault(int(number), name.strip()) != name.strip():
                raise SourceError(
                    self.key, f"has two names for class {int(number)}", "remove one name"
                )
        stated = str(parts.get("nc", ""))
        if _ID.fullmatch(stated) and int(stated) != len(found):
            self.findings.append(f"{self.key}: nc is {stated}, but names has {len(found):,}")
        if parts.get("kpt_shape") not in _NO_SHAPE:
            try:
                self.pose = self._pose(parts)
            except SourceError as error:
                self.pose_fault = error
        for key, split in _YAML_SPLITS.items():
            paths = parts.get(key)
            several = paths if isinstance(paths, list) else [paths]
            self.splits[split] = [path for path in several if isinstance(path, str) and path]
        return dict(sorted(found.items()))

    def _pose(self, parts: dict[str, Any]) -> PoseForm:
        shape = parts["kpt_shape"]
        try:
            number, size = (int(part) for part in shape)
        except (TypeError, ValueError):
            number, size = 0, 0
        if not 1 <= number <= MOST_POINTS or size not in (2, 3):
            what = f"has kpt_shape {shown(str(shape), _MOST_SHOWN)}"
            raise SourceError(self.key, what, "write the number of keypoints and 2 or 3: [17, 3]")
        named = parts.get("kpt_names")
        several = list(named.values()) if isinstance(named, dict) else [named]
        names = next((tuple(map(str, one)) for one in several if isinstance(one, list)), ())
        if len({*names}) != number:
            names = tuple(map(str, range(number)))
        mirrored = parts.get("flip_idx") or ()
        if mirrored and sorted(mirrored, key=str) != sorted(map(str, range(number)), key=str):
            what = f"has flip_idx {shown(str(mirrored), _MOST_SHOWN)}"
            hint = f"write the numbers 0 to {number - 1}, each once"
            self.pose_fault, mirrored = SourceError(self.key, what, hint), ()
        return PoseForm(number, size, Skeleton(names, (), tuple(map(int, mirrored))))

    def _check_depth(self, events: Iterable[Any]) -> None:
        import yaml  # noqa: PLC0415 - see above

        depth = 0
        for event in events:
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _MOST_DEPTH:
                raise SourceError(self.key, "is YAML that is nested too deeply", "correct the file")


def yaml_splits(names: NameFile, source: AnnotatedSource, findings: list[str]) -> list[str | None]:
    """Return the split of each key by the paths of a YAML, or None; adds notes to `findings`."""
    keys = source.index.keys
    splits: list[str | None] = [None] * len(keys)
    folders = {key.rpartition("/")[0] for key in keys}
    pairing = Pairing(source.index)
    lists = [member.key for member in source.documents.members(".txt")]
    num_twice = 0
    for split, paths in names.splits.items():
        of_split: set[int] = set()
        for path in paths:
            is_list = path.lower().endswith(".txt")
            name, found = _found(path, lists if is_list else folders, is_list=is_list)
            beside = f"{names.key.rpartition('/')[0]}/{name}".lstrip("/")
            listed = [key for key in found if key == beside] or found
            if not found:
                kind = "list" if is_list else "folder"
                findings.append(f"{names.key} names the {kind} {path!r}, which the source lacks")
            if is_list and len(listed) > 1:
                what = f"names the list {path!r}, but the source has {some_of(listed)}"
                raise SourceError(names.key, what, "remove one of these, or write a whole path")
            if is_list:
                lines = source.documents.ids(listed[0]) if listed else []
                images = (pairing.find_listed(line, names.key, split) for line in lines)
                of_split.update(i for i in images if i is not None)
                continue
            inside = {*found}
            of_split.update(i for i, key in enumerate(keys) if key.rpartition("/")[0] in inside)
        for i in of_split:
            num_twice += splits[i] not in (None, split)
            splits[i] = splits[i] or split
    if num_twice:
        findings.append(
            f"{names.key} gives {counted(num_twice, 'image')} two splits; the first counts"
        )
    return splits


def _found(path: str, keys: Collection[str], *, is_list: bool) -> tuple[str, list[str]]:
    """Return the end of `path` that the source has, and the lists or folders it fits.

    The machine where the YAML was written may have had more folders above: these are left out
    while the rest still names a split, as in /content/set/train/images.
    """
    parts = [part for part in re.split(r"[\\/]", path) if part not in ("", ".", "..")]
    for i in range(len(parts)):
        name = "/".join(parts[i:])
        if i and not any(words_of_split(part)[0] for part in parts[i:]):
            break
        if is_list:
            found = [key for key in keys if f"/{key}".endswith(f"/{name}")]
        else:
            found = [key for key in keys if f"/{name}/" in f"/{key}/"]
        if found:
            return name, found
    return "/".join(parts), []


def _have_flags(numbers: Sequence[float]) -> bool:
    """Return whether a line is a box and keypoints x, y, flag, and cannot be a polygon.

    With an odd number of keypoints, the number of values is odd, unlike in a polygon. In a polygon,
    the values at the places of flags are never 2, and four or more are not all 0 or 1.
    """
    flags = numbers[7::3]
    if len(numbers) < 8 or (len(numbers) - 5) % 3 or not {0.0, 1.0, 2.0}.issuperset(flags):
        return False
    has_size = numbers[3] > 0 and numbers[4] > 0
    return has_size and (len(flags) % 2 == 1 or 2 in flags or (len(flags) >= 4 and any(flags)))
