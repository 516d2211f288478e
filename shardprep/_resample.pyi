from typing_extensions import Buffer

from shardprep.resample import Box

def resize(
    pixels: Buffer, out: Buffer, box: Box, down_first: bool, simd: bool = True, /
) -> None: ...
