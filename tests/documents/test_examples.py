"""Pages whose code runs, in its order, on small sets, and does what they say."""

import contextlib
import csv
import importlib.util
import pickle
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep import reader
from shardprep.dataset.schema import BOX, BOX_LABEL
from shardprep.errors import DatasetError
from shardprep.exporter.export import LAYOUTS
from shardprep.reader import Dataset, ReadConfig
from tests.documents.page_code import examples, executed, page, traced_once
from tests.support.annotated import annotated
from tests.support.builders import (
    SHARED_DATA,
    animals,
    build,
    code_for_sample,
    jpeg,
    pixels,
    png,
    write,
    write_folder,
    zip_bytes,
)
from tests.support.command import ran
from tests.support.paths import shared_folder
from tests.support.planted import file, photo
from tests.support.processes import ONE_CORE, Program, run_program
from tests.support.torchvision import need_module

ENDS = {
    "jax": """
assert sum(losses[-4:]) < 4 * losses[0]
assert (images == [*train.batches(64, seed=0)][1][0]).all()
assert (half == images[:32]).all()
assert len(images.addressable_shards) == 8
""",
    "grain": """
assert restored.get_state() == iterator.get_state()
assert [len(labels) for _, labels in parts] == [20, 20, 20]
""",
}
"""Name of a page → what its code must have done."""


@pytest.mark.thorough
def test_python_md(tmp_path: Path) -> None:
    blocks = examples("python")
    assert len(blocks) == 4
    begin = ["import os, sys", "os.chdir(sys.argv[1])", code_for_sample(tmp_path / "drawn")]
    code = "\n".join([*begin, *blocks, "print(images.shape)"])
    assert run_program(code, tmp_path) == "(32, 64, 64, 3)\n"


def test_sources_md(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = executed(examples("sources"))["result"]
    labels = result.manifest.labels.names[:3]
    shown = f"{result.manifest.splits['train'].num_records} {labels}"
    assert f"This prints `{shown}`." in page("sources")


def test_kaggle_md_converts_the_pickles_of_cifar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6, 2, 3, 32, 32), np.uint8)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    batches: dict[str, dict[bytes, Any]] = {
        name: {b"data": own.reshape(2, 3072), b"labels": [1, 0]}
        for name, own in zip(names, pixels, strict=True)
    }
    batches["batches.meta"] = {b"label_names": [b"airplane", b"automobile"]}
    files = {name: pickle.dumps(one, 2) for name, one in batches.items()}
    write_folder(tmp_path / "cifar-10-batches-py", files)
    monkeypatch.chdir(tmp_path)
    path = executed(examples("kaggle"))["cifar"].path
    test = Dataset(path, "test")
    images, labels = zip(test[0], test[1], strict=True)
    assert np.array_equal(np.stack(images), pixels[5].transpose(0, 2, 3, 1))
    assert [test.class_names[one] for one in labels] == ["automobile", "airplane"]
    assert len(Dataset(path, "train")) == 10


@pytest.mark.thorough
def test_reading_md(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {**animals(90), **{f"test/{i:03}.jpg": jpeg(seed=i) for i in range(70)}}
    source = write(tmp_path / "dogs_vs_cats.zip", zip_bytes(members))
    build(source, tmp_path / "tfrecords", size="16x12", shards=3)
    more = write(tmp_path / "more_pets.zip", zip_bytes(animals(20)))
    build(more, tmp_path / "tfrecords", size="16x12")
    monkeypatch.chdir(tmp_path)
    sample = "".join(f"{i:03},0.5,0.5\n" for i in reversed(range(70)))
    Path("sample_submission.csv").write_text(f"id,dog,cat\n{sample}")
    blocks = examples("reading")
    assert len(blocks) == len(re.findall(r"^## ", page("reading"), re.MULTILINE)) - 1
    found = executed([block.replace("/tmp/dogs", str(tmp_path / "cache")) for block in blocks])
    assert found["state"]["batch"] == 1
    assert len(found["arrays"]) == 2  # 81 + 18 records
    header, *rows = csv.reader((tmp_path / "submission.csv").read_text().splitlines())
    test = Dataset("tfrecords/dogs_vs_cats", "test", as_supervised=False)
    scores = found["model"].predict(np.stack([item["image"] for item in test]), verbose=0)
    assert header == ["id", "label"]
    assert dict(rows) == {
        item["image/filename"].split("/")[-1][:3]: ("cat", "dog")[int(score.argmax())]
        for item, score in zip(test, scores, strict=True)
    }
    assert sorted(dict(rows)) == [f"{i:03}" for i in range(70)]
    asked, *written = csv.reader((tmp_path / "probabilities.csv").read_text().splitlines())
    assert asked == ["id", "dog", "cat"]
    assert [name for name, *_ in written] == [f"{i:03}" for i in reversed(range(70))]
    assert {name: asked[1:][dog < cat] for name, dog, cat in written} == dict(rows)
    shapes = sorted((*images.shape, len(labels)) for images, labels in found["train"])
    assert shapes == [(26, 12, 16, 3, 26), (64, 12, 16, 3, 64)]  # without a seed, in any order


def test_options_that_reading_md_names_exist() -> None:
    fields = set(ReadConfig.__dataclass_fields__)
    named = set(re.findall(r"ReadConfig\((\w+)=|, (\w+)=3\)`", page("reading")))
    assert {one for pair in named for one in pair if one} <= fields


@pytest.mark.thorough
def test_tensorflow_md(shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tfrecords").symlink_to(shapes / "tfrecords")
    monkeypatch.chdir(tmp_path)
    found = executed(examples("tensorflow"))
    undisturbed = Dataset("tfrecords/shapes", "train[:90%]").batches(64, seed=0)
    next(undisturbed)
    second, _ = next(undisturbed)
    np.testing.assert_array_equal(found["images"], second)
    np.testing.assert_array_equal(found["half"], second[:32])
    assert (tmp_path / "run" / "state").exists()


@pytest.mark.thorough
def test_selections_md(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {**animals(90), **{f"test/{i:03}.jpg": jpeg(seed=i) for i in range(9)}}
    source = write(tmp_path / "dogs_vs_cats.zip", zip_bytes(members))
    build(source, tmp_path / "tfrecords", size="16x12", labels="prefix", shards=3)
    (tmp_path / "near-leaks.csv").write_text("key\ntrain/cat.1.jpg\ntest/001.jpg\n")
    monkeypatch.chdir(tmp_path)
    found = executed(examples("selections"))
    assert (len(found["named"]), len(found["clean"]), len(found["few"])) == (2, 89, 10)
    assert len(found["dogs"]) == 45
    assert found["scores"][0] == (72, 18)
    assert found["weights"] == {0: 1.0, 1: 1.0}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["jax", "grain"])
def test_jax_md_and_grain_md(name: str, shapes: Path, tmp_path: Path) -> None:
    """On eight devices. The second batch of a resumed run is that of the first run."""
    if not all(map(importlib.util.find_spec, ("jax", "grain"))):
        pytest.skip("JAX or Grain is not installed")
    (tmp_path / "tfrecords").symlink_to(shapes / "tfrecords")
    code = "\n".join(["import os, sys", "os.chdir(sys.argv[1])", *examples(name), ENDS[name]])
    device_count = "--xla_force_host_platform_device_count=8"
    done = Program(code, tmp_path, framework="jax", XLA_FLAGS=device_count).wait()
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_stacks_md(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = (20, 3, 16, 9)
    slices = {
        f"train/tomo_{i}/slice_{k:04}.jpg": jpeg(seed=k)
        for i in range(4)
        for k in range(lengths[i])
    }
    table = b"tomo_id,motors\n" + b"".join(b"tomo_%d,%d\n" % (i, i % 2) for i in range(4))
    write(tmp_path / "byu.zip", zip_bytes({**slices, "labels.csv": table}))
    command, *_ = re.findall(r"^\$ shardprep (.*)$", page("stacks"), re.MULTILINE)
    ran(*shlex.split(command), cwd=tmp_path)
    monkeypatch.chdir(tmp_path)
    found = executed(examples("stacks"))
    assert found["volume"].shape[1:] == (48, 64, 3)
    assert found["masks"].shape == (2, 8, 32, 48, 1)
    assert found["images"].shape == (4, 8, 48, 64, 3)
    assert next(iter(found["train"]))[0].shape == (4, 8, 32, 32, 3)


@pytest.mark.thorough
def test_tiles_md(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "slides" / "a.png", png(100, 150))
    (command,) = re.findall(r"^\$ shardprep (.*)$", page("tiles"), re.MULTILINE)
    ran(*shlex.split(command), cwd=tmp_path)
    monkeypatch.chdir(tmp_path)
    stitched = executed(examples("tiles"))["stitched"]
    assert f"This prints `{capsys.readouterr().out.strip()}`" in page("tiles")
    assert np.allclose(stitched["a.png"], pixels(100, 150).mean(axis=-1) / 255)


@pytest.mark.thorough
def test_report_md(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 30 blue and 30 red images, five are in the folder of the other class."""
    wrong = {f"train/{('dog', 'cat')[i % 2]}/{i}.png": ("cat", "dog")[i % 2] for i in range(5)}
    members = {}
    for i in range(60):
        image = photo(i, 32, 32) // 3 + np.array(((0, 0, 120), (120, 0, 0))[i % 2], np.uint8)
        members[f"train/{('dog', 'cat')[(i + (i >= 5)) % 2]}/{i}.png"] = file(image, "PNG")
    source = write(tmp_path / "pets.zip", zip_bytes(members))
    build(source, tmp_path / "tfrecords", size="16x16")
    monkeypatch.chdir(tmp_path)
    executed(examples("report"))
    section = page("report").partition("## Find wrong labels")[2].partition("\n## ")[0]
    for command in re.findall(r"^\$ shardprep (.*)$", section, re.MULTILINE):
        line, _, target = command.partition(" > ")
        size = ("--size", "16x16") if "build" in line else ()
        done = ran(*shlex.split(line), *size, cwd=tmp_path)
        if target:
            write(tmp_path / target, done.stdout.encode())
    rows = list(csv.DictReader((tmp_path / "wrong-labels.csv").read_text().splitlines()))
    assert {row["key"]: row["label"] for row in rows} == wrong
    old, new = (reader.select(f"tfrecords/pets/1.0.{i}", "train").labels for i in range(2))
    assert (np.bincount(old).tolist(), np.bincount(new).tolist()) == ([29, 31], [30, 30])


# --- docs/export.md ---


@pytest.fixture(name="here", scope="module")
def _here(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("export_docs")
    shutil.copytree(shapes / "tfrecords", here / "tfrecords")  # a command writes into it
    boxes = annotated(tmp_path_factory.mktemp("boxes"), BOX, BOX_LABEL)
    (here / "sets").mkdir()
    (here / "sets" / "bccd").symlink_to(boxes.parent)
    commands = re.findall(r"^\$ shardprep (.*)$", page("export"), re.MULTILINE)
    assert commands[:2] == ["sample", "build --shards 20"], "what made the shapes, but for a number"
    for command in commands[2:]:
        ran(*shlex.split(command), cwd=here)
    return here


def test_export_md_has_a_command_a_row_and_a_section_for_each_layout() -> None:
    assert re.findall(r"--to (\w+)", page("export").split("```")[1]) == list(LAYOUTS)
    written, again = page("export").split("## Build a dataset of an export\n")
    assert re.findall(r"^\| `(\w+)` \|", written, re.MULTILINE) == list(LAYOUTS)
    assert {*re.findall(r"^\| `(\w+)` \|", again, re.MULTILINE)} == {"parquet", "yolo"}
    assert len(re.findall(r"^## ", page("export"), re.MULTILINE)) == len(LAYOUTS) + 3


@pytest.mark.thorough
def test_export_md(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(here / "home"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(here / "cache"))
    blocks = examples("export")
    assert len(blocks) == 3
    with contextlib.chdir(here):
        for block in blocks:
            found = executed([block])
            assert found["image"].size == (64, 64)
            assert found["label"] in (0, 1, 2, ["circle", "square", "triangle"])


def test_files_have_the_names_of_export_md(here: Path) -> None:
    folder = here / "exports/shapes-1.0.0-folder"
    assert (folder / "train/square/square.6.jpg").is_file()
    assert (folder / "test/_unlabelled/1.jpg").is_file()
    tars = [path.name for path in (here / "exports/shapes-1.0.0-webdataset").glob("*.tar")]
    assert "shapes-train-000000.tar" in tars
    assert (here / "exports/marked-1.0.0-coco/annotations/instances_train.json").is_file()
    assert (here / "exports/marked-1.0.0-yolo/data.yaml").is_file()
    assert (here / "exports/marked-1.0.0-yolo/labels/train/b.txt").read_text() == ""


@pytest.mark.thorough
def test_keras_takes_an_exported_folder(here: Path) -> None:
    import keras

    found = keras.utils.image_dataset_from_directory(
        here / "exports/shapes-1.0.0-folder/train", image_size=(64, 64), verbose=False
    )
    assert found.class_names == ["circle", "square", "triangle"]


# --- docs/targets.md ---


@pytest.mark.thorough
def test_targets_md(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("keras")
    rows = "".join(f"{i}.jpg,{'' if i == 3 else 20 + i},{'fm'[i % 2]}\n" for i in range(40))
    faces = {f"{i}.jpg": jpeg(seed=i) for i in range(40)}
    table = f"file,age,gender\n{rows}".encode()
    write(tmp_path / "faces.zip", zip_bytes({**faces, "faces.csv": table}))
    (command,) = re.findall(r"^\$ shardprep (build faces.*)$", page("targets"), re.MULTILINE)
    ran(*shlex.split(command), cwd=tmp_path)
    texts = "".join(f"{i % 4}.jpg,a face {i}\n" for i in range(10))
    captions = {**dict(list(faces.items())[:4]), "captions.csv": f"image,caption\n{texts}".encode()}
    source = write(tmp_path / "captions.zip", zip_bytes(captions))
    labels = "csv:captions.csv:image:caption"
    build(source, tmp_path / "tfrecords", labels=labels, target="texts", size="16x16")
    monkeypatch.chdir(tmp_path)
    found = executed(examples("targets"))
    assert (found["numbers"], found["classes"]) == (("age",), ("f", "m"))
    assert np.isfinite(found["history"].history["loss"]).all()
    chosen = {text.decode() for _, text in found["pairs"].as_numpy_iterator()}
    assert len(chosen) == 4
    assert chosen < {f"a face {i}" for i in range(10)}
    folds = reader.folds("tfrecords/faces", 4, by="classes")
    assert [len(part) for _, part in folds] == [10] * 4
    import pyarrow.compute as pc

    women = reader.select("tfrecords/faces", where=pc.list_element(pc.field("classes"), 0) == 0)
    assert len(women) == 20
    with pytest.raises(DatasetError, match="have no class"):
        reader.load("tfrecords/faces", weights="balanced")


@pytest.mark.thorough
def test_image_targets_md(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {f"{name}/{i}.png": png(seed=i) for name in ("low", "high") for i in range(4)}
    write(tmp_path / "lol.zip", zip_bytes(members))
    command, _ = re.findall(r"^\$ shardprep (.*)$", page("image_targets"), re.MULTILINE)
    ran(*shlex.split(command), cwd=tmp_path)
    monkeypatch.chdir(tmp_path)
    found = executed(examples("image_targets"))
    assert found["image"].shape == (48, 64, 3)
    assert (found["image"] == found["target"]).all()
    assert found["low"].shape == (2, 32, 32, 3)


# --- docs/tasks.md ---

TASKS = examples("tasks")
FEWER = {
    "epochs=12": "epochs=5",
    "epochs=7": "epochs=3",
    "range(8)": "range(1)",
    "range(20)": "range(2)",
}
"""Epochs of the page → sufficient epochs."""
PAGE_SIZE, SMALL_SIZE = "(72, 96)", "(32, 48)"
"""Height and width of the images of the page that have masks, and of those of the tests."""


def shorter(code: str) -> str:
    """Return the code about a model with fewer epochs, and smaller images if they have masks."""
    (epochs,) = (epochs for epochs in FEWER if epochs in code)
    return code.replace(epochs, FEWER[epochs]).replace(PAGE_SIZE, SMALL_SIZE)


def block_with(name: str) -> str:
    return shorter(next(one for one in TASKS if name in one))


TORCH = [one for one in TASKS if "import torch\n" in one]
OTHERS = [one for one in TASKS if not any(name in one for name in ("unet", "detector", "torch"))]

needs_sets = pytest.mark.skipif(
    not (SHARED_DATA / "camvid.zip").exists(), reason="needs the real sets"
)
of_keras = pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")  # by Keras itself


@pytest.fixture(scope="module", name="place")
def _place(tmp_path_factory: pytest.TempPathFactory) -> Path:

    def make(folder: Path) -> None:
        out = folder / "tfrecords"
        build(SHARED_DATA / "bccd.zip", out, boxes="voc", size="128x96")
        build(SHARED_DATA / "camvid.zip", out, size="48x32", fit="stretch")

    return shared_folder(tmp_path_factory, "tasks", make)


def trained(code: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    keras = pytest.importorskip("keras")
    keras.utils.set_random_seed(0)
    monkeypatch.setattr(keras.Model, "fit", traced_once(keras.Model.fit))
    monkeypatch.chdir(place)
    return executed([code])


@of_keras
@needs_sets
@pytest.mark.thorough
@pytest.mark.parametrize("code", OTHERS, ids=range(len(OTHERS)))
def test_tasks_md(code: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = trained(code, place, monkeypatch)
    if "first" in names:
        assert set(names["first"]) == set(re.findall(r'^ +"(\w+)": ', code, re.MULTILINE))


@needs_sets
@pytest.mark.thorough
@pytest.mark.parametrize("code", TORCH, ids=["detector", "unet"])
def test_models_of_torch_learn(code: str, place: Path) -> None:
    need_module("torchvision")
    begin = f"{ONE_CORE}; import sys, torch; os.chdir(sys.argv[1]); torch.manual_seed(0)"
    done = Program(f"{begin}\n{shorter(code)}", place, framework="torchvision").wait()
    assert done.returncode == 0, done.stderr
    first, last = map(float, re.findall(r"\d\.\d\d", done.stdout))
    assert last < 0.85 * first


@of_keras
@needs_sets
@pytest.mark.thorough
def test_a_small_unet_beats_the_most_frequent_class(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = trained(block_with("unet"), place, monkeypatch)
    masks = {
        split: np.concatenate([
            mask.ravel()
            for _, mask in reader.Dataset("tfrecords/camvid", split, as_supervised=True)
        ])
        for split in ("train+validation", "test")
    }  # fmt: skip
    values = masks["test"][masks["test"] != 255]
    frequent = np.bincount(masks["train+validation"], minlength=256)[:255].argmax()
    majority = (values == frequent).mean() / len(np.unique(values))
    assert names["scores"]["iou"] > max(3 * majority, 0.06)


@of_keras
@needs_sets
@pytest.mark.thorough
def test_a_small_detector_finds_the_white_cells(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On unseen images. White cells cover a ninth of the area."""
    names = trained(block_with("detector"), place, monkeypatch)
    test = reader.Dataset("tfrecords/bccd", "test", as_supervised=True)
    white = test.class_names.index("WBC")
    cells = names["detector"].predict(np.stack([image for image, _ in test]), verbose=0)
    hits = []
    for (_, target), cell in zip(test, cells, strict=True):
        boxes = target["boxes"][target["labels"] == white]
        if len(boxes) == 1:
            place_of = np.unravel_index(cell[..., white].argmax(), cell.shape[:2])
            middle = (np.array(place_of) + 0.5) / cell.shape[:2]
            hits.append((boxes[0, :2] <= middle).all() and (middle <= boxes[0, 2:]).all())
    assert len(hits) > 50
    assert np.mean(hits) > 0.5
    assert names["history"][-1] < names["history"][0] / 1.5
