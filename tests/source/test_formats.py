"""Every image format that docs/images.md promises is found in a source, and written."""

from pathlib import Path

import pytest
from PIL import Image

from shardprep.image.decode import DECODERS
from shardprep.image.signatures import IMAGE_SUFFIXES, is_image
from tests.support.builders import build, encoded, jpeg, pixels, write, zip_bytes

XPM = (
    b'/* XPM */\nstatic char *a[] = {\n"2 2 2 1",\n"x c #FF0000",\n". c #0000FF",\n"x.",\n".x"};\n'
)
PICTURE = Image.fromarray(pixels(32, 32))


def written(form: str, mode: str = "RGB") -> bytes:
    return encoded(PICTURE.convert(mode), form)


FORMS = {
    ".bmp": written("BMP"),
    ".dds": written("DDS"),
    ".gif": written("GIF"),
    ".jp2": written("JPEG2000"),
    ".jpg": jpeg(),
    ".pbm": written("PPM", "1"),
    ".pcx": written("PCX"),
    ".pfm": encoded(PICTURE.convert("F"), "PPM"),
    ".pgm": written("PPM", "L"),
    ".png": written("PNG"),
    ".pnm": b"P3 # a comment\n2 1 255\n255 0 0 0 0 255\n",
    ".ppm": written("PPM"),
    ".qoi": written("QOI"),
    ".sgi": written("SGI"),
    ".tga": written("TGA"),
    ".tif": written("TIFF"),
    ".webp": written("WEBP"),
    ".xbm": written("XBM", "1"),
    ".xpm": XPM,
}
UNMARKED = {".tga"}
"""Suffixes of formats that nothing marks but the name."""


@pytest.mark.parametrize("named", [True, False], ids=["by its suffix", "by its bytes"])
def test_every_format_is_built(tmp_path: Path, named: bool) -> None:  # noqa: FBT001 - a parameter
    members = {
        f"{suffix[1:]}/{i}{suffix if named else '.dat'}": data
        for suffix, data in FORMS.items()
        if named or suffix not in UNMARKED
        for i in range(2)
    }
    source = write(tmp_path / "all.zip", zip_bytes(members))
    made = build(source, tmp_path / "out", size="8x8", labels="folder")
    assert made.manifest.totals.num_written == len(members)
    assert not made.manifest.totals.rejected


def test_a_member_that_a_suffix_calls_an_image_is_counted(tmp_path: Path) -> None:
    members = {f"a{suffix}": b"no image" for suffix in IMAGE_SUFFIXES} | {"b.jpg": jpeg()}
    source = write(tmp_path / "all.zip", zip_bytes(members))
    made = build(source, tmp_path / "out", size="8x8", max_rejected=1.0)
    assert sum(made.manifest.totals.rejected.values()) == len(IMAGE_SUFFIXES)


def test_the_decoders_have_no_format_that_is_not_told() -> None:
    told = {Image.registered_extensions().get(suffix) for suffix in IMAGE_SUFFIXES}
    assert set(DECODERS) - told <= {"DIB"}  # a BMP without its first header


def test_texts_are_not_images() -> None:
    for text in (
        b"", b"P", b"P1", b"P6 and more", b"PDF", b"#define A 1\n", b"#define a_width 1\n",
        b"/* XPM", b"\n\n\n\n", b"\n\2a", b"BMW" * 9, b"DDT", b"id,label\n1,cat\n",
    ):  # fmt: skip
        assert not is_image(text)
