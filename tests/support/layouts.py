"""Real Kaggle layouts in small: `tests/data/layouts.toml`, read.

Each row has the files of a source, the flags for it, and what must come out. A file is named by a
pattern as in bash (`{1..3}`, `{a,b}`), through the archives that it lies in, and its content is a
text or one of

* `@image MODE`: an image of its own, RGB by default; `as png` whatever its suffix; `plus` bytes;
* `@scene MODE`: an image that shows the same as others with its name and folder; `cut` for a part
  of it on black;
* `@same FILE`: the bytes of another file, or the first of them with `cut NUMBER`;
* `@hex` bytes, `@zlib` bytes in base64, and `@latin-1` text.

`python -m tests.support.layouts` writes the table of docs/kaggle.md; `test_layouts` builds every
row and compares the table.
"""

import base64
import io
import itertools
import re
import tomllib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.support.builders import encoded, tar_bytes, write, write_folder, zip_bytes
from tests.support.dicom import dicom
from tests.support.paths import DATA, ROOT, with_part

PAGE = ROOT / "docs" / "kaggle.md"
MARKS = "<!-- layouts -->\n", "<!-- end of layouts -->\n"

Members = dict[str, bytes]
_FORMS = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "tif": "TIFF", "gif": "GIF"}
_ARCHIVE = re.compile(r"(?<=\.zip)/|(?<=\.7z)/|(?<=\.tar)/|(?<=\.tar\.gz)/")
_SHOWN_CLASSES = 4
_CODED: dict[str, Callable[[str], bytes]] = {
    "@hex": bytes.fromhex,
    "@zlib": lambda text: zlib.decompress(base64.b64decode(text)),
    "@latin-1": lambda text: text.encode("latin-1"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    row: int
    name: str
    special: str
    files: Mapping[str, str] = field(default_factory=dict)
    like: str = ""
    """Another layout with the same files."""
    parts: Mapping[str, int] = field(default_factory=dict)
    """Archive of the source → number of parts that it is split into."""
    source: str = ""
    """Its name, by default NAME.zip; with a final "/" a folder."""
    beside: Mapping[str, str] = field(default_factory=dict)
    """Files next to the source: name → content."""
    flags: str = ""
    kind: str = "class"
    meaning: str = ""
    splits: Mapping[str, int]
    unlabelled: tuple[str, ...] = ()
    """Splits without targets."""
    classes: tuple[str, ...] = ()
    objects: Mapping[str, int] = field(default_factory=dict)
    """Class of objects or masks → number of objects, 0 if masks must be read to know it."""
    num_masks: int = 0
    stored: str = ""
    """Stored annotations: boxes, masks."""
    targets: Mapping[str, object]
    """Key → class name, names, number or text; None (in the file "") for no target."""
    features: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    rejected: Mapping[str, int] = field(default_factory=dict)
    rows_without_image: int = 0
    missing: str = ""
    needs: str = ""
    """A module that is needed to read the source."""

    def members(self) -> Members:
        files = (
            next(one for one in LAYOUTS if one.name == self.like).files if self.like else self.files
        )
        members = packed(contents(files))
        for name, number in self.parts.items():
            data = members.pop(name)
            size = -(-len(data) // number)
            members |= {
                f"{name}.{i + 1:03d}": data[i * size : (i + 1) * size] for i in range(number)
            }
        return members

    @property
    def id(self) -> str:
        return f"{self.row:02d}-{self.name.split(' (')[0].replace(' ', '-')}"

    @property
    def result(self) -> str:
        parts = [self._target()]
        for split, number in self.splits.items():
            alone = split in self.unlabelled and self.kind != "none"
            parts.append(f"{split} {number}" + (" without target" if alone else ""))
        if self.rejected:
            parts.append(f"{sum(self.rejected.values())} rejected")
        if "no label" in self.skipped:
            parts.append(f"{self.skipped['no label']} skipped for want of a label")
        if lost := sum(self.skipped.get(f"no {what}", 0) for what in ("annotation", "mask")):
            parts.append(f"{lost} skipped for want of an annotation")
        return "; ".join(parts) + (f". Not stored: {self.missing}" if self.missing else "")

    def _target(self) -> str:
        if self.stored:
            names = ", ".join(self.objects)
            target = "" if self.kind == "none" else f", and {self._target_alone()}"
            return f"{self.stored} of {names}{target}"
        return self._target_alone()

    def _target_alone(self) -> str:
        if self.kind == "none":
            return "images alone"
        if not self.classes:
            return f"a {'number' if self.kind == 'regression' else 'text'}: {self.meaning}"
        shown = ", ".join(self.classes[:_SHOWN_CLASSES])
        more = ", …" if len(self.classes) > _SHOWN_CLASSES else ""
        number = "one" if self.kind == "class" else "any"
        return f"{number} of {len(self.classes)} classes ({shown}{more})"


@dataclass(frozen=True, slots=True)
class Outside:
    """A dataset that needs another tool, or an additional one."""

    row: int
    name: str
    special: str
    instead: str


def expanded(pattern: str) -> list[str]:
    """Return the names of a pattern, in bash's order."""
    parts = []
    for i, part in enumerate(re.split(r"\{([^{}]*)\}", pattern)):
        first, dots, last = part.partition("..")
        if i % 2 == 0:
            parts.append([part])
        elif dots:
            parts.append([f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1)])
        else:
            parts.append(part.split(","))
    return ["".join(names) for names in itertools.product(*parts)]


def contents(files: Mapping[str, str]) -> Members:
    found: Members = {}
    for pattern, content in files.items():
        names = expanded(pattern)
        contents = expanded(content) if content.startswith("@same") else [content] * len(names)
        for name, text in zip(names, contents, strict=True):
            found[name] = _content(name, text, found)
    return found


def _content(name: str, content: str, before: Members) -> bytes:
    how, _, rest = content.partition(" ")
    match how:
        case "@image":
            what, _, more = rest.partition("plus ")
            mode, _, form = what.partition("as ")
            return image(name, mode.strip() or "RGB", form) + more.encode()
        case "@scene":
            return image("/".join(name.split("/")[-2:]), rest or "RGB")
        case "@same":
            other, _, size = rest.partition(" cut ")
            return before[other][: int(size) if size else None]
        case "@hex" | "@zlib" | "@latin-1":
            return _CODED[how](rest)
        case _:
            return content.encode()


def image(name: str, mode: str = "RGB", suffix: str = "") -> bytes:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    noise = Image.fromarray(rng.integers(0, 256, (10, 12, 3), np.uint8))
    if mode == "I;16":
        noise = Image.fromarray(rng.integers(0, 1 << 12, (10, 12), np.uint16))
    elif mode == "cut":
        noise.paste(0, (0, 0, 12, 4))
    elif mode != "RGB":
        noise = noise.convert(mode)
    suffix = suffix or name.rpartition(".")[2].lower()
    is_dicom = suffix in ("dcm", "dicom")
    return dicom(np.asarray(noise)) if is_dicom else encoded(noise, _FORMS[suffix])


def packed(files: Members) -> Members:
    found: dict[str, Any] = {}
    for path, data in files.items():
        archive, *inner = _ARCHIVE.split(path, maxsplit=1)
        if inner:
            found.setdefault(archive, {})[inner[0]] = data
        else:
            found[path] = data
    return {
        name: _archive(name, packed(data)) if isinstance(data, dict) else data
        for name, data in found.items()
    }


def _archive(name: str, members: Members) -> bytes:
    if name.endswith(".zip"):
        return zip_bytes(members)
    if not name.endswith(".7z"):
        return tar_bytes(members, "gz" if name.endswith("gz") else "")
    import py7zr

    out = io.BytesIO()
    with py7zr.SevenZipFile(out, "w") as archive:
        for member, data in members.items():
            archive.writestr(data, member)
    return out.getvalue()


def write_source(layout: Layout, folder: Path) -> str:
    """Write the source of a layout and the files next to it; return its name."""
    members = layout.members()
    write_folder(folder, contents(layout.beside))
    source = layout.source or f"{layout.name}.zip"
    if source.endswith("/"):
        write_folder(folder / source, members)
    else:
        write(folder / source, zip_bytes(members))
    return source.rstrip("/")


def _read(row: dict[str, Any]) -> Layout:
    """Return a layout from its row: lists become tuples, "" no target, texts of records bytes."""
    for name in ("unlabelled", "classes"):
        row[name] = tuple(row.get(name, ()))
    row["targets"] = {
        key: tuple(one) if isinstance(one, list) else None if one == "" else one
        for key, one in row["targets"].items()
    }
    row["features"] = {
        key: {name: v.encode() if isinstance(v, str) else v for name, v in features.items()}
        for key, features in row.get("features", {}).items()
    }
    return Layout(**row)


_ROWS = tomllib.loads((DATA / "layouts.toml").read_text(encoding="utf-8"))
LAYOUTS = tuple(map(_read, _ROWS["layout"]))
OUTSIDE = tuple(Outside(**row) for row in _ROWS["outside"])


def table_text() -> str:
    working = [
        [
            str(layout.row),
            layout.name,
            layout.special,
            f"`{layout.flags}`" if layout.flags else "none",
            layout.result,
        ]
        for layout in LAYOUTS
    ]
    outside = [[str(one.row), one.name, one.special, one.instead] for one in OUTSIDE]
    return (
        markdown_table(("row", "data set", "what is special", "flags", "result"), working)
        + "\nFiles without pictures:\n\n"
        + markdown_table(("row", "data set", "what is special", "what to do"), outside)
    )


def markdown_table(header: tuple[str, ...], rows: list[list[str]]) -> str:
    escaped = [" | ".join(cell.replace("|", r"\|") for cell in row) for row in (header, *rows)]
    lines = [f"| {row} |\n" for row in escaped]
    lines.insert(1, "|---" * len(header) + "|\n")
    return "".join(lines)


def page_text(page: str) -> str:
    return with_part(page, MARKS, table_text())


if __name__ == "__main__":
    PAGE.write_text(page_text(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
