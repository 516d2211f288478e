"""Builds of sources whose boxes and masks are recognised, or named by a flag."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shardprep.dataset.local_files import LocalFiles
from shardprep.recipe.recipe import make_recipe
from shardprep.verifier.dataset import verify_dataset
from shardprep.writer.plan.fingerprint import make_fingerprint
from tests.catalog.builders import detection, segmentation
from tests.support.builders import Told, build, encoded, jpeg, write, write_folder
from tests.writer.records import records


def test_recognised_boxes_are_padded_stored_and_verified(tmp_path: Path) -> None:
    """A crop would enlarge these images and a pad does not: the verifier counts which."""
    members = {key: jpeg(48, 400) if key.endswith("jpg") else d for key, d in detection().items()}
    members = {key: d.replace(b"64", b"400") if key.endswith("xml") else d
               for key, d in members.items()}  # fmt: skip
    source = write_folder(tmp_path / "source", members)
    result = build(source, tmp_path / "out")
    assert result.manifest.totals.num_written == 6
    assert result.manifest.totals.num_enlarged == 0
    for example in records(result.path).values():
        assert example["objects/label"] == [0]
        # The box of 1, 2, 9, 8 in 400x48 pixels, shrunk to 224x27 and centred in 224x224.
        ymin, xmin, ymax, xmax = example["objects/bbox"]
        top = (224 - 27) // 2
        assert np.allclose((xmin, xmax), (1 / 400, 9 / 400), atol=1e-6)
        assert np.allclose((ymin, ymax), [(top + y * 27 / 48) / 224 for y in (2, 8)], atol=1e-6)
    verdict = verify_dataset(
        LocalFiles.at(result.path), decode=False, num_workers=1, watcher=Told()
    )
    assert not verdict.problems
    assert build(source, tmp_path / "out").was_there


def test_colours_of_a_palette_are_looked_up_in_a_table(tmp_path: Path) -> None:
    """As CVAT writes them: a palette PNG, and labelmap.txt in its folder."""
    mask = Image.fromarray(np.tile(np.array([0, 1, 2, 2], np.uint8), (4, 1)), "P")
    mask.putpalette([0, 0, 0, 0, 128, 0, 128, 0, 0])
    members = {"images/x.jpg": jpeg(4, 4), "masks/x.png": encoded(mask, "PNG")}
    members["labelmap.txt"] = b"background:0,0,0::\ncat:128,0,0::\ndog:0,128,0::\n"
    source = write_folder(tmp_path / "source", members)
    options: dict[str, Any] = {"masks": "masks/{stem}.png", "mask_values": "labelmap.txt"}
    result = build(source, tmp_path / "out", size="none", fit="none", **options)
    (example,) = records(result.path).values()
    with Image.open(io.BytesIO(example["segmentation_mask"][0])) as stored:
        assert stored.mode == "L"
        assert np.array_equal(np.asarray(stored), np.tile([0, 2, 1, 1], (4, 1)))


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"masks": "masks/{stem}.png", "mask_values": "{}"}, "values.csv"),
        ({"masks": "rle:{}:id:rle"}, "runs.csv"),
        ({"boxes": "csv:{}:id:box"}, "boxes.csv"),
        ({"boxes": "coco:{}"}, "boxes.json"),
        ({"masks": "coco:{}"}, "masks.json"),
    ],
)
def test_a_document_beside_the_source_is_part_of_the_fingerprint(
    tmp_path: Path, keys: dict[str, str], name: str
) -> None:
    source = write_folder(tmp_path / "source", segmentation())
    path = write(tmp_path / name, b"a")
    options = {key: value.replace("{}", str(path)) for key, value in keys.items()}
    recipe = make_recipe({"source": str(source), **options}, "test")
    before = make_fingerprint(recipe).inputs
    path.write_bytes(b"b")
    after = make_fingerprint(recipe).inputs
    assert {key for key in before if before[key] != after[key]} == {str(path)}
