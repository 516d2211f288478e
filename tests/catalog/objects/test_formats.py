"""The formats together: what is recognised, how one is asked for, and what is read back."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardprep.catalog.objects.known_formats import FORMATS
from shardprep.errors import RecipeError, SourceError
from shardprep.recipe.object_rules import parse_box_rule
from shardprep.recipe.options import BOX_FORMATS
from tests.catalog.builders import thing, xml
from tests.catalog.objects.written import HEIGHT, WIDTH, WRITERS
from tests.support.annotated import PIXELS, opened, source
from tests.support.builders import SHARED_DATA, write_folder
from tests.support.paths import data_rows


@pytest.mark.skipif(not (SHARED_DATA / "tasks.tar").exists(), reason="real data are not here")
def test_the_smallest_exports_of_each_kind(tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(SHARED_DATA / "tasks.tar") as archive:
        archive.extractall(tmp_path, filter="data")
    for folder, (signs, names, num_boxes) in data_rows("objects", "tiny_exports").items():
        made = opened(tmp_path / "tiny" / folder)
        assert made.signs() == signs, folder
        if signs:
            found = made.read(signs[0])
            assert list(found.names) == list(names), folder
            assert sum(map(len, made.rows(found).values())) == num_boxes, folder
            assert not found.without_image, folder


def test_a_stray_document_does_not_make_boxes_of_a_set_of_classes(tmp_path: Path) -> None:
    keys = [f"{kind}/{n}.png" for kind in ("cat", "dog") for n in range(8)]
    texts = {
        "cat/1.xml": xml(thing("a", 0, 1, 2, 3)),
        "data.yaml": "names: [cat, dog]",
        "notes.txt": "0 .5 .5 1 1",
        "dog/3.txt": "hello",
        "package.json": '{"images": [], "annotations": [], "bbox": 1}',
        "labels.csv": "id,label\n1,cat\n",
    }
    assert source(tmp_path, texts, *keys).signs() == []


@pytest.mark.parametrize("option", ["tfod", "voc:x", "labelme:x", "csv:", "csv:t.csv:id", "COCO"])
def test_an_unknown_format_is_an_error(option: str) -> None:
    with pytest.raises(RecipeError, match="boxes"):
        parse_box_rule(option)


def test_files_that_a_value_names() -> None:
    named = [
        "coco",
        "coco:a.json,b/c.json",
        "voc",
        "yolo:x/data.yaml",
        "csv:a.csv,b.csv:id:x,y,w,h:c",
    ]
    assert [parse_box_rule(option).files for option in named] == [
        (), ("a.json", "b/c.json"), (), ("x/data.yaml",), ("a.csv", "b.csv"),
    ]  # fmt: skip
    assert list(FORMATS) == list(BOX_FORMATS)


NAMES = ["a & b", "ñu", "c,d", '"q"']
boxes = st.tuples(*(st.floats(0, 0.45), st.floats(0.55, 1))).flatmap(
    lambda xs: st.tuples(st.just(xs), st.floats(0, 0.45), st.floats(0.55, 1))
).map(lambda b: (b[0][0] * WIDTH, b[1] * HEIGHT, b[0][1] * WIDTH, b[2] * HEIGHT))  # fmt: skip
sets = st.dictionaries(
    st.sampled_from([f"im_{i}" for i in range(4)]),
    st.lists(st.tuples(st.sampled_from(NAMES), boxes), max_size=4),
    min_size=1,
).filter(lambda one: any(one.values()))


@pytest.mark.parametrize("option", WRITERS)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(wanted=sets)
def test_what_is_written_in_a_format_is_read_back(
    tmp_path: Path, option: str, wanted: dict[str, Any]
) -> None:
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    texts = WRITERS[option](wanted, NAMES, (HEIGHT, WIDTH))
    members = {f"images/im_{i}.png": PIXELS for i in range(4)}
    made = opened(write_folder(folder, members | {k: t.encode() for k, t in texts.items()}))
    found = made.read(option)
    rows = made.rows(found)
    assert rows.keys() == {f"images/{key}.png" for key in wanted}
    factor = np.array([WIDTH, HEIGHT] * 2) if option == "yolo" else 1.0
    for key, several in wanted.items():
        mine = rows[f"images/{key}.png"]
        assert [name for name, _ in mine] == [name for name, _ in several]
        for (_, box), (_, other) in zip(mine, several, strict=True):
            np.testing.assert_allclose(np.array(box) * factor, other, atol=1e-9)


def test_a_file_name_means_the_file_at_the_root(tmp_path: Path) -> None:
    """Its whole path is no other than the end of the path of another."""
    texts = {"data.yaml": "names: [a]", "x/data.yaml": "names: [b]", "labels/1.txt": "0 .5 .5 1 1"}
    made = source(tmp_path, texts, "images/1.png")
    assert made.read("yolo:data.yaml").names == ("a",)
    assert made.read("yolo").names == ("a",)
    assert made.signs() == ["yolo"]


def test_yolo_without_names_of_classes_is_found_as_it_is_read(tmp_path: Path) -> None:
    made = source(tmp_path, {"labels/1.txt": "0 .5 .5 1 1\n7 .5 .5 .2 .2"}, "images/1.png")
    assert made.read("yolo").names == ("0", "7")
    assert made.signs() == ["yolo"]


def test_unreadable_documents_are_ignored_by_the_search(tmp_path: Path) -> None:
    texts: dict[str, str | bytes] = {
        "data.yaml": "names: [",
        "coco.json": "{",
        "1.xml": "<",
        "1.txt": b"\xff",
    }
    assert source(tmp_path, texts, "1.png").signs() == []
    with pytest.raises(SourceError, match=r"data\.yaml: is damaged YAML"):
        source(tmp_path, {"data.yaml": "names: {", "1.txt": ""}, "1.png").read("yolo")
