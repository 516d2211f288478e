"""Files of arrays as sources. The oracle is the library that wrote them."""

import contextlib
import gzip
import io
import pickle
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import shardprep
from shardprep.catalog.arrays import arrow_file
from shardprep.catalog.source_images import list_images
from shardprep.catalog.survey import recipe_text, survey_source
from shardprep.dataset import example, tfrecord
from shardprep.errors import QuestionError, RecipeError, ShardprepError, SourceError
from shardprep.recipe.recipe import make_recipe
from shardprep.writer.finalize import BuildResult
from tests.support.arrays import decoded, hdf5, npy, npz, parquet
from tests.support.builders import (
    SHARED_DATA,
    build,
    jpeg,
    png,
    tree,
    write,
    write_folder,
    zip_bytes,
)
from tests.writer.records import records, rows

Array = NDArray[Any]
GREY = np.random.default_rng(1).integers(0, 256, (7, 9, 12), np.uint8)
COLOUR = np.random.default_rng(2).integers(0, 256, (7, 9, 12, 3), np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2, 0])
PHOTOS = [jpeg(seed=i) for i in range(7)]


def built(source: Path, out: Path, **options: Any) -> BuildResult:
    return build(source, out, size="none", **{"format": "png", "max_rejected": 1.0, **options})


def stored(made: BuildResult) -> dict[str, Array]:
    return {key: decoded(features["image"][0]) for key, features in records(made.path).items()}


def labels(made: BuildResult) -> dict[str, str]:
    names = made.manifest.labels.names
    return {
        key: "" if features["label"] == [-1] else names[features["label"][0]]
        for key, features in records(made.path).items()
    }


def statuses(made: BuildResult) -> dict[str, tuple[str, str]]:
    return {key: (row["status"], row["reason"] or "") for key, row in rows(made.path).items()}


def idx(array: Array) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def csv(rows: Sequence[Any]) -> bytes:
    return "".join(",".join(map(str, row)) + "\n" for row in rows).encode()


def records_file(*examples: dict[str, Any]) -> bytes:
    return b"".join(tfrecord.frame(example.encode(one)) for one in examples)


def rgb(array: Array) -> Array:
    return array if array.shape[-1] == 3 else np.repeat(array[..., None], 3, axis=-1)


VIEWS_OF_LISTS = pa.list_view(pa.large_list_view(pa.uint8()))
TENSORS = pa.FixedShapeTensorArray.from_numpy_ndarray(COLOUR)
FLOATS = (GREY / np.float32(255)).astype(np.float32)
SQUARES = np.random.default_rng(3).integers(0, 256, (7, 8, 8), np.uint8)
PIXELS = [f"pixel{i}" for i in range(64)]
NUMBERS: dict[str, tuple[str, Callable[[], bytes], Array, dict[str, Any]]] = {
    "npy": ("a.npy", lambda: npy(GREY), GREY, {}),
    "npy of colours": ("a.npy", lambda: npy(COLOUR), COLOUR, {}),
    "npy in Fortran's order": ("a.npy", lambda: npy(np.asfortranarray(GREY)), GREY, {}),
    "npy with channels first": ("a.npy", lambda: npy(COLOUR.transpose(0, 3, 1, 2)), COLOUR, {}),
    "npy with rows last": (
        "a.npy", lambda: npy(COLOUR.transpose(1, 2, 3, 0)), COLOUR, {"images": "a.npy::HWCN"},
    ),
    "npy of booleans": ("a.npy", lambda: npy(GREY > 99), np.uint8(255) * (GREY > 99), {}),
    "npy of big-endian int64": ("a.npy", lambda: npy(GREY.astype(">i8")), GREY, {}),
    "npy of uint16": ("a.npy", lambda: npy(GREY.astype(np.uint16) * 257), GREY, {}),
    "npy of floats from 0 to 1": ("a.npy", lambda: npy(FLOATS), GREY, {}),
    "npy of floats with a range": (
        "a.npy", lambda: npy(FLOATS * 20 - 10), GREY, {"depth_range": "-10,10"},
    ),
    "npz in a zip": ("a.zip", lambda: zip_bytes({"b/a.npz": npz(x=GREY)}), GREY, {}),
    "flat rows": ("a.npy", lambda: npy(np.tile(SQUARES, (50, 1, 1)).reshape(350, 64)),
        np.tile(SQUARES, (50, 1, 1)), {}),
    "hdf5": ("a.h5", lambda: hdf5({"g/x": COLOUR}, chunks=(2, 4, 5, 3), compression="gzip"), COLOUR,
        {}),
    "idx.gz": ("t10k-images-idx3-ubyte.gz", lambda: gzip.compress(idx(GREY)), GREY, {}),
    "parquet of nested lists": ("a.parquet", lambda: parquet({"x": GREY.tolist()}), GREY, {}),
    "parquet of list views": (
        "a.parquet", lambda: parquet({"x": pa.array(GREY.tolist(), VIEWS_OF_LISTS)}), GREY, {},
    ),
    "csv of columns": ("a.csv", lambda: csv([PIXELS, *SQUARES.reshape(7, 64).tolist()]), SQUARES,
        {}),
    "csv of one column": ("a.csv", lambda: csv([["id", "pixels"], *(
        [i, " ".join(map(str, one.ravel()))] for i, one in enumerate(SQUARES))]), SQUARES, {}),
    "csv of rows and columns": ("a.csv", lambda: csv(
        [[f"{y}x{x}" for y in range(1, 9) for x in range(1, 9)], *SQUARES.reshape(7, 64)]),
        SQUARES, {}),
    "csv without titles": ("a.csv", lambda: csv([*SQUARES.reshape(7, 64)]), SQUARES, {}),
    "csv by columns": ("a.csv", lambda: csv([*SQUARES.transpose(0, 2, 1).reshape(7, 64)]), SQUARES,
        {"images": "a.csv::NWH"}),
    "idx by columns": ("emnist-images-idx3-ubyte", lambda: idx(GREY.transpose(0, 2, 1)), GREY,
        {"images": "emnist*::NWH"}),
}  # fmt: skip


@pytest.mark.parametrize("form", NUMBERS)
def test_numbers_are_stored_as_the_library_that_wrote_them_reads_them(
    form: str, tmp_path: Path
) -> None:
    name, data, expected, options = NUMBERS[form]
    made = built(write(tmp_path / name, data()), tmp_path / "out", **options)
    found = stored(made)
    assert [key.rpartition("/")[2] for key in sorted(found)] == [
        f"{i:06d}" for i in range(len(expected))
    ]
    for key, one in zip(sorted(found), expected, strict=True):
        assert np.array_equal(found[key], rgb(one)), key


def vlen(rows: list[bytes]) -> Array:
    values = np.empty(len(rows), object)
    values[:] = [np.frombuffer(row, np.uint8) for row in rows]
    return values


def hdf5_rows() -> bytes:
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        file.create_dataset("x", data=vlen(PHOTOS), dtype=h5py.vlen_dtype(np.uint8))
        file["y"] = LABELS
    return out.getvalue()


STRUCTS = [{"bytes": photo, "path": f"{i}.jpg"} for i, photo in enumerate(PHOTOS)]
CLASSES = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["0", "1", "2"]}}}}
FILES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "parquet": ("a.parquet", lambda: parquet({"image": PHOTOS, "label": LABELS})),
    "parquet of Hugging Face": (
        "a.parquet",
        lambda: parquet({"image": STRUCTS, "label": LABELS}, CLASSES, row_group_size=3),
    ),
    "parquet of views": (
        "a.parquet",
        lambda: parquet({
            "image": pa.array(PHOTOS, pa.binary_view()),
            "label": pa.array(map(str, LABELS), pa.string_view()),
        }),
    ),
    "hdf5 of rows": ("a.h5", hdf5_rows),
    "hdf5 of long rows": ("a.h5", lambda: hdf5({"x": np.array(PHOTOS, "S2000000"), "y": LABELS})),
    "tfrecord": ("a.tfrec", lambda: records_file(*(
        {"image": [photo], "class": [int(label)]}
        for photo, label in zip(PHOTOS, LABELS, strict=True)))),
}  # fmt: skip


@pytest.mark.parametrize("form", FILES)
def test_encoded_images_keep_their_bytes_and_labels(form: str, tmp_path: Path) -> None:
    name, data = FILES[form]
    made = built(write(tmp_path / name, data()), tmp_path / "out", format="keep")
    keys = [f"{name}/{i:06d}" for i in range(7)]
    found = records(made.path)
    assert [found[key]["image"] for key in keys] == [[photo] for photo in PHOTOS]
    assert labels(made) == dict(zip(keys, map(str, LABELS), strict=True))
    assert set(statuses(made)) == set(keys)


# --- twins of competitions ---


def test_digit_recognizer(tmp_path: Path) -> None:
    """Train and test are a CSV each; an empty cell is a rejected row."""
    rows: list[list[Any]] = [
        [label, *one.ravel()] for label, one in zip(LABELS, SQUARES, strict=True)
    ]
    rows[4][9] = ""
    files = {
        "train.csv": csv([["label", *PIXELS], *rows]),
        "test.csv": csv([PIXELS, *SQUARES.reshape(7, 64)]),
        "sample_submission.csv": csv([["ImageId", "Label"], [1, 0]]),
    }
    made = built(write(tmp_path / "digits.zip", zip_bytes(files)), tmp_path / "out")
    found = statuses(made)
    assert found.pop("train.csv/000004")[0] == "rejected"
    assert found.pop("sample_submission.csv") == ("skipped", "not an image")
    pixels = stored(made)
    assert found.keys() == pixels.keys()
    for i, one in enumerate(SQUARES):
        assert np.array_equal(pixels[f"test.csv/{i:06d}"], rgb(one))
    assert {s: made.manifest.splits[s].num_records for s in ("train", "test")} == {
        "train": 6, "test": 7,
    }  # fmt: skip
    assert labels(made)["train.csv/000005"] == "2"


@pytest.mark.parametrize("place", [0, 64])
@pytest.mark.parametrize("titles", ["none", "numbers", "of pandas"])
def test_a_column_that_is_one_too_many_for_an_image_is_the_label(
    titles: str, place: int, tmp_path: Path
) -> None:
    """The titles 0, 0.1, 0.2 are those that pandas gives equal cells of a first line."""
    flat = SQUARES.reshape(7, 64).copy()
    flat[:, [0, 63]] = 0  # corners of digits
    rows = np.insert(flat, place, LABELS, axis=1).tolist()
    lines = {"none": [], "numbers": [[*range(65)]], "of pandas": [["0", "0.1", *range(1, 64)]]}
    source = write(tmp_path / "train.csv", csv([*lines[titles], *rows]))
    made = built(source, tmp_path / "out")
    found = stored(made)
    for i, one in enumerate(flat.reshape(7, 8, 8)):
        assert np.array_equal(found[f"train.csv/{i:06d}"], rgb(one))
        assert labels(made)[f"train.csv/{i:06d}"] == str(LABELS[i])


def test_a_label_among_pixels_that_vary_is_not_guessed(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(10, 256, (7, 65))
    with pytest.raises(SourceError, match="holds no image"):
        built(write(tmp_path / "train.csv", csv([*rows])), tmp_path / "out")


def test_images_of_emnist_are_asked_about_because_they_lie_on_their_side(tmp_path: Path) -> None:
    turned = SQUARES.transpose(0, 2, 1).reshape(7, 64)
    rows = csv([*np.insert(turned, 0, LABELS, axis=1)])
    names = [f"emnist-{kind}-{split}.csv" for kind in ("digits", "letters")
             for split in ("train", "test")]  # fmt: skip
    source = write_folder(tmp_path / "in", dict.fromkeys(names, rows))
    with pytest.raises(QuestionError) as asked:
        built(source, tmp_path / "out")
    globs = [f"emnist-{one}" for one in ("digits-*.csv::NWH", "letters-*.csv::NWH",
                                         "digits-*.csv::NHW")]  # fmt: skip
    assert [one.options for one in asked.value.choices] == [{"images": (one,)} for one in globs]
    for glob, images in zip(globs[::2], (SQUARES, turned.reshape(7, 8, 8)), strict=True):
        made = built(source, tmp_path / glob[-3:], images=glob)
        found = stored(made)
        assert len(found) == 14
        assert np.array_equal(found["emnist-digits-test.csv/000003"], rgb(images[3]))
    survey = survey_source(source, tmp_path / "work", lambda _: None)
    assert 'images = "emnist-digits-*.csv::NWH"' in recipe_text(survey)


def test_tables_of_pixels_of_several_sets_are_asked_about(tmp_path: Path) -> None:
    rows = csv([["label", *PIXELS], *np.insert(SQUARES.reshape(7, 64), 0, LABELS, axis=1)])
    files = dict.fromkeys(["fashion_train.csv", "fashion_test.csv", "sign_train.csv"], rows)
    with pytest.raises(QuestionError) as asked:
        built(write_folder(tmp_path / "in", files), tmp_path / "out")
    assert [one.options["images"] for one in asked.value.choices] == [
        ("fashion_*.csv",), ("sign_*.csv",), ("*.csv",),
    ]  # fmt: skip


def test_pickles_are_named_and_never_loaded(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return pytest.fail, ("a pickle was loaded",)

    files = {f"cifar-10-batches-py/{name}": pickle.dumps([Trap()], protocol)
             for protocol, name in enumerate(("batches.meta", "data_batch_1", "test_batch"), 2)
    }  # fmt: skip
    with pytest.raises(
        SourceError, match="holds no image, but Python pickles, which are never read"
    ):
        built(write_folder(tmp_path / "in", files), tmp_path / "out")
    files["x.npy"] = npy(GREY)
    made = built(write_folder(tmp_path / "both", files), tmp_path / "out")
    assert sum("is a Python pickle" in one for one in made.notes) == 3


def test_fer2013(tmp_path: Path) -> None:
    usage = ["Training"] * 4 + ["PublicTest", "PublicTest", ""]
    rows = [
        [label, " ".join(map(str, one.ravel())), use]
        for label, one, use in zip(LABELS, SQUARES, usage, strict=True)
    ]
    rows[1][1] = rows[1][1][:90]  # pixels are missing
    source = write(tmp_path / "fer2013.csv", csv([["emotion", "pixels", "Usage"], *rows]))
    made = built(source, tmp_path / "out", labels="column:emotion", split="column:Usage")
    assert statuses(made)["fer2013.csv/000001"] == (
        "rejected", "has no image: 'pixels' is empty in this row, or of another shape",
    )  # fmt: skip
    assert {split: one.num_records for split, one in made.manifest.splits.items()} == {
        "train": 4, "test": 2,
    }  # fmt: skip
    assert np.array_equal(stored(made)["fer2013.csv/000006"], rgb(SQUARES[6]))


def test_bengaliai_is_read_with_its_table(tmp_path: Path) -> None:
    """Pixels are columns 0, 1, …; labels are in another table, with a doubled and a lost id."""
    flat = np.random.default_rng(4).integers(0, 256, (7, 9 * 12), np.uint8)
    ids = [f"Train_{i}" for i in range(7)]
    columns = {"image_id": ids, **{str(i): flat[:, i] for i in range(flat.shape[1])}}
    table = [["image_id", "vowel"], *([key, i % 3] for i, key in enumerate(ids[:-1])), [ids[0], 0]]
    files = {"train_image_data_0.parquet": parquet(columns), "train.csv": csv(table)}
    source = write(tmp_path / "bengali.zip", zip_bytes(files))
    with pytest.raises(RecipeError, match="WIDTHxHEIGHT"):
        built(source, tmp_path / "out", images="train_image*")
    made = built(
        source, tmp_path / "out", images="*.parquet::12x9", labels="column:vowel",
        join="train.csv:image_id",
    )  # fmt: skip
    found = stored(made)
    assert len(found) == 6  # the last one has no label
    for i in range(6):
        key = f"train_image_data_0.parquet/{i:06d}"
        assert np.array_equal(found[key], rgb(flat[i].reshape(9, 12)))
        assert labels(made)[key] == str(i % 3)
    assert statuses(made)["train_image_data_0.parquet/000006"] == ("skipped", "no label")


def test_pcam_has_its_labels_in_files_of_their_own(tmp_path: Path) -> None:
    prefix = "camelyonpatch_level_2_split_"
    files = {}
    for split, count in (("train", 7), ("valid", 5), ("test", 5)):
        files[f"{prefix}{split}_x.h5"] = hdf5({"x": COLOUR[:count]})
        files[f"{prefix}{split}_y.h5"] = hdf5({"y": (LABELS[:count] > 0).reshape(-1, 1, 1, 1)})
    made = built(write_folder(tmp_path / "pcam", files), tmp_path / "out")
    assert {split: one.num_records for split, one in made.manifest.splits.items()} == {
        "train": 7, "validation": 5, "test": 5,
    }  # fmt: skip
    for key, label in labels(made).items():
        assert label == str(LABELS[int(key[-6:])] > 0).lower()


def test_mnist_has_images_and_labels_of_both_splits(tmp_path: Path) -> None:
    """As IDX files and as Keras's npz; the labels of one split never become those of another."""
    files = {
        f"{name}-{kind}-idx{array.ndim}-ubyte.gz": gzip.compress(idx(array.astype(np.uint8)))
        for name, start in (("train", 0), ("t10k", 3))
        for kind, array in (("images", GREY[start:]), ("labels", LABELS[start:]))
    }
    arrays = {"x_train": GREY, "y_train": LABELS, "x_test": GREY[3:], "y_test": LABELS[3:]}
    one = built(write_folder(tmp_path / "mnist", files), tmp_path / "one")
    two = built(write(tmp_path / "mnist.npz", npz(**arrays)), tmp_path / "two")
    assert two.manifest.labels.found_by == "mnist.npz, column 'y'"
    for made in (one, two):
        found, pixels = labels(made), stored(made)
        assert len(found) == 11
        for key, label in found.items():
            row = int(key[-6:]) + 3 * ("train" not in key)
            assert label == str(LABELS[row])
            assert np.array_equal(pixels[key], rgb(GREY[row]))
        assert made.manifest.splits["test"].num_records == 4


@pytest.mark.thorough
def test_flower_records_of_tensorflow_are_read_in_place(tmp_path: Path) -> None:
    """The TPU sets of Kaggle: examples with and without a class, in folders of splits."""
    tf = pytest.importorskip("tensorflow")
    for split in ("train", "test"):
        path = tmp_path / "flowers" / split / "00-8x8-7.tfrec"
        path.parent.mkdir(parents=True)
        with tf.io.TFRecordWriter(str(path)) as writer:
            for i, photo in enumerate(PHOTOS):
                feature = {
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[photo])),
                    "id": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"id%d" % i])),
                }
                if split == "train":
                    value = tf.train.Int64List(value=[LABELS[i]])
                    feature["class"] = tf.train.Feature(int64_list=value)
                one = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(one.SerializeToString())
    keys = {"format": "keep", "labels": "column:class", "columns": "id", "images": "*.tfrec:image"}
    made = built(tmp_path / "flowers", tmp_path / "out", **keys)
    found = records(made.path)
    for split in ("train", "test"):
        for i, photo in enumerate(PHOTOS):
            one = found[f"{split}/00-8x8-7.tfrec/{i:06d}"]
            assert (one["image"], one["id"]) == ([photo], [b"id%d" % i])
            assert one["label"] == [LABELS[i] if split == "train" else -1]


# --- which files and columns ---


def test_a_source_with_other_images_is_read_as_before(tmp_path: Path) -> None:
    members = {f"{i}.jpg": photo for i, photo in enumerate(PHOTOS)}
    files = {**members, "features.parquet": parquet({"x": GREY.tolist()}), "e.npy": npy(GREY)}
    made = built(write_folder(tmp_path / "photos", files), tmp_path / "out")
    assert records(made.path).keys() == members.keys()


@pytest.mark.parametrize(
    ("names", "classes"), [(("cat", "dog"), ("cat", "dog")), (("a_0", "a_1"), ())]
)
def test_names_of_files_are_classes_unless_they_are_numbered_parts(
    names: tuple[str, str], classes: tuple[str, ...], tmp_path: Path
) -> None:
    files = {f"{name}.npy": npy(GREY[i:]) for i, name in enumerate(names)}
    made = built(write_folder(tmp_path / "drawings", files), tmp_path / "out")
    assert made.manifest.totals.num_written == 13
    assert made.manifest.labels.names == classes


TWO = {"a.h5": hdf5({"rgb": COLOUR, "depth": GREY})}
UNCLEAR: dict[str, tuple[dict[str, bytes], dict[str, Any], str]] = {
    "two arrays": (TWO, {}, "a.h5:rgb"),
    "no such column": (TWO, {"images": "a.h5:grb"}, "depth, rgb"),
    "no such file": (TWO, {"images": "b.h5:rgb"}, "a file of the source: a.h5"),
    "axes": ({"a.npy": npy(GREY[:3])}, {}, "CHW or NHW"),
    "a layout that does not fit": (TWO, {"images": "a.h5:rgb:NCHW"}, "NCHW does not fit"),
    "a range": ({"a.npy": npy(FLOATS * 99)}, {}, "depth.range MIN,MAX"),
    "two arrays of one length": (
        {"a.npz": npz(images=GREY, masks=GREY)}, {}, "images a.npz:images",
    ),
    "objects": ({"a.npy": npy(np.array([{}]))}, {"images": "a.npy"}, "pickled"),
    "objects beside": ({"a.npy": npy(np.array([{}]))}, {}, "looked into a.npy holds pickled"),
    "tensors": (
        {"a.parquet": parquet({"x": TENSORS})}, {}, r"looked into a.parquet \(x \(a tensor;",
    ),
    "no images": ({"a.parquet": parquet({"n": [1, 2]})}, {}, r"looked into a.parquet \(n\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNCLEAR)
def test_what_is_not_clear_is_an_error_that_says_what_to_give(case: str, tmp_path: Path) -> None:
    files, options, text = UNCLEAR[case]
    source = write_folder(tmp_path / "source", files)
    with pytest.raises(ShardprepError, match=text):
        built(source, tmp_path / "out", **options)


def test_init_decides_and_lists_the_other_ways(tmp_path: Path) -> None:
    files = {"a.npz": npz(images=FLOATS * 99, masks=FLOATS)}
    source = write_folder(tmp_path / "source", files)
    survey = survey_source(source, tmp_path / "work", lambda _: None)
    text = recipe_text(survey)
    assert 'images = "a.npz:images"\n# images = "a.npz:masks"' in text
    assert 'depth_range = "0,99"' in text
    write(tmp_path / "shardprep.toml", text.encode())
    assert survey.num_images == 7


@pytest.mark.parametrize("ending", ["h5", "npz"])
def test_init_names_all_files_that_hold_a_sample_each(ending: str, tmp_path: Path) -> None:
    colours = [np.moveaxis(one, -1, 0) for one in COLOUR[:6]]
    pack = hdf5 if ending == "h5" else lambda arrays: npz(**arrays)
    files = {
        f"{'ab'[i % 2]}/{i}.{ending}": pack({"rgb": one, "depth": one[0]})
        for i, one in enumerate(colours)
    }
    source = write_folder(tmp_path / "source", files)
    survey = survey_source(source, tmp_path / "work", lambda _: None)
    first, *others = survey.proposals["images"]
    assert first == f"*.{ending}:rgb:CHW"
    assert f"*.{ending}:depth" in others
    made = built(source, tmp_path / "out", images=first)
    assert made.manifest.totals.num_written == 6
    one = f"a/0.{ending}" if ending == "h5" else f"a/0.{ending}/rgb.npy"
    assert np.array_equal(stored(made)[one], COLOUR[0])


def test_a_dataset_of_shardprep_is_repacked_not_built(tmp_path: Path) -> None:
    made = built(write(tmp_path / "a.npy", npy(GREY)), tmp_path / "out")
    with pytest.raises(SourceError, match="shardprep repack"):
        built(made.path, tmp_path / "again")


# --- rows and files that are not as they should be ---


def test_every_row_is_written_or_rejected_with_a_reason(tmp_path: Path) -> None:
    rows = [*STRUCTS[:3], {"bytes": None, "path": "x"}, None, {"bytes": b"", "path": ""}]
    rows.append({"bytes": b"no image", "path": ""})
    source = write(tmp_path / "a.parquet", parquet({"image": rows}))
    found = statuses(built(source, tmp_path / "out"))
    assert [found[f"a.parquet/{i:06d}"][0] for i in range(7)] == ["written"] * 3 + ["rejected"] * 4
    empty = "has no image: 'image' is empty in this row, or of another shape"
    assert [found[f"a.parquet/{i:06d}"][1] for i in (3, 4)] == [empty, empty]
    assert "a text" in found["a.parquet/000006"][1]


@pytest.mark.parametrize("places", [(1,), range(4, 8)])
def test_lists_of_another_height_than_the_first_are_rejected(
    tmp_path: Path, places: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_file, "_MOST_ROWS", 4)  # also all rows of a batch
    images = [GREY[i % len(GREY)].tolist() for i in range(8)]
    for place in places:
        images[place] = images[place][:-1]
    source = write(tmp_path / "a.parquet", parquet({"x": images}))
    found = statuses(built(source, tmp_path / "out"))
    reasons = {found[f"a.parquet/{i:06d}"] for i in places}
    assert reasons == {("rejected", "has no image: 'x' is empty in this row, or of another shape")}
    others = [one for key, one in found.items() if int(key[-6:]) not in places]
    assert {status for status, _ in others} == {"written"}


def cut(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


def endless_hdf5() -> bytes:
    """Twelve kilobytes that state 10^12 images."""
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        file.create_dataset("x", (10**12, 28, 28), np.uint8, chunks=(64, 28, 28))
    return out.getvalue()


def one_chunk_hdf5() -> bytes:
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        file.create_dataset("x", (1, 60_000, 60_000), np.uint8, chunks=(1, 60_000, 60_000))
    return out.getvalue()


def long_row_hdf5() -> bytes:
    """A row that states 4 GB, in a field that HDF5 trusts."""
    data = bytearray(hdf5_rows())
    with h5py.File(io.BytesIO(data)) as file:
        at = file["x"].id.get_offset()
    data[at : at + 4] = b"\xff" * 4
    return bytes(data)


def linked_hdf5() -> bytes:
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        file["x"] = h5py.ExternalLink("/etc/passwd", "/")
        layout = h5py.VirtualLayout((7, 9, 12), np.uint8)
        layout[:] = h5py.VirtualSource("/etc/passwd", "x", (7, 9, 12))
        file.create_virtual_dataset("y", layout)
    return out.getvalue()


def header(descr: str, shape: str) -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text


FLIPPED = bytearray(records_file(*({"image": [photo]} for photo in PHOTOS)))
FLIPPED[700] ^= 1
HOSTILE: dict[str, tuple[str, Callable[[], bytes]]] = {
    "cut npy": ("a.npy", lambda: cut(npy(GREY))),
    "cut npz": ("a.npz", lambda: cut(npz(x=GREY))),
    "cut idx": ("a-idx3-ubyte", lambda: cut(idx(GREY))),
    "cut idx.gz": ("a-idx3-ubyte.gz", lambda: cut(gzip.compress(idx(GREY)))),
    "cut hdf5": ("a.h5", lambda: cut(hdf5({"x": COLOUR}))),
    "cut parquet": ("a.parquet", lambda: cut(parquet({"image": PHOTOS}))),
    "cut tfrecord": ("a.tfrec", lambda: cut(bytes(records_file({"image": PHOTOS[:1]})))),
    "a flipped bit of a tfrecord": ("a.tfrec", lambda: bytes(FLIPPED)),
    "records that are not examples": ("a.tfrec", lambda: tfrecord.frame(b"\n\x05abc")),
    "huge npy": ("a.npy", lambda: header("|u1", "(1000000000000, 28, 28)")),
    "npy of objects": ("a.npy", lambda: header("|O", "(3, 28, 28)")),
    "npy of a negative shape": ("a.npy", lambda: header("|u1", "(-3, 28, 28)") + b"x" * 99),
    "npy of code": ("a.npy", lambda: header("|u1", "__import__('os').abort()")),
    "huge idx": ("a-idx3-ubyte", lambda: struct.pack(">BBBB3I", 0, 0, 8, 3, *[4 * 10**9] * 3)),
    "endless hdf5": ("a.h5", endless_hdf5),
    "hdf5 of one chunk": ("a.h5", one_chunk_hdf5),
    "hdf5 of a long row": ("a.h5", long_row_hdf5),
    "hdf5 of links": ("a.h5", linked_hdf5),
    "parquet of nothing": ("a.parquet", lambda: b"PAR1" * 9),
    "a deep parquet": ("a.parquet", lambda: parquet({"x": [[[[[[1]]]]]]})),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_an_error_of_one_line(case: str, tmp_path: Path) -> None:
    name, data = HOSTILE[case]
    source = write(tmp_path / name, data())
    with pytest.raises(ShardprepError) as caught:
        built(source, tmp_path / "out", labels="none")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("form", ["a.npy", "a.h5", "a.parquet"])
def test_a_flipped_bit_never_gives_a_traceback(form: str, part: int, tmp_path: Path) -> None:
    data = {"a.npy": npy(GREY), "a.h5": hdf5({"x": GREY}), "a.parquet": parquet({"i": PHOTOS})}
    sound = data[form]
    start = len(sound) - 1200 if form == "a.parquet" else 0  # where their headers are
    for bit in range(8 * start + 299 * part, 8 * min(len(sound), start + 1200), 4 * 299):
        whole = bytearray(sound)
        whole[bit // 8] ^= 1 << bit % 8
        source = write(tmp_path / f"{bit}" / form, bytes(whole))
        with contextlib.suppress(ShardprepError):
            listed = list_images(make_recipe({"source": str(source)}, "test"), tmp_path, print)
            assert listed.images


@pytest.mark.parametrize(
    ("labels", "note"),
    [
        (np.arange(6), "y.npy:y (6,) not used: a column needs one axis, and a row for each"),
        (np.eye(7), "y.npy (7, 7) not used: a column needs one axis, and a row for each"),
        (np.zeros(7, "u1,u1"), "left out y.npy: "),
        (np.arange(7)[:, None], ""),
    ],
)
def test_an_array_of_labels_that_does_not_fit_is_a_note(
    labels: Array, note: str, tmp_path: Path
) -> None:
    source = write_folder(tmp_path / "in", {"x.npy": npy(GREY), "y.npy": npy(labels)})
    made = built(source, tmp_path / "out")
    found = [one for one in made.notes if "not used" in one or "left out" in one]
    assert [one[: len(note)] for one in found] == ([note] if note else [])


def test_two_arrays_in_one_file_are_an_error(tmp_path: Path) -> None:
    source = write(tmp_path / "a.npy", npy(GREY) + npy(GREY))
    with pytest.raises(ShardprepError, match=r"a\.npy: holds several arrays; save each array in"):
        built(source, tmp_path / "out")


def test_a_damaged_npz_of_one_sample_is_rejected(tmp_path: Path) -> None:
    files = {f"{i}.npz": npz(x=GREY) for i in range(3)}
    files["2.npz"] = cut(files["2.npz"])
    source = write_folder(tmp_path / "in", files)
    made = built(source, tmp_path / "out", images="*.npz:x:THW", labels="none", max_rejected=1.0)
    found = statuses(made)
    assert [found[f"{i}.npz/x.npy"][0] for i in range(2)] == ["written"] * 2
    assert found["2.npz"][0] == "rejected"
    assert "truncated" in found["2.npz"][1]
    with pytest.raises(ShardprepError, match="truncated"):
        built(source, tmp_path / "rows", images="*.npz:x:NHW", labels="none")


# --- everything else follows ---


def test_a_set_of_arrays_is_verified_repaired_reused_and_compared(tmp_path: Path) -> None:
    source = write(tmp_path / "a.h5", hdf5({"x": COLOUR, "y": LABELS}))
    made = built(source, tmp_path / "out", shards=2)
    folder = made.path
    whole = tree(folder)
    checked = shardprep.verify(folder)
    assert not checked.problems
    next(folder.glob("*.tfrecord-*")).unlink()
    built(source, tmp_path / "out", shards=2)
    assert tree(folder) == whole
    again = built(source, tmp_path / "again", shards=2, reuse=folder)
    assert again.num_copied == 7
    assert shardprep.diff(folder, Path(again.location)).is_equal


needs_data = pytest.mark.skipif(
    not (SHARED_DATA / "modern.tar").exists(), reason="the real archives are not here"
)


@needs_data
@pytest.mark.thorough
def test_real_records_and_depth_images_are_read_as_by_their_libraries(tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(SHARED_DATA / "modern.tar") as archive:
        archive.extractall(tmp_path, filter="data")
    for path in (tmp_path / "modern" / "tfrecords").glob("*.txt"):
        path.unlink()
    keys = {"format": "keep", "images": "*.tfrecord:image/encoded", "labels": "none"}
    made = built(tmp_path / "modern" / "tfrecords", tmp_path / "out", **keys)
    found = records(made.path)
    for name in ("train", "val", "test"):
        data = (tmp_path / "modern" / "tfrecords" / f"{name}.tfrecord").read_bytes()
        photo = data[data.index(b"\xff\xd8") : data.index(b"\xff\xd9") + 2]  # the only JPEG
        assert found[f"{name}.tfrecord/000000"]["image"] == [photo]
    depth = tmp_path / "modern" / "nyu_depth_h5"
    made = built(depth, tmp_path / "depth", images="*.h5:rgb:CHW", labels="none")
    with h5py.File(depth / "1.h5") as file:
        expected = np.rint(file["rgb"][()].transpose(1, 2, 0) * 255).astype(np.uint8)
    assert np.array_equal(stored(made)["1.h5"], expected)


def test_images_of_a_parquet_may_be_encoded_as_a_dictionary(tmp_path: Path) -> None:
    images = [png(8, 8, seed=i % 2) for i in range(4)]
    columns = {"image": pa.array(images).dictionary_encode(), "label": ["a", "b", "a", "b"]}
    source = write(tmp_path / "a.parquet", parquet(columns))
    result = build(source, tmp_path / "out", size="none", format="png", labels="column:label")
    assert len(records(result.path)) == 4


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    arrays = [pa.array([png(8, 8)]), pa.array(["a"]), pa.array(["b"])]
    table = pa.Table.from_arrays(arrays, names=["image", "label", "label"])
    source = write(tmp_path / "a.parquet", parquet(table))
    with pytest.raises(SourceError, match=r"has several columns called 'label'; rename or drop"):
        build(source, tmp_path / "out")
