"""Near copies are found and named, and other images are not."""

import io
import zipfile
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from benchmarks.changes import CHANGES, changed
from shardprep.image import near_candidates
from shardprep.image import near_pairs as near_search
from shardprep.image.near_candidates import candidates, turned
from shardprep.image.near_pairs import changes, joined, near_groups, near_pairs
from shardprep.image.thumbnail import SIDE, THUMBNAIL, thumbnail
from tests.support.builders import SHARED_DATA
from tests.support.planted import file, photo

Thumbnails = np.ndarray[Any, Any]
NUMBER = 40
TURNS = (
    None, Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.FLIP_TOP_BOTTOM,
    Image.Transpose.ROTATE_180, Image.Transpose.TRANSPOSE, Image.Transpose.ROTATE_270,
    Image.Transpose.ROTATE_90, Image.Transpose.TRANSVERSE,
)  # fmt: skip
"""How Pillow names the turns."""


def thumbnails(*images: Image.Image) -> Thumbnails:
    return np.array([thumbnail(np.asarray(image)) for image in images])


def pairs_of(found: Thumbnails) -> list[tuple[int, int]]:
    pairs = near_pairs(found)
    ends = np.sort(np.stack([pairs["inner"], pairs["outer"]], axis=1), axis=1)
    return [(one, other) for one, other in ends.tolist()]


@cache
def photos() -> list[bytes]:
    """Return real photos where they are at hand, and otherwise drawn ones."""
    if not SHARED_DATA.is_dir():
        return [file(photo(i, 200, 260), quality=92) for i in range(NUMBER)]
    with zipfile.ZipFile(SHARED_DATA / "dogs-vs-cats.zip") as outer:
        inner = zipfile.ZipFile(io.BytesIO(outer.read("train.zip")))
    names = [name for name in sorted(inner.namelist()) if name.endswith(".jpg")]
    return [inner.read(name) for name in names[:NUMBER]]


def stored(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data)).convert("RGB")
    return ImageOps.fit(image, (112, 112), Image.Resampling.BICUBIC)


@cache
def originals() -> Thumbnails:
    return thumbnails(*map(stored, photos()))


@pytest.mark.parametrize("kind", CHANGES)
def test_each_kind_of_copy_is_found_and_no_other_image(kind: str) -> None:
    """Of real photos two are near copies of a third at most; drawn ones never are."""
    copies = [stored(changed(data, kind, i)) for i, data in enumerate(photos())]
    pairs = pairs_of(np.concatenate([originals(), thumbnails(*copies)]))
    assert sum(other - one == NUMBER for one, other in pairs) >= 0.95 * NUMBER
    assert all(other - one == NUMBER for one, other in pairs)


@pytest.mark.parametrize("turn", range(1, 8))
def test_turns_are_those_of_pillow_and_named(turn: int) -> None:
    image = Image.fromarray(photo(5, 128, 128))
    method = TURNS[turn]
    assert method is not None
    other = image.transpose(method)
    assert (turned(np.asarray(image.convert("L")), turn) == np.asarray(other.convert("L"))).all()
    found = thumbnails(image, other)
    (pair,) = near_pairs(found)
    grey = found["grey"].astype(int)
    assert np.abs(turned(grey[pair["inner"]], pair["turn"]) - grey[pair["outer"]]).max() <= 2
    words = {1: "mirrored", 3: "turned by 180°", 4: "mirrored and turned", 5: "turned by 90°"}
    assert changes(found, pair) == words.get(turn, changes(found, pair))


@pytest.mark.parametrize("box", [(20, 10, 240, 190), (0, 0, 220, 180), (25, 20, 256, 192)])
def test_the_window_is_where_the_crop_was_cut(box: tuple[int, int, int, int]) -> None:
    image = Image.fromarray(photo(9, 192, 256))
    pair = near_pairs(thumbnails(image.crop(box), ImageOps.mirror(image)))[0]
    left, top, right, bottom = box
    expected = [1 - right / 256, top / 192, (right - left) / 256, (bottom - top) / 192]
    assert pair["window"] == pytest.approx(expected, abs=0.02)
    assert (pair["inner"], pair["outer"], pair["turn"], pair["is_copy"]) == (0, 1, 1, True)


def test_copies_are_described() -> None:
    image = Image.fromarray(photo(9, 192, 256))
    part = image.crop((20, 10, 238, 188))
    share = 218 * 178 / (192 * 256)
    for other, words in (
        (part, f"cropped to {share:.0%}"),
        (ImageOps.expand(image, 20, "white"), "with a border"),
        (image.point([100 + level // 3 for level in range(256)] * 3), "contrast 3 times"),
        (image.convert("L").convert("RGB"), "grey"),
        (image.resize((90, 70)), "same picture"),
    ):
        found = thumbnails(image, other)
        assert [changes(found, pair) for pair in near_pairs(found)] == [words]


def test_copies_of_a_gradient_are_found() -> None:
    """All of its structure is in one frequency, as in a sky or a microscope's background."""
    levels = np.tile(np.linspace(60, 200, 128).round().astype(np.uint8)[:, None], (128, 1, 3))
    out = io.BytesIO()
    Image.fromarray(levels).save(out, "JPEG", quality=60)
    assert pairs_of(thumbnails(Image.fromarray(levels), Image.open(out))) == [(0, 1)]


def test_pairs_do_not_depend_on_cores_and_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells are small, so that most of them are not searched for an image."""
    monkeypatch.setattr(near_candidates, "_CELL_SIZE", 50)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    copies = [changed(data, "mirrored", i) for i, data in enumerate(photos())]
    found = thumbnails(*map(stored, [*photos(), *copies]))
    pairs = near_pairs(found)
    assert np.mean(np.abs(pairs["inner"] - pairs["outer"]) == NUMBER) == 1
    assert len(pairs) >= 0.95 * NUMBER
    for cores, step in ((1, 256), (4, 7)):
        for module in (near_candidates, near_search):
            monkeypatch.setattr(module, "usable_cores", lambda cores=cores: cores)
            monkeypatch.setattr(module, "_AT_ONCE", step)
        assert near_pairs(found).tobytes() == pairs.tobytes()


def test_rows_that_move_on_their_own_are_a_scene() -> None:
    """As the ground in front of a moving camera."""
    wide, are_copies = photo(5, 128, 176), []
    for step in (0, 2):
        rows = [wide[i : i + 16, i // 16 * step : i // 16 * step + 128] for i in range(0, 128, 16)]
        frames = Image.fromarray(wide[:, :128]), Image.fromarray(np.concatenate(rows))
        are_copies += near_pairs(thumbnails(*frames))["is_copy"].tolist()
    assert are_copies == [True, False]


def test_changed_content_is_the_same_scene() -> None:
    pixels, others = photo(3, 128, 128).copy(), photo(4, 128, 128)
    pixels[40:84, 50:90] = others[40:84, 50:90]
    found = thumbnails(Image.fromarray(photo(3, 128, 128)), Image.fromarray(pixels))
    (pair,) = near_pairs(found)
    assert not pair["is_copy"]
    assert changes(found, pair).startswith("same scene")


def test_images_that_only_look_alike_when_blurred_are_not_pairs() -> None:
    draw, blurred = np.random.default_rng(0), Image.fromarray(photo(7)).resize((8, 8))
    smooth = np.asarray(blurred.resize((128, 128), Image.Resampling.BICUBIC)).astype(int)
    noisy = (smooth + 40 * draw.standard_normal((4, 128, 128, 1)).round()).clip(0, 255)
    found = thumbnails(*map(Image.fromarray, noisy.astype(np.uint8)))
    assert len(candidates(found["grey"])) > 0
    assert pairs_of(found) == []


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="needs the photos")
def test_frames_of_a_moving_camera_are_scenes() -> None:
    """Frames 24 apart of a drive: near objects move more than far ones."""
    with zipfile.ZipFile(SHARED_DATA / "camvid.zip") as archive:
        names = [name for name in archive.namelist() if "val/0016E5_" in name]
        frames = [Image.open(io.BytesIO(archive.read(name))) for name in sorted(names)]
        found = thumbnails(*(frame.convert("RGB") for frame in frames))
    pairs = near_pairs(found)
    assert len(pairs) >= 5
    assert not pairs["is_copy"].any()


def test_one_shape_in_other_colours_is_another_image() -> None:
    shape = np.zeros((64, 64), bool)
    shape[10:40, 12:30] = shape[30:56, 20:56] = True
    drawn = [Image.fromarray(np.where(shape[..., None], colour, 90).astype(np.uint8))
             for colour in ((220, 60, 60), (60, 142, 60), (215, 62, 57))]  # fmt: skip
    assert pairs_of(thumbnails(*drawn)) == [(0, 2)]


def test_unreadable_and_blank_images_have_no_copies() -> None:
    found = np.repeat(thumbnails(Image.fromarray(photo(1))), 3)
    found["decoded"][1] = False
    assert pairs_of(found) == [(0, 2)]
    assert pairs_of(np.repeat(thumbnails(Image.new("RGB", (64, 64), "teal")), 3)) == []
    assert pairs_of(np.zeros(0, THUMBNAIL)) == []


def test_many_equal_images_are_one_group() -> None:
    found = np.repeat(thumbnails(Image.fromarray(photo(1))), 5000)
    assert near_groups(len(found), near_pairs(found)).max() == 0


def test_frames_of_a_film_are_few_groups() -> None:
    """A slow pan over a wide photo; each frame looks like many others."""
    wide = Image.fromarray(photo(6, 96, 2000))
    frames = [wide.crop((left, 0, left + 96, 96)) for left in range(0, 600, 2)]
    found = thumbnails(*frames)
    pairs = near_pairs(found)
    assert len(np.unique(near_groups(len(found), pairs))) <= 2
    assert len(pairs) < 10 * len(frames)


def test_pairs_do_not_depend_on_the_order_of_the_images() -> None:
    copies = [changed(data, "cropped and mirrored", i) for i, data in enumerate(photos()[:20])]
    found = thumbnails(*map(stored, [*photos()[:20], *copies]))
    order = np.random.default_rng(3).permutation(len(found))
    again = [tuple(sorted((order[one], order[other]))) for one, other in pairs_of(found[order])]
    assert sorted(again) == sorted(pairs_of(found))


def walked(number: int, pairs: list[tuple[int, int]]) -> list[int]:
    """Return the first member of the group of each element."""
    found = list(range(number))
    for _ in range(number):
        for one, two in pairs:
            found[one] = found[two] = min(found[one], found[two])
    return found


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=40))
def test_pairs_join_to_groups(pairs: list[tuple[int, int]]) -> None:
    found = joined(np.arange(31), np.array(pairs, np.int64).reshape(-1, 2))
    assert found.tolist() == walked(31, pairs)


@pytest.mark.parametrize("colour", [(0, 0, 0), (250, 250, 250), (200, 30, 90)])
def test_borders_are_cut_off(colour: tuple[int, int, int]) -> None:
    image = Image.fromarray(photo(2, 150, 120))
    framed = ImageOps.expand(image, (9, 21, 14, 30), colour)
    one, other = thumbnails(image, framed)
    assert (one["grey"] == other["grey"]).all()
    left, top, width, height = (other["box"] * (143, 201, 143, 201)).tolist()
    assert (left, top, width, height) == pytest.approx((9, 21, 120, 150), abs=0.01)
    assert one["grey"].shape == (SIDE, SIDE)
