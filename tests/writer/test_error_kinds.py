"""A program tells by its kind an error after which the same call may work later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardprep.errors import BusyError
from shardprep.storage.lock import locked
from tests.support.builders import animals, build, build_part, write, zip_bytes

if TYPE_CHECKING:
    from pathlib import Path


def test_a_folder_in_use_is_an_error_of_its_own(tmp_path: Path) -> None:
    source = write(tmp_path / "pets.zip", zip_bytes(animals(6)))
    out = tmp_path / "out"
    with locked(out / "pets" / "1.0.0.incomplete"):
        for work in (
            lambda: build(source, out, size="8x8"),
            lambda: build_part(source, out, "1/2", size="8x8"),
        ):
            with pytest.raises(BusyError, match="another build is at work here"):
                work()
