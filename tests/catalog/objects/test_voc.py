"""Pascal VOC: what is taken of its files, and what a stranger's may not do."""

import contextlib
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from shardprep.catalog.objects.formats.voc import NotVocError, VocError, VocFile, parse_voc
from shardprep.errors import SourceError
from tests.catalog.builders import thing, xml
from tests.support.annotated import opened, source
from tests.support.builders import SHARED_DATA
from tests.support.paths import DATA, data_rows

BCCD = SHARED_DATA / "bccd.zip"
needs_bccd = pytest.mark.skipif(not BCCD.exists(), reason="real data are not here")


@needs_bccd
def test_bccd_is_what_the_builder_of_tfds_makes_of_the_same_files(tmp_path: Path) -> None:
    from tensorflow_datasets.datasets.bccd.bccd_dataset_builder import Builder

    made = opened(BCCD)
    found = made.read("voc")
    with zipfile.ZipFile(BCCD) as archive:
        archive.extractall(tmp_path / "BCCD")
    assert found.names == ("Platelets", "RBC", "WBC")
    stems = [key.rpartition("/")[2].removesuffix(".jpg") for key in made.index.keys]
    theirs = dict(Builder._generate_examples(None, stems, str(tmp_path)))
    mine = made.rows(found)
    num_zero = 0
    for key, stem in zip(made.index.keys, stems, strict=True):
        height, width = made.of(found, key).size or (0, 0)
        boxes = [one["bbox"] for one in theirs[stem]["objects"]]
        assert [name for name, _ in mine[key]] == [one["label"] for one in theirs[stem]["objects"]]
        wanted = np.array(
            [(b.xmin * width, b.ymin * height, b.xmax * width, b.ymax * height) for b in boxes]
        )
        np.testing.assert_allclose([box for _, box in mine[key]], wanted, atol=1e-6)
        num_zero += int(((wanted[:, 2] <= wanted[:, 0]) | (wanted[:, 3] <= wanted[:, 1])).sum())
    assert Counter(name for rows in mine.values() for name, _ in rows) == {
        "RBC": 4155, "WBC": 372, "Platelets": 361,
    }  # fmt: skip
    assert num_zero == 2
    assert Counter(found.splits or ()) == {"train": 205, "validation": 87, "test": 72}


@needs_bccd
@pytest.mark.parametrize("columns", ["xmin,ymin,xmax,ymax", "ymax,xmin,xmax,ymin"])
def test_the_table_of_bccd_says_the_same_as_its_xml(columns: str) -> None:
    made = opened(BCCD)
    table = made.read(f"csv:test.csv:filename:{columns}:cell_type")
    assert made.rows(table) == made.rows(made.read("voc"))
    assert table.names == ("Platelets", "RBC", "WBC")
    assert "two corners (xyxy), in pixels" in table.how


def test_only_the_box_of_an_object_counts_not_those_of_its_parts(tmp_path: Path) -> None:
    part = (
        "<part><name>head</name><bndbox><xmin>8</xmin><ymin>8</ymin><xmax>9</xmax></bndbox></part>"
    )
    text = xml(thing("cat", 1, 2, 3, 4, more=part), thing("person", 5.5, " 6 ", "7", "8.25"))
    made = source(tmp_path, {"Annotations/1.xml": text}, "JPEGImages/1.png")
    found = made.read("voc")
    rows = made.rows(found)["JPEGImages/1.png"]
    assert rows == [("cat", (1, 2, 3, 4)), ("person", (5.5, 6, 7, 8.25))]
    assert made.of(found, "JPEGImages/1.png").size == (30, 40)


def test_an_object_without_box_or_name_is_counted(tmp_path: Path) -> None:
    things = [
        thing("cat", 1, 2, "x", 4),
        thing("cat", 1, 2, 3, order="xmin ymin xmax"),
        "<object><name>cat</name></object>",
        thing("", 1, 2, 3, 4),
        thing("cat", 5, 5, 5, 5),
    ]
    made = source(tmp_path, {"1.xml": xml(*things)}, "1.png")
    one = made.of(made.read("voc"), "1.png")
    assert one.dropped == {"malformed": 3, "unknown class": 1}
    assert one.boxes.tolist() == [[5, 5, 5, 5]]


def test_a_file_without_objects_is_background_and_no_file_says_nothing(tmp_path: Path) -> None:
    made = source(tmp_path, {"1.xml": xml(size="0 0"), "3.xml": xml()}, "1.png", "2.png")
    found = made.read("voc")
    assert made.rows(found) == {"1.png": []}
    assert made.of(found, "1.png").size is None
    assert found.without_image == {"3.xml": 0}
    assert not found.is_complete


def test_the_stated_name_counts_if_no_image_has_the_name_of_the_file(tmp_path: Path) -> None:
    texts = {"a/7.xml": xml(filename="b.png"), "a/a.xml": xml(filename="b.png")}
    made = source(tmp_path, {"a/7.xml": texts["a/7.xml"]}, "img/a.png", "img/b.png")
    assert [one is not None for one in made.read("voc").annotations] == [False, True]
    made = source(tmp_path, {"a/a.xml": texts["a/a.xml"]}, "img/a.png", "img/b.png")
    assert [one is not None for one in made.read("voc").annotations] == [True, False]


def test_a_stated_name_of_another_image_is_a_note(tmp_path: Path) -> None:
    names = {"1": "2.png", "2": "1.png", "3": "3.jpg"}
    files = {f"{i}.xml": xml(thing("cat", 1, 2, 3, 4), filename=names[i]) for i in names}
    made = source(tmp_path, files, *(f"{i}.png" for i in names))
    found = made.read("voc")
    assert len(made.rows(found)) == 3
    what = "2 documents state another image than the one of the same name, which is used"
    assert f"{what}: 1.xml states 2.png, 2.xml states 1.png" in found.findings


def test_files_of_equal_names_in_folders_of_equal_names(tmp_path: Path) -> None:
    keys = [
        f"{top}/{kind}/{n}.png" for top in ("x", "y") for kind in ("cat", "dog") for n in (1, 2)
    ]
    texts = {
        key.replace("/", "/Annotations/", 1).replace("png", "xml"): xml(thing("a", i, 0, 30, 30))
        for i, key in enumerate(keys)
    }
    made = source(tmp_path, texts, *(key.replace("/", "/JPEGImages/", 1) for key in keys))
    boxes = [int(box[0]) for [(_, box)] in made.rows(made.read("voc")).values()]
    assert boxes == list(range(8))


def test_two_files_for_one_image_are_an_error(tmp_path: Path) -> None:
    made = source(tmp_path, {"a/1.xml": xml(), "b/1.xml": xml()}, "1.png")
    with pytest.raises(SourceError, match=r"1.xml: 1.png is also annotated in a/1.xml; leave one"):
        made.read("voc")


LISTS = {
    "train": "1\n\n# 2\n3 1\n",
    "val": "2  -1\n",
    "trainval": "1\n2\n4",
    "cat_train": "4 1\n",
    "other": "4",
}


@pytest.mark.parametrize(
    ("lists", "wanted"),
    [
        (
            ["train", "val", "trainval", "cat_train", "other"],
            ["train", "validation", "train", None],
        ),
        (["trainval"], ["train", "train", None, "train"]),
        (["cat_train", "other"], None),
    ],
)
def test_lists_of_the_main_task_give_splits(
    tmp_path: Path, lists: list[str], wanted: list[str | None] | None
) -> None:
    texts = {f"V/ImageSets/Main/{name}.txt": LISTS[name] for name in lists}
    texts |= {f"V/Annotations/{n}.xml": xml() for n in range(1, 5)}
    keys = [f"V/JPEGImages/{n}.png" for n in range(1, 5)]
    made = source(tmp_path, texts, *keys, "V/SegmentationClass/1.png", "V/SegmentationClass/2.png")
    found = made.read("voc")
    splits = dict(zip(made.index.keys, found.splits or [], strict=False))
    assert [splits.get(key) for key in keys] == (wanted or [None] * 4)
    assert (found.splits is None) == (wanted is None)


def test_an_image_on_two_lists_is_in_the_test_split(tmp_path: Path) -> None:
    lists = {"ImageSets/Main/train.txt": "1\n2", "ImageSets/Main/test.txt": "2"}
    texts = {**lists, "Annotations/1.xml": xml()}
    found = source(tmp_path, texts, "JPEGImages/1.png", "JPEGImages/2.png").read("voc")
    assert found.splits == ["train", "test"]
    assert found.findings[0].startswith("1 image on the lists of two splits in ImageSets/Main/")


def test_a_list_of_a_split_means_the_image_of_its_split(tmp_path: Path) -> None:
    lists = {f"ImageSets/Main/{split}.txt": "1" for split in ("train", "val")}
    keys = [f"JPEGImages/{split}/1.png" for split in ("train", "val")]
    texts = {**lists, **{f"Annotations/{split}/1.xml": xml() for split in ("train", "val")}}
    found = source(tmp_path, texts, *keys).read("voc")
    assert found.splits == ["train", "validation"]


BOMB = '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">' + "".join(
    f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)
HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "cut": (xml()[:-9], "is damaged XML (unclosed token: line 1, column"),
    "bomb": (BOMB + "]><annotation>&j;</annotation>", "has a document type definition (DTD)"),
    "external": ('<!DOCTYPE a SYSTEM "file:///etc/passwd"><annotation/>', "type definition (DTD)"),
    "nested": ("<annotation>" + "<a>" * 100_000, "is nested more than 100 elements deep"),
    "large": (xml() + " " * (17 << 20), "is larger than 16 MiB (17,"),
    "encoding": ('<?xml version="1.0" encoding="no-such"?><annotation/>', "unknown encoding"),
    "attributes": (
        "<annotation>" + '<a b="" c=""/>' * 130_000,
        "has too many tags, attributes or lines",
    ),
    "pieces": (
        ("<annotation><name>" + "\u0103\n" * 1_100_000),
        "has too many tags, attributes or lines",
    ),
    "empty": ("", "is damaged XML (no element found"),
    "binary": (b"\0\1\2\3", "is damaged XML (not well-formed"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_bad_file_is_a_fault_of_its_image_alone(tmp_path: Path, case: str) -> None:
    text, message = HOSTILE[case]
    texts = {"1.xml": text, "2.xml": xml(thing("cat", 1, 2, 3, 4)), "gone.xml": text}
    made = source(tmp_path, texts, "1.png", "2.png")
    found = made.read("voc")
    assert made.of(found, "1.png").fault.startswith("1.xml ")
    assert message in made.of(found, "1.png").fault
    assert not len(made.of(found, "1.png").boxes)
    assert made.rows(found)["2.png"] == [("cat", (1, 2, 3, 4))]
    (finding,) = found.findings
    assert finding.startswith("XML files cannot be read and have no image: gone.xml ")


ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "latin-1", "koi8-r", "cp037")
"""The last is of IBM's mainframes, and expat cannot read it."""


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("before", ["", "<!-- c -->\n", "<?p i?>"])
def test_a_dtd_is_refused_in_every_encoding(encoding: str, before: str) -> None:
    name = encoding.removesuffix("-sig").removesuffix("-le").removesuffix("-be")
    first = f'<?xml version="1.0" encoding="{name}"?>{before}'
    inner = '<!DOCTYPE annotation [<!ENTITY a "cat">]>'
    rest = "<annotation><object><name>&a;</name></object></annotation>"
    with pytest.raises(VocError, match=r"\(DTD\)" if encoding != "cp037" else "XML"):
        parse_voc((first + inner + rest).encode(encoding))
    if encoding != "cp037" and not encoding.endswith(("-le", "-be")):
        sound = (first + rest.replace("&a;", "c&#97;t")).encode(encoding)
        assert parse_voc(sound) == VocFile(names=["cat"], boxes=[None])


def test_a_namespace_does_not_matter() -> None:
    text = xml(thing("cat", 1, 2, 3, 4)).replace("<annotation>", '<annotation xmlns="urn:voc">')
    assert parse_voc(text.encode()).boxes == [(1, 2, 3, 4)]


LABELIMG = (DATA / "labelimg.xml").read_text()
_OBJECT = LABELIMG[LABELIMG.index("\t<object>") : LABELIMG.index("</annotation>")]
TWO_OBJECTS = LABELIMG.replace(
    "</annotation>", _OBJECT.replace("cat", "dog").replace("2.5", "0") + "</annotation>"
)
ROBOFLOW = LABELIMG.replace("<ymin>2.5</ymin>", "").replace(
    "<xmax>3</xmax>", "<xmax>3</xmax><ymin>2.5</ymin>"
)
VOC2007 = (
    LABELIMG.replace("Unknown</database>", "VOC2007</database><annotation>PASCAL</annotation>")
    .replace(' verified="yes"', "")
    .replace("<segmented>", "<owner><flickrid>?</flickrid><name>dog</name></owner><segmented>")
)
UNORDERED = LABELIMG.replace("\t\t<pose>Unspecified</pose>\n", "").replace(
    "<difficult>0</difficult>", "<difficult>0</difficult><occluded>0</occluded><pose>Left</pose>"
)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("first", ["", '<?xml version="1.0" encoding="utf-8"?>\n'])
@pytest.mark.parametrize("text", [LABELIMG, ROBOFLOW, VOC2007, UNORDERED])
def test_files_of_the_usual_tools_are_read(text: str, first: str, end: str) -> None:
    data = (first + text).replace("\n", end).encode()
    assert parse_voc(data) == VocFile("x.jpg", (30, 40), ["cat"], [(1, 2.5, 3, 4)])


ODD = ("\0", "\udcff", "c\rat", "\r\n", *data_rows("objects", "odd_xml"))


def test_an_odd_file_is_read_or_is_an_error_of_ours() -> None:
    pieces = re.split(r"(<[^>]*>)", TWO_OBJECTS)
    for at, piece in enumerate(pieces):
        for odd in ODD:
            for changed in (odd, odd + piece):
                text = "".join([*pieces[:at], changed, *pieces[at + 1 :]])
                with contextlib.suppress(VocError, NotVocError):
                    parse_voc(text.encode(errors="surrogateescape"))


@pytest.mark.thorough
def test_many_parts_of_a_file_take_little_memory() -> None:
    code = """
import resource, sys
from shardprep.catalog.objects.formats.voc import VocError, parse_voc
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for part, number in (
    ("<a/>", 330_000), ("<a>\\n</a>", 110_000), ("<a b=''/>", 63_000), ("\\u0103\\n", 330_000),
    ("a", 5_300_000), ("<a>" * 50 + "</a>" * 50, 3_300),
):
    data = ("<annotation>" + part * number + "</annotation>").encode()
    try:
        parse_voc(data)
    except VocError as error:
        assert "parts" not in str(error), (part, error)
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_other_kinds_of_xml_are_ignored(tmp_path: Path) -> None:
    made = source(tmp_path, {"1.xml": "<svg/>", "2.xml": xml()}, "1.png", "2.png")
    found = made.read("voc")
    assert [one is not None for one in found.annotations] == [False, True]
    assert found.documents == ("2.xml",)
    with pytest.raises(
        SourceError,
        match=r"this format; use another format: the source has 1\.xml",
    ):
        source(tmp_path, {"1.xml": "<svg/>"}, "1.png").read("voc")
