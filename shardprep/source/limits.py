"""Limits of a source: number of members, sizes, depth. Errors name the flag of the limit.

Only these numbers distinguish a zip bomb from an honest archive. The stated sizes of images and
tables are added up before any of them is unpacked. The bytes of an inner archive or a .gz are
counted while it is unpacked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardprep.errors import OptionName, SourceError, counted
from shardprep.source.byte_range import MOST_BYTES, RefusedExtent, StoredExtent, ZipExtent
from shardprep.storage.space import megabytes

if TYPE_CHECKING:  # a download does not need numpy
    import numpy as np
    from numpy.typing import NDArray

    Sizes = NDArray[np.int64]

_SMALL_BYTES = 64_000_000
"""Unpacked bytes up to which any ratio is allowed. A black image of 20 megapixels reaches 1,000."""
_FREE_BYTES = 10_000_000_000
_FREE_RATIO = 100


@dataclass(frozen=True, slots=True)
class SourceLimits:
    """Limits on the members and the bytes of one source."""

    max_members: int = 10_000_000
    """Members of all archives and files of the source together, skipped ones included."""
    max_member_size: int = 2_000_000_000
    """Bytes of one image or table: it is read into memory as a whole."""
    max_unpacked: int | None = None
    """Bytes unpacked from all archives. None means 10 GB plus 100 times the size of the source."""
    max_ratio: int = 1000
    """Unpacked bytes per packed byte, for members above 64 MB. Deflate reaches 1,032."""
    max_depth: int = 8
    follow_links: bool = False


DEFAULT_LIMITS = SourceLimits()


class Budget:
    """Running totals of members and bytes of a source; SourceError if one is above its limit."""

    def __init__(self, limits: SourceLimits) -> None:
        self.limits = limits
        self._num_members = 0
        self._num_unpacked = 0
        self._source_bytes = 0

    def add_source(self, num_bytes: int) -> None:
        self._source_bytes += num_bytes

    def check_depth(self, depth: int, name: str) -> None:
        if depth > self.limits.max_depth:
            what = f"archives are nested more than {counted(self.limits.max_depth, 'level')} deep"
            raise _above("max_depth", name, what)

    def add_members(self, number: int, archive: str) -> None:
        self._num_members += number
        self.check_members(0, archive)

    def check_members(self, num_more: int, archive: str) -> None:
        """Raise SourceError if `num_more` further members would exceed the limit."""
        if self._num_members + num_more > self.limits.max_members:
            what = f"there are more than {self.limits.max_members:,} members"
            raise _above("max_members", archive, what)

    def readable(self, extent: StoredExtent, key: str) -> StoredExtent | RefusedExtent:
        """Return a member's extent and count its bytes; `RefusedExtent` above a limit."""
        packed = extent.stored_bytes if isinstance(extent, ZipExtent) else extent.num_bytes
        largest = max(packed, extent.num_bytes)
        reason = self._bomb(packed, extent.num_bytes)
        if largest > self.limits.max_member_size:
            limit = megabytes(self.limits.max_member_size)
            reason = f"is larger than --max-member-size {limit} ({largest:,} bytes)"
        if reason:
            return RefusedExtent(min(largest, MOST_BYTES), reason)
        if packed != extent.num_bytes:
            self.unpack(extent.num_bytes, key)
        return extent

    def readable_all(self, packed: Sizes, sizes: Sizes) -> NDArray[np.bool_]:
        """Return which images are surely within the limits, bool[n]; count their unpacked bytes.

        The caller checks all other images with `readable`, one by one. If the total would exceed
        its limit, the result is False for every image.
        """
        limits = self.limits
        fits = (packed <= limits.max_member_size) & (sizes <= limits.max_member_size)
        fits &= (sizes <= _SMALL_BYTES) | (-(-sizes // limits.max_ratio) <= packed)
        num_unpacked = int(sizes[fits & (packed != sizes)].sum())
        if self._num_unpacked + num_unpacked > self._most_unpacked:
            fits[:] = False  # so that the error of `readable` names the right member
        else:
            self._num_unpacked += num_unpacked
        return fits

    @property
    def _most_unpacked(self) -> int:
        most = self.limits.max_unpacked
        return _FREE_BYTES + _FREE_RATIO * self._source_bytes if most is None else most

    def unpack(self, num_bytes: int, name: str) -> None:
        self._num_unpacked += num_bytes
        if self._num_unpacked > self._most_unpacked:
            what = f"the source unpacks to more than {megabytes(self._most_unpacked)}"
            raise _above("max_unpacked", name, what)

    def check_ratio(self, packed: int, unpacked: int, name: str) -> None:
        if what := self._bomb(packed, unpacked):
            raise _above("max_ratio", name, what)

    def _bomb(self, packed: int, unpacked: int) -> str:
        most = self.limits.max_ratio
        if unpacked <= max(_SMALL_BYTES, most * packed):
            return ""
        return f"{packed:,} bytes unpack to {unpacked:,} or more, above --max-ratio {most:,}"


def _above(limit: str, name: str, what: str) -> SourceError:
    return SourceError(name, what, f"raise {OptionName(limit)} if you trust the source")
