from shardprep.image.resample import Box, Pixels

def resize(
    pixels: Pixels,
    out: Pixels,
    box: Box,
    down_first: bool,
    simd: bool = True,
    mirrored: bool = False,
    /,
) -> None: ...
