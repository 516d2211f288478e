"""Sizes of images that annotations state: of which image boxes are, and what is no such size."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep import inspect, repack
from shardprep.reader import Dataset
from shardprep.writer.finalize import BuildResult
from tests.catalog.builders import catalog, objects_of
from tests.catalog.objects.written import HEIGHT, WIDTH, WRITERS
from tests.support.builders import build, png, write_folder

BOX = (4, 6, 20, 24)
SHARES = np.array([6 / HEIGHT, 4 / WIDTH, 24 / HEIGHT, 20 / WIDTH], np.float32)
"""The box as it is stored, where it is of the image; of one twice as large it is half of this."""
NUM_IMAGES, NUM_STATED = 4, 3
"""Images, and those of them that have the size that is stated."""


FORMS = [option for option in WRITERS if option not in ("yolo", "via:via.json")]
"""Formats that state a size."""


def written(form: str, height: int = HEIGHT, width: int = WIDTH) -> dict[str, str]:
    sets = {str(i): [("a", BOX)] for i in range(NUM_IMAGES)}
    return WRITERS[form](sets, ["a"], (height, width))


def built(folder: Path, form: str, texts: dict[str, str], **keys: Any) -> BuildResult:
    """Return a dataset of images, all but one of which are twice as large as the others."""
    members = {key: text.encode() for key, text in texts.items()}
    for i in range(NUM_IMAGES):
        factor = 2 if i < NUM_IMAGES - NUM_STATED else 1
        members[f"{i}.png"] = png(HEIGHT * factor, WIDTH * factor, seed=i)
    source = write_folder(folder / "set", members)
    keys = {"boxes": form, "fit": "stretch", "size": "32x32", "format": "png", **keys}
    return build(source, folder / "out", **keys)


def stored(result: BuildResult) -> dict[str, Any]:
    data = Dataset(result.path, "train", as_supervised=False)
    return {one["image/filename"]: one["objects/bbox"][0] for one in data}


@pytest.mark.parametrize("form", FORMS)
def test_boxes_are_of_the_stated_size_or_of_the_image_as_asked(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    texts = written(form)
    with caplog.at_level(logging.WARNING):
        result = built(tmp_path / "file", form, texts)
    assert result.manifest.num_rescaled == NUM_IMAGES - NUM_STATED
    assert "1 of 4 images have another size than their annotations state" in caplog.text
    assert "--annotated-size image" in caplog.text
    for box in stored(result).values():
        np.testing.assert_allclose(box, SHARES, atol=1e-6)

    caplog.clear()
    result = built(tmp_path / "image", form, texts, annotated_size="image")
    assert result.manifest.num_rescaled == 0
    assert "another size" not in caplog.text
    for key, box in stored(result).items():
        np.testing.assert_allclose(box, SHARES / (2 if key == "0.png" else 1), atol=1e-6)


def test_sizes_of_another_shape_reject_the_image_unless_the_image_is_trusted(
    tmp_path: Path,
) -> None:
    texts = written("voc", 50, 50)
    result = built(tmp_path / "file", "voc", texts, max_rejected=1)
    assert result.manifest.totals.rejected == {"bad_annotation": NUM_IMAGES}
    assert result.manifest.num_rescaled == 0
    result = built(tmp_path / "image", "voc", texts, annotated_size="image")
    assert result.manifest.totals.num_written == NUM_IMAGES


def test_what_was_rescaled_is_in_inspect_and_stays_in_a_repack(tmp_path: Path) -> None:
    result = built(tmp_path, "voc", written("voc"))
    assert inspect(result.path).manifest.num_rescaled == 1
    assert repack(result.path, out=tmp_path / "again").manifest.num_rescaled == 1


# Columns of tables

ROWS = [(0, (2, 3, 12, 9)), (0, (20, 5, 30, 25)), (1, (1, 1, 5, 8)), (1, (9, 9, 30, 20))]


@pytest.mark.parametrize(
    ("names", "sides"),
    [
        ("width,height", lambda box: (box[2] - box[0], box[3] - box[1])),
        ("width,height", lambda box: (box[2] - box[0] + 1, box[3] - box[1] + 1)),
        ("bbox_width,bbox_height", lambda _: (WIDTH, HEIGHT)),
        ("width,height", lambda box: (box[0] + 7, box[1] + 7)),
    ],
    ids=["distances", "distances with both ends", "called so", "other for every row"],
)
def test_columns_of_box_sizes_are_not_image_sizes(
    tmp_path: Path, names: str, sides: Callable[[tuple[int, ...]], tuple[int, ...]]
) -> None:
    lines = [f"{i}.png,{','.join(map(str, (*box, *sides(box))))}" for i, box in ROWS]
    text = "\n".join([f"id,xmin,ymin,xmax,ymax,{names}", *lines])
    members = {f"{i}.png": png(HEIGHT, WIDTH, seed=i) for i in range(2)}
    made = catalog(tmp_path, {**members, "t.csv": text.encode()}, boxes="csv:t.csv")
    for item in made.items:
        assert objects_of(item).size is None
        wanted = [list(box) for i, box in ROWS if item.key == f"{i}.png"]
        assert objects_of(item).boxes.tolist() == wanted
    said = "width and height of t.csv are sizes of boxes, not of images"
    assert (said.replace("width and height", "height and width") in made.findings) == (
        names == "width,height"
    )


def test_columns_of_sizes_of_images_are_theirs(tmp_path: Path) -> None:
    lines = [f"{i}.png,{','.join(map(str, (*box, WIDTH, HEIGHT)))}" for i, box in ROWS]
    text = "\n".join(["id,xmin,ymin,xmax,ymax,width,height", *lines])
    members = {f"{i}.png": png(HEIGHT, WIDTH, seed=i) for i in range(2)}
    made = catalog(tmp_path, {**members, "t.csv": text.encode()}, boxes="csv:t.csv")
    sizes = [item.annotation and item.annotation.size for item in made.items]
    assert sizes == [(HEIGHT, WIDTH)] * 2
    assert made.findings == []
