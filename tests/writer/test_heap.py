"""Memory that the threads of a copy keep."""

import platform
from pathlib import Path

import pytest

from tests.support.command import python

HEAPS = """
import ctypes, sys, threading
from shardprep.writer.record_copier import share_heap

if sys.argv[1] == "True":
    share_heap()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
stream = ctypes.c_void_p(libc.fdopen(1, b"w"))
together = threading.Barrier(4)

def work():
    together.wait()
    blocks = [bytearray(10_000) for _ in range(1000)]
    together.wait()

libc.malloc_info(0, stream)
threads = [threading.Thread(target=work) for _ in range(4)]
for one in threads:
    one.start()
for one in threads:
    one.join()
libc.malloc_info(0, stream)
libc.fflush(stream)
"""
"""Prints what glibc says of its heaps before and after four threads allocate at the same time."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc")
@pytest.mark.parametrize("is_shared", [True, False])
def test_threads_make_no_heaps_of_their_own_where_one_is_shared(*, is_shared: bool) -> None:
    said = python("-c", HEAPS, is_shared, cwd=Path(), check=True).stdout
    before, after = (part.count("<heap nr=") for part in said.split("</malloc>")[:2])
    assert before > 0
    assert (after == before) is is_shared
