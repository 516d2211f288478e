"""Images with ordinary names: safe, not junk, and valid keys without changes.

One pattern over all names is a hundred times as fast as `unsafe_name`, `clean_key` and `is_junk`
for each name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow.compute as pc

from shardprep.source.members import BELOW, PLACE
from shardprep.source.names import MAX_KEY_LENGTH, ORDINARY_IMAGE
from shardprep.source.string_column import Texts, booleans, integers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardprep.source.file_listing import FoundFile
    from shardprep.source.members import Places


class OrdinaryImages(NamedTuple):
    """Images of a zip, or of a folder, as columns."""

    keys: Texts
    places: Places
    """A `PLACE` for each, without `file`."""
    file: str
    """The zip, or the part of each path or address before the key."""

    @property
    def stored_bytes(self) -> NDArray[np.int64]:
        """Stored size of each."""
        is_file = self.places["kind"] == BELOW
        return np.where(is_file, self.places["num_bytes"], self.places["stored_bytes"])


def are_ordinary(names: Texts) -> NDArray[np.bool_]:
    """Return which names certainly belong to such images; others may do so too."""
    fits = booleans(pc.match_substring_regex(names.array, ORDINARY_IMAGE))
    fits &= integers(pc.binary_length(names.array)) <= MAX_KEY_LENGTH
    return fits & ~booleans(pc.match_substring(names.array, "__MACOSX"))


def ordinary_files(found: Sequence[FoundFile]) -> tuple[OrdinaryImages, list[FoundFile]]:
    """Split files into ordinary images below one folder, and other files."""
    last = found[-1]
    folder = last.path.removesuffix(last.relative)
    keys = Texts.of(one.relative for one in found)
    lie_below = [not one.problem and one.path == folder + one.relative for one in found]
    fits = are_ordinary(keys) & np.array(lie_below, bool)
    rows = np.flatnonzero(fits)
    places = np.zeros(len(rows), PLACE)
    places["kind"] = BELOW
    places["num_bytes"] = np.array([one.num_bytes for one in found], np.int64)[rows]
    others = [found[i] for i in np.flatnonzero(~fits).tolist()]
    return OrdinaryImages(keys.take(rows), places, folder), others
