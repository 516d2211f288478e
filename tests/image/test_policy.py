"""Every line of docs/images.md holds for files of its kind; other decoders see the same."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image, ImageCms

from shardprep.dataset.item_table import read_items
from shardprep.image.process import ProcessedImage, Rejection, RejectionKind, process_image
from shardprep.image.signatures import is_image
from shardprep.image.spec import Format, ImageSpec
from tests.image.policy import (
    CASES,
    CUT,
    MIN_WRITTEN_OF_OTHERS,
    NOISY,
    PAGE,
    RAMP16,
    RECOVERED,
    STARVED_MEGABYTES,
    Case,
    Line,
    image,
    outcome,
    page_text,
    png16,
    whole,
)
from tests.support.builders import SHARED_DATA, build, encoded, jpeg, pixels, png, write_folder
from tests.support.odd_images import (
    ADOBE_RGB,
    Array,
    cmyk,
    cmyk_profile,
    furthest,
    gamma,
    grey,
    png_by_hand,
    png_chunk,
    rgb_profile,
    ycck_jpeg,
)


def stored(result: ProcessedImage | Rejection) -> Array:
    """Return the pixels of a result that must not be a rejection."""
    assert isinstance(result, ProcessedImage), result
    return np.frombuffer(result.data, np.uint8).reshape(result.height, result.width, 3)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize(("line", "case"), CASES.values(), ids=CASES)
def test_every_line_of_the_policy_holds(line: Line, case: Case) -> None:
    result = outcome(case)
    if case.kind:
        assert isinstance(result, Rejection)
        assert result.kind == case.kind
        assert f"`{case.kind}`" in line.result or line.what.startswith("the same with")
        assert case.says in result.reason
        assert len(result.reason.splitlines()) == 1
        return
    picture = stored(result)
    if case.expected is not None:
        assert line.within is not None
        assert furthest(picture, np.rint(case.expected)) <= line.within
    assert case.says in cast("ProcessedImage", result).damage


def test_the_page_has_the_tables_of_this_policy_and_every_kind_of_rejection() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_text(page), "run: python -m tests.image.policy"
    assert not [kind for kind in get_args(RejectionKind) if f"`{kind}`" not in page]


# --- independent decoders -----------------------------------------------------------------------


@pytest.mark.thorough
def test_tensorflow_sees_16_bits_alike() -> None:
    import tensorflow as tf

    picture = pixels(24, 32, seed=5)
    for values in (RAMP16, picture.astype(np.uint16) * 257 + 100 * (picture < 255)):
        data = png16(values)
        seen = tf.io.decode_png(data, channels=3, dtype=tf.uint16).numpy() / 257
        assert furthest(stored(outcome(Case(data=data))), np.rint(seen)) <= 1


@pytest.mark.parametrize("black", [0, 100])
def test_tensorflow_sees_cmyk_and_ycck_alike(black: int) -> None:
    import tensorflow as tf

    picture = pixels(24, 32, seed=5)
    for data in (encoded(cmyk(picture, black)[0], quality=95), ycck_jpeg(picture, black)[0]):
        seen = tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE").numpy()
        assert furthest(stored(outcome(Case(data=data))), seen) <= 2


def test_tensorflow_sees_the_colours_of_a_profile_after_keep() -> None:
    """It ignores profiles: the pixels must have their sRGB colours."""
    import tensorflow as tf

    picture = pixels(48, 64)
    data = encoded(image(picture), quality=95, icc_profile=rgb_profile(ADOBE_RGB, gamma(2.2)))
    result = process_image(data, ImageSpec(size=None, fit="none", format="keep", quality=95))
    assert isinstance(result, ProcessedImage)
    assert result.data != data
    seen = tf.io.decode_jpeg(result.data).numpy().astype(int)
    assert np.abs(seen - stored(outcome(Case(data=data)))).mean() < 3
    assert np.abs(seen - tf.io.decode_jpeg(data).numpy()).mean() > 6


# --- any damage ---------------------------------------------------------------------------------


@given(st.sampled_from(sorted(CUT)), st.floats(0, 1), st.sampled_from(["reject", "recover"]))
@example("DDS", 0.03125, "reject")
@example("SGI", 0.015625, "reject")
@example("PPM", 0.017, "reject")
def test_a_truncated_file_is_never_taken_for_garbage(name: str, share: float, how: str) -> None:
    data = whole(name)
    part = data[: int(len(data) * share**2)]
    result = outcome(Case(data=part, keys={"truncated": how}))
    if isinstance(result, Rejection):
        known_by_its_start = is_image(part) and len(part) >= 18
        assert result.kind == ("truncated" if known_by_its_start else result.kind)
        assert result.kind in ("truncated", "not_an_image")


@given(
    st.sampled_from([rgb_profile(ADOBE_RGB, gamma(2.2))[:512], cmyk_profile(np.eye(16, 3) * 50)]),
    st.lists(st.tuples(st.integers(0, 511), st.binary(min_size=1, max_size=4)), max_size=5),
)
def test_a_damaged_profile_does_not_reject_the_picture(
    profile: bytes, patches: list[tuple[int, bytes]]
) -> None:
    damaged = bytearray(profile)
    for at, patch in patches:
        damaged[at : at + len(patch)] = patch
    for one, form in ((image(NOISY), "PNG"), (image(NOISY).convert("CMYK"), "TIFF")):
        data = encoded(one, form, icc_profile=bytes(damaged))
        assert isinstance(outcome(Case(data=data)), ProcessedImage)


# --- what no single file shows ------------------------------------------------------------------


@pytest.mark.parametrize("form", ["jpeg", "keep", "png"])
def test_an_srgb_profile_changes_nothing(form: Format) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    spec = ImageSpec(size=None, fit="none", format=form)
    marked = jpeg(icc_profile=profile)
    one, two = process_image(jpeg(), spec), process_image(marked, spec)
    assert isinstance(one, ProcessedImage)
    assert isinstance(two, ProcessedImage)
    assert two.data == (marked if form == "keep" else one.data)


def test_an_image_of_several_tiles_is_converted_like_a_small_one() -> None:
    ramp = np.linspace(0, 1, 700 * 800).reshape(700, 800)
    wide = image((ramp * 65_535).astype(np.uint16))
    inks = image(pixels(700, 800)).convert("CMYK")
    line = image(np.resize(pixels(1, 300_000), (2, 300_000, 3)))
    for one, form, expected in (
        (image((ramp * 9 - 3).astype(np.float32)), "TIFF", grey(ramp * 255)),
        (wide, "PNG", grey(np.asarray(wide) / 257)),
        (inks, "TIFF", np.asarray(inks.convert("RGB"))),
        (line, "PNG", np.asarray(line)),
    ):
        assert furthest(stored(outcome(Case(data=encoded(one, form)))), expected) <= 1, one.mode


@pytest.mark.parametrize("name", RECOVERED)
def test_the_recovered_part_is_the_beginning_of_the_picture(name: str) -> None:
    data = whole(name)
    cut = Case(data=data[: len(data) * 6 // 10], keys={"truncated": "recover"})
    picture, complete = stored(outcome(cut)), stored(outcome(Case(data=data)))
    if "progressive" in name:
        assert np.abs(picture.astype(int) - complete).mean() < 25
    else:
        assert (picture == complete).mean() > 0.4
        assert furthest(picture, complete) > 50
    assert furthest(picture, stored(outcome(cut))) == 0
    assert isinstance(outcome(Case(data=cut.data)), Rejection)  # recovering changes no setting


def test_a_recovered_file_does_not_depend_on_files_decoded_before() -> None:
    cut = Case(data=whole("PNG")[:20_000], keys={"truncated": "recover"})
    before = stored(outcome(cut)).copy()
    for name in CUT:
        outcome(Case(data=whole(name)))
    assert furthest(stored(outcome(cut)), before) == 0


def test_the_item_table_has_formats_and_damage(tmp_path: Path) -> None:
    data = whole("JPEG")
    source = write_folder(
        tmp_path / "photos",
        {
            "cat/a.jpg": png(),
            "cat/b.png": jpeg(seed=1),
            "dog/cut.jpg": data[: len(data) // 2],
            "dog/stray.jpg": jpeg()[:20] + bytes(9) + jpeg()[20:],
            "dog/lfs.jpg": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n",
        },
    )
    keys: dict[str, Any] = {"size": "32x32", "max_rejected": "50%"}
    result = build(source, tmp_path / "out", truncated="recover", **keys)
    columns = ["key", "status", "kind", "reason", "original_format"]
    rows = {
        row["key"]: row for row in read_items(result.path / "items.parquet", columns).to_pylist()
    }
    assert rows["cat/a.jpg"]["original_format"] == "png"
    assert rows["cat/b.png"]["original_format"] == "jpeg"
    assert (rows["dog/cut.jpg"]["status"], rows["dog/cut.jpg"]["kind"]) == ("written", None)
    assert rows["dog/cut.jpg"]["reason"].startswith("recovered: ")
    assert rows["dog/stray.jpg"]["reason"].startswith("damaged: ")
    assert "git lfs pull" in rows["dog/lfs.jpg"]["reason"]
    totals = result.manifest.totals
    assert (totals.num_written, totals.num_damaged) == (4, 2)
    assert totals.rejected == {"not_an_image": 1}
    strict = build(source, tmp_path / "strict", **keys).manifest.totals
    assert (strict.num_damaged, strict.rejected) == (1, {"not_an_image": 1, "truncated": 1})


def test_limits_of_images_are_keys_of_the_recipe(tmp_path: Path) -> None:
    source = write_folder(
        tmp_path / "photos",
        {"a/1.png": png(), "a/2.png": png(8, 9), "b/3.png": png(16, 65), "b/4.png": png(90, 80)},
    )
    totals = build(
        source, tmp_path / "out",
        size="32x32", min_side=16, max_aspect=4, max_pixels=7000, max_rejected="100%",
    ).manifest.totals  # fmt: skip
    assert totals.rejected == {"too_elongated": 1, "too_many_pixels": 1, "too_small": 1}


MEMORY = """
import resource, sys
from shardprep.image.process import process_image
from shardprep.image.spec import ImageSpec
data = sys.stdin.buffer.read()
process_image(data[:1000], ImageSpec())
pages = int(open("/proc/self/statm").read().split()[0])
most = pages * resource.getpagesize() + {megabytes} * 1_000_000
resource.setrlimit(resource.RLIMIT_AS, (most, most))
result = process_image(data, ImageSpec())
print(type(result).__name__, getattr(result, "kind", ""), getattr(result, "reason", ""))
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for less memory")
@pytest.mark.parametrize("megabytes", [*STARVED_MEGABYTES, 250])
def test_a_lack_of_memory_is_not_a_fault_of_the_image(megabytes: int) -> None:
    """Too little for a decoder, too little for the conversion, and enough."""
    indices = png_by_hand(8000, 8000, 1, 3, bytes(8000 * 1001))
    picture = indices[:33] + png_chunk(b"PLTE", bytes(range(6))) + indices[33:]
    done = subprocess.run(
        [sys.executable, "-c", MEMORY.format(megabytes=megabytes)],
        input=picture, capture_output=True, check=True,
    )  # fmt: skip
    said = done.stdout.decode()
    assert "undecodable" not in said
    if megabytes in STARVED_MEGABYTES:
        assert said == "Rejection crashed the image needs more memory than a worker may use\n"


# --- files of other people ----------------------------------------------------------------------

TORTURE = SHARED_DATA / "torture-images.tar"
PROCESS = """
import json, re, sys, tarfile
from pathlib import Path
from shardprep.image.process import process_image
from shardprep.image.spec import ImageSpec
kinds = {}
with tarfile.open(sys.argv[1]) as tar:
    for member in filter(tarfile.TarInfo.isfile, tar):
        data = tar.extractfile(member).read()
        result = process_image(data, ImageSpec())
        if getattr(result, "kind", "") == "truncated":
            process_image(data, ImageSpec(truncated="recover"))
        kinds[member.name] = getattr(result, "kind", "") and [result.kind, result.reason]
# Not ru_maxrss, which begins with the memory of the parent process.
peak = int(re.search("VmHWM: *(.*) kB", Path("/proc/self/status").read_text())[1]) * 1024
print(json.dumps([peak, kinds]))
"""


@pytest.mark.thorough
@pytest.mark.skipif(not TORTURE.is_file(), reason="the shared images are not here")
def test_odd_images_of_others_are_written_or_rejected_in_less_than_a_gigabyte() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, str(TORTURE)], capture_output=True, check=True
    )
    peak, ends = json.loads(done.stdout)
    assert peak < 1_000_000_000
    lines = TORTURE.with_suffix(".tsv").read_text().splitlines()[1:]
    expected = {line.split("\t")[0]: line.split("\t")[2] for line in lines}
    assert not {
        name: end for name, end in ends.items() if end and expected.get(name) == "decode ok"
    }
    assert all(len(end) == 2 and end[1] for end in ends.values() if end)
    assert "crashed" not in {end[0] for end in ends.values() if end}
    assert sum(not end for end in ends.values()) > MIN_WRITTEN_OF_OTHERS


@pytest.mark.thorough
def test_a_worker_takes_the_memory_that_the_page_says(tmp_path: Path) -> None:
    """One row of the table, in a process of its own."""
    row = re.search(
        r"^\| PNG, 12 megapixels \| \d+ MB \| (\d+) MB \|", PAGE.read_text(), re.MULTILINE
    )
    assert row is not None
    photo = Image.fromarray(pixels(60, 80)).resize((4000, 3000), Image.Resampling.BICUBIC)
    photo.save(tmp_path / "photo.png", compress_level=1)
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from shardprep.image.process import ProcessedImage, process_image\n"
        "from shardprep.image.spec import ImageSpec\n"
        "def peak():\n"
        "    status = Path('/proc/self/status').read_text()\n"
        "    return int(status.split('VmHWM:')[1].split()[0]) * 1024\n"
        "process_image(Path(sys.argv[1]).read_bytes(), ImageSpec())\n"
        "before = peak()\n"
        "data = Path(sys.argv[2]).read_bytes()\n"
        "assert isinstance(process_image(data, ImageSpec()), ProcessedImage)\n"
        "print(peak() - before - len(data))\n"
    )
    (tmp_path / "small.png").write_bytes(png())
    files = [str(tmp_path / name) for name in ("small.png", "photo.png")]
    done = subprocess.run(
        [sys.executable, "-c", program, *files], capture_output=True, text=True, check=True
    )
    assert 0.5 < int(done.stdout) / 1e6 / int(row[1]) < 1.5
