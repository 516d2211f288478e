"""A wall clock that can be set for some processes only.

A preloaded library adds seconds to the time of the system. The processes share a file with the
number of seconds. The times of files, which the kernel sets, do not change.
"""

import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.support.paths import DATA

_CODE = DATA / "clock.c"


@dataclass(frozen=True)
class Clock:
    file: Path
    environment: dict[str, str]

    @classmethod
    def made(cls, folder: Path) -> Self | None:
        """Return a clock that is right, or None without a C compiler."""
        compiler = shutil.which("cc")
        if compiler is None:
            return None
        library, file = folder / "clock.so", folder / "clock"
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_CODE), "-ldl"]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return None
        file.write_bytes(struct.pack("l", 0))
        return cls(file, {"LD_PRELOAD": str(library), "SOAK_CLOCK": str(file)})

    def set_off(self, seconds: int) -> None:
        with self.file.open("r+b") as file:
            file.write(struct.pack("l", seconds))
