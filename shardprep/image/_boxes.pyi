from typing_extensions import Buffer

def place(
    boxes: Buffer,
    out: Buffer,
    size: tuple[float, float],
    x: tuple[float, float, float],
    y: tuple[float, float, float],
    /,
) -> bool: ...
