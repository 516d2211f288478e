"""Cells of a table that would move, vanish or mean something else are errors or are said."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import shardprep
from shardprep.api.builds import Plan
from shardprep.catalog.tables.key_index import KeyIndex, unused_entries
from shardprep.catalog.tables.table import parse_table
from shardprep.catalog.target_values import TargetValues
from shardprep.errors import ShardprepError, SourceError
from shardprep.source.string_column import Texts
from tests.catalog.builders import catalog, facts_of, found, images
from tests.support.builders import jpeg, write, write_folder

KEYS = [f"img/w{i:03}.jpg" for i in range(12)]
LONG = "row 3 has {} cells for {} columns; quote the cells that have a delimiter, or give each"


def lines(head: str, row: Callable[[int], str]) -> bytes:
    """Return a CSV with a row for each image."""
    return "\n".join([head, *(f"{key},{row(i)}" for i, key in enumerate(KEYS))]).encode()


def odd(usual: Callable[[int], str], other: str, head: str) -> bytes:
    """Return a CSV whose third row has other cells."""
    return lines(head, lambda i: other if i == 2 else usual(i))


LABELS = odd(lambda i: "ab"[i % 2], "a, 0.9", "image,label")
GOOD = lines("image,label", lambda i: "ab"[i % 2])
BOXES = odd(
    lambda i: f"4,10,50,60,{'ab'[i % 2]}", "1,0,10,50,60,a", "image,xmin,ymin,xmax,ymax,kind"
)
NAMED = "csv:t.csv:image"
RULE = f"{NAMED}:label"


@pytest.mark.parametrize(
    ("options", "other"),
    [
        ({"labels": "csv:j.csv"}, LABELS),
        ({"labels": "csv:j.csv:image:label"}, LABELS),
        ({"labels": "csv:t.csv,j.csv:image:label"}, LABELS),
        ({"labels": "none", "boxes": "csv:j.csv:image:xmin,ymin,xmax,ymax:kind"}, BOXES),
        ({"labels": RULE, "join": "j.csv"}, LABELS),
        ({"labels": RULE, "relabel": "csv:j.csv:image:label"}, LABELS),
        ({"labels": RULE, "rows": "csv:j.csv:image:label"}, LABELS),
        ({"labels": RULE, "split": "list:train=j.csv"}, LABELS),
        ({"labels": RULE, "exclude_list": "j.csv"}, LABELS),
    ],
)
def test_a_row_with_too_many_cells_is_an_error_wherever_its_table_is_used(
    options: dict[str, str], other: bytes, tmp_path: Path
) -> None:
    with pytest.raises(ShardprepError) as error:
        catalog(tmp_path, images(*KEYS) | {"t.csv": GOOD, "j.csv": other}, **options)
    sizes = (7, 6) if other == BOXES else (3, 2)
    assert str(error.value).startswith(f"j.csv: {LONG.format(*sizes)}")


@pytest.mark.parametrize("other", [LABELS, BOXES + BOXES[BOXES.index(b"\n") :]])
def test_a_build_without_flags_uses_no_table_with_too_long_rows(
    other: bytes, tmp_path: Path
) -> None:
    photos = dict.fromkeys(KEYS, jpeg(64, 80))
    source = write_folder(tmp_path / "set", {**photos, "j.csv": other})
    with pytest.raises(ShardprepError, match=r"j\.csv: row 3 has \d cells"):
        shardprep.build(source, dry_run=True)


def test_longer_rows_of_a_class_map_are_an_error(tmp_path: Path) -> None:
    files = images("a/1.jpg", "b/2.jpg") | {"m.csv": b"a,big cat\nb,dog, big\n"}
    with pytest.raises(SourceError, match=r"m\.csv: row 2 has 3 cells for 2 columns"):
        catalog(tmp_path, files, labels="folder", class_map="m.csv")


def test_delimiters_at_the_end_and_tables_that_nobody_uses_stay_as_they_were(
    tmp_path: Path,
) -> None:
    ended = lines("image,label", lambda i: f"{'ab'[i % 2]},,")
    made = catalog(tmp_path / "1", images(*KEYS) | {"t.csv": ended}, labels="csv:t.csv")
    assert {one.label for one in found(made).values()} == {"a", "b"}
    other = images("a/1.jpg", "a/2.jpg", "b/3.jpg", "b/4.jpg") | {"notes.csv": b"n,x\n1,2,3\n"}
    assert catalog(tmp_path / "2", other).label_names == ("a", "b")


def test_a_text_with_delimiters_is_whole_where_no_other_cell_can_have_moved() -> None:
    text = odd(lambda i: f"word{i}", "hello,  world", "image,text")
    assert parse_table(text, "t.csv").rows[2] == [KEYS[2], "hello,  world"]
    own = odd(lambda i: f"{'ab'[i % 2]},a good {i}", "a,x, y", "image,kind,about")
    assert parse_table(own, "t.csv").check_rows().rows[2] == [KEYS[2], "a", "x, y"]
    unsure = {
        "several classes": odd(
            lambda i: f"{'ab'[i % 2]},good one {i}", "a,b,x", "image,kind,about"
        ),
        "a decimal comma": odd(lambda i: f"{i % 3},good one {i}", "1,5,x", "image,size,about"),
        "quotes": odd(lambda i: f"word{i}", '"a", b', "image,text"),
        "no text": odd(lambda i: f"{i}", "1,2", "image,count"),
        "all rows": lines("image,text", lambda i: f"word,{i}"),
    }
    for name, data in unsure.items():
        with pytest.raises(SourceError, match="cells for"):
            pytest.fail(f"{name}: {parse_table(data, 't.csv').check_rows().rows[2]}")


FLAGS = lines("image,a,b", lambda i: f"{('1', '0', '-1', '')[i % 4]},{i % 2}")


def test_unsure_and_empty_flags_beside_0_are_counted_with_the_option_that_keeps_them(
    tmp_path: Path,
) -> None:
    files, rule = images(*KEYS) | {"t.csv": FLAGS}, {"labels": "csv:t.csv:image:a,b"}
    note = "t.csv: 3 cells of -1 and 3 empty cells count as 0; --target vector keeps them apart"
    assert note in catalog(tmp_path / "1", files, **rule).findings
    made = catalog(tmp_path / "2", files, **rule, target="vector")
    numbers = [one.numbers for item in made.items if isinstance(one := item.target, TargetValues)]
    assert numbers[:4] == [(1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (None, 1.0)]
    celeba = files | {"t.csv": lines("image,a,b", lambda i: "1,-1" if i % 2 else "-1,1")}
    marks = files | {"t.csv": lines("image,a,b", lambda i: "1," if i % 2 else ",1")}
    for i, other in enumerate((celeba, marks)):
        found_ = catalog(tmp_path / f"other{i}", other, **rule).findings
        assert not any("count as 0" in one for one in found_)


@pytest.fixture(name="planned")
def _planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    photos = {f"{i:04}.jpg": jpeg(seed=i) for i in range(6)}
    write_folder(Path("set"), photos)
    return lambda **options: shardprep.build("set", dry_run=True, **options)


ROWS: list[dict[str, Any]] = [{"image": f"{i:04}.jpg"} for i in range(6)]
BOX = [[1, 1, 9, 9]]


def test_an_order_without_samples_is_stored(planned: Callable[..., Plan]) -> None:
    rows = [{**row, "label": "a", "order": "Rodentia"} for row in ROWS]
    made = planned(items=rows)
    assert made.plan.columns == ("order",)
    assert "1 column is stored: order" in made.plan.findings


@pytest.mark.parametrize(
    ("column", "cell", "what"),
    [
        ("box_labels", ["a"], "no column boxes or segmentation; add boxes, or drop or rename"),
        ("iscrowd", [0], "no column boxes or segmentation"),
        ("keypoints", [[1, 1, 2]], "no column boxes or segmentation"),
        ("box_format", "xywh", "no column boxes; "),
    ],
)
def test_a_column_of_items_that_needs_another_one_does_not_vanish(
    column: str, cell: object, what: str, planned: Callable[..., Plan]
) -> None:
    rows = [{**row, "label": "a", column: cell} for row in ROWS]
    with pytest.raises(SourceError, match=f"has a column '{column}', but {what}"):
        planned(items=rows)
    if column == "box_labels":
        near = [{**row, "bboxes": BOX} for row in rows]
        with pytest.raises(SourceError, match="call the column 'bboxes' boxes, or drop"):
            planned(items=near)
        assert planned(items=[{**row, "boxes": BOX} for row in rows]).images == {"train": 6}


@pytest.mark.parametrize(
    ("title", "cell", "role"),
    [
        *(
            (one, BOX, "boxes")
            for one in ("box", "bbox", "bboxes", "bounding_box", "boundingBoxes")
        ),
        ("masks", "0001.jpg", "mask"),
        ("mask_path", "0001.jpg", "mask"),
        ("segmentations", [[1, 1, 9, 9, 1, 9]], "segmentation"),
        ("point", [[1, 1]], "points"),
    ],
)
def test_titles_near_any_role_are_asked_about(
    title: str, cell: object, role: str, planned: Callable[..., Plan]
) -> None:
    with pytest.raises(SourceError, match=f"states no {role}: is '{title}' meant"):
        planned(items=[{**row, title: cell} for row in ROWS])
    notes = planned(items=[{**row, "label": "a", title: cell} for row in ROWS]).plan.findings
    assert any(f"is {role} meant?" in one for one in notes)


def test_a_frame_of_flags_is_read_and_other_columns_are_named_by_items(
    planned: Callable[..., Plan],
) -> None:
    ids = [row["image"] for row in ROWS]
    flags = pd.DataFrame({"id": ids, "a": [1, 0] * 3, "b": [0, 1, 1] * 2})
    assert planned(labels=flags).labels == ["a", "b"]
    more = flags.assign(c="x")
    with pytest.raises(SourceError, match=r"give the frame as items, with .*column:a,b"):
        planned(labels=more)
    assert planned(items=more, labels="column:a,b").labels == ["a", "b"]
    notes = planned(items=flags).plan.findings
    assert any("column:a,b" in one and "uses 2 columns of 1 and 0" in one for one in notes)
    kinds = [{**row, "kind": "xy"[i % 2]} for i, row in enumerate(ROWS)]
    assert any("uses the first of kind" in one for one in planned(items=kinds).plan.findings)
    assert planned(items=kinds, labels="column:kind").labels == ["x", "y"]
    nested = planned(items=[{**row, "vec": [[1, 2]]} for row in ROWS]).plan.findings
    assert not any("column:vec" in one for one in nested)


def test_images_with_an_empty_cell_of_splits_are_counted(tmp_path: Path) -> None:
    table = lines("image,label,fold", lambda i: f"{'ab'[i % 2]},{'' if i < 3 else i % 3}")
    made = catalog(
        tmp_path,
        images(*KEYS) | {"t.csv": table},
        labels="csv:t.csv:image:label",
        split="column:fold:0=validation,*=train",
    )
    note = "3 images have an empty cell in column 'fold': by folders, 3 train"
    assert note in made.findings


def test_titles_and_paths_of_items_are_read_or_the_error_says_what_to_write(
    planned: Callable[..., Plan],
) -> None:
    ids = [row["image"] for row in ROWS]
    notes = planned(items=pd.DataFrame({"Image Index": ids, "label": "a"})).plan.findings
    assert "column 'Image Index' of items is the image" in notes
    blank = planned(items=[{**row, "target/Age ": 1.5} for row in ROWS])
    assert blank.plan.schema.target == "target"
    far = [{"image": f"/kaggle/input/set/{one}", "label": "a"} for one in ids]
    with pytest.raises(SourceError, match=r"leads out of the source: write 0000\.jpg; row 2"):
        planned(items=far)


def test_lost_zeros_twin_titles_and_tables_without_rows_are_named(
    planned: Callable[..., Plan], tmp_path: Path
) -> None:
    frame = pd.DataFrame({"id": range(1, 6), "label": [*"ababa"]})
    with pytest.raises(SourceError, match=r"lack the zeros of 0001\.jpg; read the table as texts"):
        planned(labels=frame)
    assert planned(labels=frame.assign(id=[f"{i:04}" for i in range(1, 6)])).labels == ["a", "b"]
    write(tmp_path / "t.csv", frame.to_csv(index=False).encode())
    for rule in ("csv:t.csv", "csv:t.csv:id:label"):
        with pytest.raises(SourceError, match=r"lack the zeros of 0001\.jpg"):
            planned(labels=rule)
    rows = [f"{i:04},{'ab'[i % 2]},{{}}\n" for i in range(6)]
    for twin in ("ab", "ba"):
        text = "id,label,label\n" + "".join(one.format(twin[i % 2]) for i, one in enumerate(rows))
        write(tmp_path / "t.csv", text.encode())
        if twin == "ab":  # equal cells
            assert planned(labels="csv:t.csv").labels == ["a", "b"]
            continue
        for rule in ("csv:t.csv", "csv:t.csv:id:label"):
            with pytest.raises(
                SourceError, match=r"t\.csv: has two columns 'label'; rename or drop"
            ):
                planned(labels=rule)
    write(tmp_path / "t.csv", b"id,label\n")
    with pytest.raises(SourceError, match=r"t\.csv: has no rows; write a row for each image"):
        planned(labels="csv:t.csv")


def test_the_nearest_key_shares_the_folders_of_the_entry() -> None:
    keys = [
        f"train/patient{p:04}/study{s}/view{v}.jpg" for p in range(99) for s in "12" for v in "13"
    ]
    (note,) = unused_entries("t.csv", ["patient0001/study1/view7"], 1, keys)
    assert "(the nearest key is train/patient0001/study1/view3.jpg)" in note
    (other,) = unused_entries("t.csv", ["b/2.jpg"], 1, ["a/2.jpg", "b/1.jpg"])
    assert "(the nearest key is a/2.jpg)" in other


@pytest.mark.parametrize(
    ("texts", "odd_one", "flag"),
    [
        ("a b,a,b,polar bear", "'a b'", {"separator": " "}),
        ("x|y,z", "'x|y'", {"separator": "|"}),
    ],
)
def test_a_text_of_several_classes_is_asked_about_in_label_tables_too(
    texts: str, odd_one: str, flag: dict[str, str], tmp_path: Path
) -> None:
    names = texts.split(",")
    table = lines("image,label", lambda i: names[i % len(names)])
    files, rule = images(*KEYS) | {"t.csv": table}, {"labels": "csv:t.csv:image:label"}
    with pytest.raises(SourceError) as error:
        catalog(tmp_path / "1", files, **rule)
    assert f"--labels: {odd_one} is one class or several; give --target class" in str(error.value)
    assert catalog(tmp_path / "2", files, **rule, target="class").label_names == tuple(
        sorted(names)
    )
    several = catalog(tmp_path / "3", files, **rule, **flag).label_names
    assert odd_one.strip("'") not in several
    bears = files | {"t.csv": lines("image,label", lambda i: ("bear", "polar bear")[i % 2])}
    assert catalog(tmp_path / "4", bears, **rule).label_names == ("bear", "polar bear")


def test_a_class_that_no_object_has_is_an_error_if_a_name_left_out_is_like_it(
    tmp_path: Path,
) -> None:
    table = lines("image,x,y,x2,y2,kind", lambda i: f"4,5,20,20,{('car', 'person', 'tree')[i % 3]}")
    rule = {"labels": "none", "boxes": f"{NAMED}:x,y,x2,y2:kind"}
    files = dict.fromkeys(KEYS, jpeg(64, 80)) | {"t.csv": table}
    for asked, near in (("Car,person", "car"), ("cra,person", "car"), ("car,persons", "person")):
        with pytest.raises(
            SourceError, match=f"--classes: no class of the objects.*is {near} meant"
        ):
            catalog(tmp_path / asked, files, **rule, classes=asked)
    made = catalog(tmp_path / "fewer", files, **rule, classes="person,car")
    assert facts_of(made).dropped == {"not among --classes": 4}
    other = catalog(tmp_path / "absent", files, **rule, classes="person,car,boat")
    assert facts_of(other).names == ("person", "car", "boat")
    assert "--classes: no object is of class boat" in other.findings
    mapped = catalog(tmp_path / "map", files, **rule, class_map="cra=vehicle,person=human")
    assert "--class-map: no class is called cra; is car meant?" in mapped.findings


@pytest.mark.parametrize("option", ["labels", "auto", "items", "exclude_list", "split", "boxes"])
@pytest.mark.parametrize("form", [str, str.lower, lambda one: one.lower()[:-4]])
def test_an_id_that_fits_no_image_means_the_only_one_that_it_fits_regardless_of_case(
    tmp_path: Path, option: str, form: Callable[[str], str]
) -> None:
    """A few ids or all of them, with and without the extension; a note has their number."""
    keys = [f"a/IMG_{i}.JPG" for i in range(12)]
    source = write_folder(tmp_path / "set", {key: jpeg(seed=i) for i, key in enumerate(keys)})
    ids = [form(one) for one in keys]
    ids[:2] = ["img_0.jpg", "a/Img_1"]
    rows = "".join(f"{one},{'ab'[i % 2]},1,1,5,5\n" for i, one in enumerate(ids))
    table = write(tmp_path / "t.csv", f"image,label,xmin,ymin,xmax,ymax\n{rows}".encode())
    part = write(tmp_path / "part.txt", "\n".join(ids[:6]).encode())
    given: dict[str, Any] = {
        "labels": {"labels": f"csv:{table}:image:label"},
        "auto": {"labels": f"csv:{table}"},
        "items": {"items": str(table)},
        "exclude_list": {"exclude_list": str(part), "labels": "none"},
        "split": {"split": f"list:train=*,validation={part}", "labels": "none"},
        "boxes": {"boxes": f"csv:{table}:image:xmin,ymin,xmax,ymax:label"},
    }[option]
    found = shardprep.build(source, dry_run=True, **given)
    left = {"exclude_list": {"train": 6}, "split": {"train": 6, "validation": 6}}
    assert found.images == left.get(option, {"train": 12})
    number = sum(one not in key for one, key in zip(ids, keys, strict=True))
    number = min(number, 6) if option in left else number
    said = f"{number} ids differ from the name of an image only in case, such as img_0.jpg (a/IMG_"
    assert any(said in one for one in found.plan.findings), found.plan.findings
    assert not any("fit no image" in one for one in found.plan.findings)


@pytest.mark.parametrize(
    ("keys", "ids"),
    [
        (["img_1.jpg"], ["img_1.jpg", "IMG_1.JPG"]),  # another id has this very name
        (["img_1.jpg"], ["Img_1.jpg", "IMG_1.JPG"]),  # two ids, which may be two images
        (["img_1.jpg", "Img_1.jpg"], ["IMG_1.jpg"]),
        (["img_1.jpg"], ["IMG_1.png"]),
        (["x/img_1.jpg"], ["X/Y/IMG_1.jpg"]),
    ],
)
def test_an_id_in_another_case_is_of_no_image_unless_one_alone_fits(
    keys: list[str], ids: list[str]
) -> None:
    index = KeyIndex([*keys, "other.jpg"])
    found = index.find_all(Texts.of([*ids, "other"]), "t.csv").tolist()
    assert found == [keys.index(one) if one in keys else -1 for one in ids] + [len(keys)]
    assert not index.remarks


def test_a_first_line_that_names_an_image_is_a_row(tmp_path: Path) -> None:
    rows = "".join(f"{key},{'ab'[i % 2]}\n" for i, key in enumerate(KEYS)).encode()
    made = catalog(tmp_path / "1", {**images(*KEYS), "t.csv": rows}, labels="csv:t.csv")
    assert len(made.items) == len(KEYS)
    lists = {"out.csv": f"{KEYS[0]}\n{KEYS[1]}\n".encode(), "test.csv": f"{KEYS[2]},x\n".encode()}
    options = {"exclude_list": "out.csv", "split": "list:test=test.csv,train=*"}
    made = catalog(tmp_path / "2", {**images(*KEYS), **lists}, labels="none", **options)
    assert [item.key for item in made.items if item.split == "test"] == [KEYS[2]]
    assert len(made.items) == len(KEYS) - 2


@pytest.mark.parametrize("title", ["image", "image.jpg", "a.png"])
def test_titles_are_no_row_unless_the_next_line_has_a_file_in_their_column(title: str) -> None:
    table = parse_table(f"id,{title}\n1,cat\n2,dog\n".encode(), "t.csv")
    assert table.header == ("id", title)
