"""The folder of an export, and the working folder next to it: complete or absent.

The work is done in `<out>.incomplete/`, whose `.export.json` states its purpose; `export.json` is
written last, and then the folder is renamed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from shardprep.errors import BuildError, OptionName
from shardprep.storage.atomic_file import sync_folder, write_durably
from shardprep.storage.lock import LOCK_FILE
from shardprep.storage.regular_file import read_regular

_EXPORT_FILE = "export.json"
_STATE_FILE = ".export.json"
PARTS = ".parts"
"""Folder, in the working folder, of files that are joined when all shards are written."""
_REPLACED = ".replaced"
"""Folder of the replaced export, until it is removed."""
_MOST_FACTS = 64 << 20


def finished(folder: Path) -> Any:
    """Return the facts of the complete export in a folder, or None."""
    return _facts_in(folder / _EXPORT_FILE)


def finish(work: Path, facts: dict[str, Any]) -> None:
    """Mark the export in the working folder as complete."""
    write_durably(work / _EXPORT_FILE, _text(facts))


def _text(facts: dict[str, Any]) -> bytes:
    return (json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode()


def _facts_in(path: Path) -> Any:
    """Return the facts in a file, None if it is missing or something else."""
    try:
        return json.loads(read_regular(path, _MOST_FACTS))
    except (OSError, ValueError):
        return None


def check_free(out: Path, *, overwrite: bool) -> None:
    """Raise BuildError if the export would replace something else."""
    if not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir())):
        return
    facts = finished(out)
    if not _is_export(facts):
        raise BuildError(
            str(out),
            "is there already, and is not an export",
            f"choose another {OptionName('out')}",
        )
    if not overwrite:
        what = "is another export"
        raise BuildError(
            str(out), what, f"choose another {OptionName('out')}, or add {OptionName('overwrite')}"
        )


def _is_export(facts: Any) -> bool:
    return isinstance(facts, dict) and "shardprep_export" in facts


def prepare(work: Path, out: Path, facts: dict[str, Any]) -> None:
    """Keep only what an earlier run of the same export finished in the working folder."""
    if (work / _REPLACED).is_dir() and not os.path.lexists(out):
        (work / _REPLACED).rename(out)
    complete = finished(work)
    if complete == facts:
        return
    if _facts_in(work / _STATE_FILE) == facts:
        for path in work.rglob(".*.tmp"):
            path.unlink()
        return
    begun = (LOCK_FILE, f".{_STATE_FILE}.tmp")
    others = [path for path in work.iterdir() if path.name not in begun]
    if others and not (_is_export(_facts_in(work / _STATE_FILE)) or _is_export(complete)):
        raise BuildError(
            str(work),
            "is there already, and is not an export",
            f"choose another {OptionName('out')}",
        )
    for path in sorted(others, key=lambda one: one.name in (_STATE_FILE, _EXPORT_FILE)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    write_durably(work / _STATE_FILE, _text(facts))


def publish(work: Path, out: Path, *, overwrite: bool) -> None:
    """Rename the working folder to the export, then remove what it replaces."""
    for name in (PARTS, _STATE_FILE):
        with contextlib.suppress(FileNotFoundError):
            if (work / name).is_dir():
                shutil.rmtree(work / name)
            else:
                (work / name).unlink()
    check_free(out, overwrite=overwrite)
    if out.is_dir() and any(out.iterdir()):
        out.rename(work / _REPLACED)
    work.rename(out)
    sync_folder(out.parent)
    tidy(out)


def tidy(out: Path) -> None:
    """Remove what a finished export does not need."""
    (out / LOCK_FILE).unlink(missing_ok=True)  # not before: until then it keeps others out
    if (out / _REPLACED).is_dir():
        shutil.rmtree(out / _REPLACED)
