"""Labels by tables: which columns `auto` uses, and when it asks."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.builders import jpeg, write_folder
from tests.support.first_contact import Outcome, outcome
from tests.support.scenes import Size, picture


def _outcome(
    folder: Path,
    names: Sequence[str],
    tables: Mapping[str, Sequence[str]],
    size: Size | None = None,
) -> Outcome:
    files = {name: picture("scene", name, name, size) for name in names}
    files |= {name: "\n".join(lines).encode() for name, lines in tables.items()}
    return outcome(write_folder(folder / "source", files), {})


_NAMES = [f"train/{i}.jpg" for i in range(100, 108)]


def _rows(*columns: str) -> list[str]:
    """Return a row for each image; a column is its cells in turn, after blanks."""
    cells = [column.split() for column in columns]
    return [
        ",".join([str(100 + i), *(one[i % len(one)] for one in cells)]) for i in range(len(_NAMES))
    ]


_FLAGS = (
    "1 0 0 0 1 0 0 0",
    "0 0 1 0 0 0 0 0",
    "0 1 1 0 0 0 0 0",
    "0 0 0 1 0 0 0 0",
    "0 1 0 0 0 0 0 0",
)
_DAMAGES = "crack,root,sand,stone,leak"
_POINTS = [f"{i}.5 {i + 3} {i + 9} {i + 11}" for i in range(8)]
_NUMBERS = [" ".join(f"{i * i * n + 7.5}" for i in range(8)) for n in (3, 11, 29)]
_SIZES = "3.5 4.5 2.25 1.5 0.5 9.5"
_ASKED: dict[str, tuple[str, Sequence[str], Sequence[str]]] = {
    "flags of which each image has one are several classes or one": (
        "a,b", ["1 0", "0 1"], ["--labels {}:a,b (", "--labels {}:a,b --target class ("]),
    "a column of flags that sums up the others is left out or not": (
        f"{_DAMAGES},defect,normal", [*_FLAGS, "1 1 1 1 1 0 0 0", "0 0 0 0 0 1 1 1"],
        [f"--labels {{}}:{_DAMAGES},defect,normal (", f"--labels {{}}:{_DAMAGES} ("]),
    "individuals beside their species": (
        "species,individual_id", ["whale whale dolphin dolphin", "a1 b2 c3 d4"],
        ["--labels {}:species (", "--labels {}:individual_id ("]),
    "a type that divides the classes of the target": (
        "target,image_type", ["no no no tb", "well ill well tb"],
        ["--labels {}:target", "--labels {}:image_type"]),
    "flags beside a column of words": (
        "rings,polish,scar,skin",
        ["0 0 1 0", "1 0 0 0", "0 1 0 0", "fair dark medium fair dark medium light light"],
        ["--labels {}:rings,polish,scar", "--labels {}:skin"]),
    "facts about persons last": (
        "gender,hand,skin", ["m f", "left right", "fair dark dark"],
        ["--labels {}:hand", "--labels {}:skin", "--labels {}:gender"]),
    "texts that recur as classes or texts": (
        "latex,font", ["x y z", "A B"],
        ["--labels {}:latex (", "--labels {}:latex --target text ("]),
    "a price before other numbers": (
        "bath,sqft,price,mood", [*_NUMBERS, "p p q q"],
        ["--labels {}:price --target regression", "--labels {}:bath --target regression"]),
    "many columns of numbers as points or a vector": (
        "0,1,2,3,4,5,6,7", _POINTS,
        ["--points {}:0,1,2,3,4,5,6,7 (", "--labels {}:0,1,2,3,4,5,6,7 --target vector ("]),
    "two usual titles of different classes": (
        "label,class", ["0 1", "2 5 7"], ["--labels {}:label (", "--labels {}:class ("]),
    "a column about a split beside numbers that are no sizes": (
        "weight,blood_test", [_SIZES, "positive negative"],
        ["--labels {}:blood_test (", "--labels {}:weight --target regression ("]),
}  # fmt: skip


@pytest.mark.parametrize("case", _ASKED)
def test_readings_of_columns_are_asked_about_in_this_order(case: str, tmp_path: Path) -> None:
    titles, columns, flags = _ASKED[case]
    error = _outcome(tmp_path, _NAMES, {"train.csv": [f"id,{titles}", *_rows(*columns)]}).error
    places = [error.index(one.format("csv:train.csv:id")) for one in flags]
    assert places == sorted(places)


_WORDS = ["on", "the", "way", "home", "we", "saw", "some", "people", "in", "rain"]
_TAGS = ["clear primary", "clear road water", "primary road", "clear primary water"]
_PAIRS = [f"train/{100 + i}.jpg,{('cat', 'dog')[i % 2]}" for i in range(8)]
_FACES = [f"faces/{one}{i}.jpg" for one in ("AF", "CM") for i in range(4)]
_WALKS = [f"people/cam_{one}/{i}{one}.jpg" for one in "ab" for i in range(4)]
_FIGURES = [f"{i:06}.jpg" for i in range(1, 13)]
_SCANS = [f"scan{i}.jpg,{('normal', 'tumor')[i % 2]},{'RGB' if i % 3 else 'L'}" for i in range(12)]
_PARTITION = "--join eval_partition.txt:1 --split column:{}:0=train,1=validation,2=test ("
_PROPOSED: dict[str, tuple[Sequence[str], Mapping[str, Sequence[str]], Sequence[str]]] = {
    "words of boxes may be classes": (
        _NAMES[:4],
        {"boxes.csv": ["image_id,bbox,utf8_string", *(
            f'{100 + i},"[4, 4, 20, 10]",{x}' for i, x in enumerate(("exit", "stop", "12", "a")))]},
        ["--boxes csv:boxes.csv:image_id:bbox:utf8_string (",
         "--boxes csv:boxes.csv:image_id:bbox ("]),
    "numbers of classes in rows of an image are no numbers of rows": (
        _NAMES,
        {"train.csv": ["image,thing", *(
            f"{name},{one}" for i, name in enumerate(_NAMES) for one in (i % 3, (i + 1) % 3))]},
        ["--labels csv:train.csv:image:thing --target multilabel"]),
    "pictures of two kinds with one name": (
        [x for i in range(100, 108) for x in (f"jpeg/all/{i}.jpg", f"all/{i}.png")],
        {"train.csv": ["id,target", *_rows("0 1")]}, ["--include '*.png'", "--include '*.jpg'"]),
    "labels of test images in a table of the solution": (
        [*_NAMES, "test/1_l.jpg", "test/1_r.jpg"],
        {"train.csv": ["id,level", *_rows("0 1")],
         "solution.csv": ["id,level,Usage", "1_l,0,Public", "1_r,1,Private"]},
        [",solution.csv:id:level --split column:Usage:Public=validation,Private=test (",
         "--labels csv:train.csv,solution.csv:id:level ("]),
    "ids with an image for each channel are stacks or one channel": (
        [f"train/{100 + i}_{c}.png" for i in range(8) for c in ("red", "green")],
        {"train.csv": ["Id,Target", *_rows("1 2")]},
        ["--stack '{id}_{red,green}.png' --labels csv:train.csv:Id:Target",
         "--include '*_green.png' --labels 'csv:train.csv:{Id}_green:Target'"]),
    "several images of an id with their tags": (
        [name.replace("train", e).replace("jpg", e) for e in ("jpg", "tif") for name in _NAMES],
        {"train.csv": ["image,tags", *(f"{100 + i},{_TAGS[i % 4]}" for i in range(8))]},
        ["--include '*.jpg' --labels csv:train.csv:image:tags --separator ' ' ("]),
    "labels of few images": (
        [f"img/{i}.jpg" for i in range(12)],
        {"labels.csv": ["id,label", *(f"{i},{'ab'[i % 2]}" for i in range(5))]},
        ["--labels csv:labels.csv:id:label (column 'label' for 5 of 12 images)",
         "--labels none (images without labels)"]),
    "a table of all images beside folds, whose paths only look like other images": (
        [f"images/{name}" for name in _NAMES],
        {"fold/train.csv": ["path,name", *(f"../{one}" for one in _PAIRS[:6])],
         "fold/test.csv": ["path,name", *(f"../{one}" for one in _PAIRS[6:])],
         "all.csv": ["path,name", *_PAIRS]}, ["--labels csv:all.csv:path:name ("]),
    "further cells in a column of splits": (
        [f"{('cat', 'dog')[i % 2]}/{i}.jpg" for i in range(100, 108)],
        {"list.csv": ["id,subset", *_rows("train test unsure")]},
        ["--split column:subset:train=train,test=test,unsure=train"]),
    "columns of a table that shares a column with that of images": (
        _NAMES,
        {"images.csv": ["image,uid,projection", *_rows("0 1 2 3", "a b")],
         "reports.csv": ["uid,findings", *(
             f'{i},"The heart of patient {i} is large. Its lungs are clear, and bones are sound."'
             for i in range(4))]},
        ["--labels csv:images.csv:image:findings --join reports.csv --target text ("]),
    "texts with numbers beside starts of names": (
        _FACES, {"scores.txt": [f"{x[6:]} {1 + i / 7:.4f}" for i, x in enumerate(_FACES)]},
        ["--labels csv:scores.txt:1:2 --target regression (", "--labels prefix ("]),
    "captions of a document beside folders of cameras": (
        _WALKS,
        {"people/texts.json": [json.dumps([
            {"file": x[7:], "split": "train", "captions": [f"A man walks to {x}.", "He is tall."]}
            for x in _WALKS])]},
        ["--labels csv:people/texts.json:file:captions --target texts", "--labels folder ("]),
    "attributes with titles and identities without": (
        _FIGURES,
        {"list_attr.txt": ["12", "Male Smiling ", *(
            f"{x}  {(-1, 1)[i % 2]} {(1, 1, -1)[i % 3]}" for i, x in enumerate(_FIGURES))],
         "identity.txt": [f"{x} {2880 + i % 4}" for i, x in enumerate(_FIGURES)],
         "eval_partition.txt": [f"{x} {i // 5}" for i, x in enumerate(_FIGURES)]},
        [f"csv:identity.txt:1:2 {_PARTITION.format('eval_partition.2')}",
         f"csv:list_attr.txt:1:Male,Smiling {_PARTITION.format('2')}"]),
    "a table of one of two pictures of each sample": (
        [f"{kind}/{i}.jpg" for kind in ("a_png", "b_png") for i in range(100, 108)],
        {"list.csv": ["file,grade", *(f"a_png/{i}.jpg,{'xy'[i % 2]}" for i in range(100, 108))]},
        ["--labels csv:list.csv:file:grade (column 'grade' for 8 of 16 images)"]),
    "a cell of splits whose rows have no label may mean test": (
        [name.replace("train", "all") for name in _NAMES],
        {"list.csv": ["id,identity,split", *(
            f"{i},{'' if i > 105 else 'xy'[i % 2]},{'ab'[i > 105]}" for i in range(100, 108))]},
        ["--labels csv:list.csv:id:identity --split column:split:a=train,b=test ("]),
    "flags that differ among the images of a folder may be alone": (
        [f"train/s{i // 4}/{i}.jpg" for i in range(100, 116)],
        {"train.csv": ["id,series,seen,left,right", *(
            f"{i},s{i // 4},{i % 2},{i // 4 % 2},{int(i > 111)}" for i in range(100, 116))]},
        ["--labels csv:train.csv:id:seen,left,right (", "--labels csv:train.csv:id:seen ("]),
    "questions and answers of an image are texts": (
        _NAMES,
        {"Public.json": [json.dumps([
            {"image_name": f"{100 + i}.jpg", "organ": "HEAD", "question": f"Is {j} in {i}?",
             "answer": word}
            for i in range(8) for j, word in enumerate(("Yes", f"In the part {i}"))])]},
        ["--labels csv:Public.json:image_name:question --target texts",
         "--labels csv:Public.json:image_name:answer --target texts"]),
    "folders beside tables that give their classes other names": (
        [f"{('Healthy', 'Brain Tumor')[i % 2]}/scan{i}.jpg" for i in range(12)],
        {"a.csv": ["image,class,mode", *_SCANS], "rgb.csv": ["image,class,mode", *_SCANS[:9]]},
        ["--labels csv:a.csv:image:class", "--labels folder (the folders, with other names: "]),
    "texts beside images that another document names": (
        _NAMES,
        {**{name.replace(".jpg", ".txt"): [" ".join([*_WORDS[i:], *_WORDS[:i]])]
            for i, name in enumerate(_NAMES)},
         "moods.txt": ["ID\ttext,image", *(
             f"{100 + i}\tgood,{('bad', 'good')[i % 2]}" for i in range(8))]},
        ["--labels 'text:{stem}.txt' --target text", "moods.txt names them and is not read"]),
}  # fmt: skip
"""Images, tables, and parts of the question in order."""


@pytest.mark.parametrize("case", _PROPOSED)
def test_readings_of_tables_are_proposed(case: str, tmp_path: Path) -> None:
    names, tables, parts = _PROPOSED[case]
    error = _outcome(tmp_path, names, tables).error
    places = [error.index(one) for one in parts]
    assert places == sorted(places)


_STORED: dict[str, tuple[str, Sequence[str], Mapping[str, str]]] = {
    "flags are one label, also without a flag in any row": (
        "plot,a,b,c", ["x", "1 0", "1 1", "0"], {"labels": "a,b"}),
    "a column of flags that only resembles a sum is a class": (
        f"{_DAMAGES},defect,normal", [*_FLAGS, "1 1 1 1 0 0 0 1", "0 0 0 0 0 1 1 1"],
        {"labels": "crack,defect"}),
    "facts about a patient are no labels beside a column of labels": (
        "smoke,itch,biopsed,diagnostic",
        ["True False", "False True", "True True False", "NEV MEL"], {"label": "NEV"}),
    "numbers of classes are named by a column of words one to one": (
        "letter,label", ["a b c d", "1 2 3 4"], {"label": "a"}),
    "a column that says where images come from names no classes": (
        "source,label", ["a b c d", "1 2 3 4"], {"label": "1"}),
    "y numbers the classes beside their ids": ("category_id,y", ["24 83", "5 6"], {"label": "5"}),
    "titles may have capitals and blanks": (
        "Category ID,Y", ["24 83", "5 6"], {"label": "5"}),
    "long lists of classes have a separator": (
        "Finding,Age", ["upper_lobe|lower_lobe upper_lobe lower_lobe", "50 60"],
        {"labels": "lower_lobe,upper_lobe"}),
    "y is a coordinate beside x": ("category_id,y,x", ["24 83", "5 6", "7 9 3"], {"label": "24"}),
    "two usual titles of the same classes are one": (
        "label,class", ["0 1", "2 5"], {"label": "0"}),
    "a word of the title decides, and cells may have several classes": (
        "Finding Labels,Patient Age", ["a|b a b", "50 60"], {"labels": "a,b"}),
    "a column about a split is no label beside another": (
        "trunk,service_test", ["elm elm oak oak ash ash ash ash", "True False False"],
        {"label": "elm"}),
    "a column about a split is the label if it is the only likely one": (
        "width,blood_test", [_SIZES, "positive negative"], {"label": "positive"}),
}  # fmt: skip


@pytest.mark.parametrize("case", _STORED)
def test_columns_of_labels_are_stored_without_a_question(case: str, tmp_path: Path) -> None:
    titles, columns, fact = _STORED[case]
    found = _outcome(tmp_path, _NAMES, {"train.csv": [f"id,{titles}", *_rows(*columns)]})
    assert found.facts.get("train/100.jpg") == {"split": "train", **fact}, found.error


@pytest.mark.parametrize(
    ("titles", "shown", "fact"),
    [("eyes,score,view", "score", {"number": "63.0"}),
     ("benign_malignant,target", "target", {"label": "0"})],
)  # fmt: skip
def test_columns_of_a_sample_submission_are_the_labels(
    titles: str, shown: str, fact: Mapping[str, str], tmp_path: Path
) -> None:
    """Also if another column names their numbers."""
    columns = {"score": ["0 1", "63 42 28 7", "a b"], "target": ["benign malignant", "0 1"]}[shown]
    tables = {
        "train.csv": [f"id,{titles}", *_rows(*columns)],
        "sample_submission.csv": [f"id,{shown}", "900,12.5" if shown == "score" else "900,0"],
    }
    found = _outcome(tmp_path, _NAMES, tables)
    assert found.facts["train/100.jpg"] == {"split": "train", **fact}


def test_counts_that_are_also_numbers_of_images_are_no_files(tmp_path: Path) -> None:
    names = [f"train/{i}.jpg" for i in range(16)]
    rows = [f"{i},{i * 3 % 11},{40 + i * 7 % 13},{50 + i % 9}" for i in range(16)]
    header = "id,adults,males,pups"
    tables = {"train.csv": [header, *rows], "sample_submission.csv": [header, "900,1,1,1"]}
    found = _outcome(tmp_path, names, tables)
    assert "csv:train.csv:id:adults,males,pups" in f"{found.error}{found.notes}"


def test_a_table_of_splits_divides_images_whose_boxes_are_in_files_of_their_own(
    tmp_path: Path,
) -> None:
    header = "filename,class,xmin,ymin,xmax,ymax"
    rows = {f"data/{i}": f"{i},{'ab'[i % 2]},4,4,20,20" for i in range(100, 108)}
    tables = {f"{stem}.csv": [header, row] for stem, row in rows.items()}
    stated = [f"{row},{('train', 'test')[i == 7]}" for i, row in enumerate(rows.values())]
    names = [f"{stem}.jpg" for stem in rows] + [f"crop/{i}_0.jpg" for i in range(100, 110)]
    found = _outcome(tmp_path, names, {**tables, "all.csv": [f"{header},split", *stated]})
    assert [one["split"] for one in found.facts.values()] == ["train"] * 7 + ["test"]


def test_copies_of_a_table_are_one_table_and_spacings_are_no_points(tmp_path: Path) -> None:
    """Findings between bars are several, also if some occur once."""
    names = [f"a/images/{i}.jpg" for i in range(100, 108)]
    rows = _rows("A|B C|A D A|E B None F|A G", "0.14 0.17", "0.14 0.17", "AP PA")
    table = ["id,Finding Labels,Spacing_x,Spacing_y,View", *rows]
    found = _outcome(tmp_path, names, {"t.csv": table, "a/t.csv": table, "a/b/t.csv": table})
    assert found.facts["a/images/100.jpg"] == {"split": "train", "labels": "A,B"}
    assert "csv:t.csv:id:Finding Labels" in " ".join(found.notes)


def test_other_words_in_test_are_texts_if_the_pictures_are_wide(tmp_path: Path) -> None:
    names = [*_NAMES, "test/900.jpg", "test/901.jpg"]
    tables = {
        "train.csv": ["id,identity", *_rows("SIMON BENES DAPHNE LENA")],
        "test.csv": ["id,identity", "900,KEVIN", "901,CLOTAIRE"],
    }
    found = _outcome(tmp_path / "1", names, tables, (96, 24))
    assert found.facts["train/100.jpg"] == {"split": "train", "text": "SIMON"}
    found = _outcome(tmp_path / "2", names, tables)
    assert "--target text (" in found.error
    assert "csv:test.csv,train.csv:id:identity (" in found.error


def test_a_table_of_a_tool_for_several_classes_has_several(tmp_path: Path) -> None:
    found = _outcome(tmp_path, _NAMES, {"train/_classes.csv": ["id,a,b", *_rows("1 0", "0 1")]})
    assert found.facts["train/100.jpg"] == {"split": "train", "labels": "a"}


@pytest.mark.parametrize("title", ["boneage", "age"])
def test_numbers_and_texts_beside_a_column_of_flags_are_asked_about(
    title: str, tmp_path: Path
) -> None:
    own = _rows("180 12 94 120 82 138 150", "False True True", "a-long-remark-{}".format("x" * 9))
    own = [f"{row}-{i}" for i, row in enumerate(own)]
    found = _outcome(tmp_path, _NAMES, {"train.csv": [f"id,{title},male,seen", *own]})
    assert "--labels csv:train.csv:id:male (" in found.error
    assert f"--labels csv:train.csv:id:{title} --target regression (" in found.error
    assert "--labels csv:train.csv:id:seen --target text (" in found.error


@pytest.mark.parametrize("start", [0, 1])
def test_a_column_that_numbers_the_rows_of_an_image_is_no_target(
    start: int, tmp_path: Path
) -> None:
    texts = ["A dog runs", "A cat sleeps", "Two birds sing"]
    lines = [
        f"{name},{start + i},{texts[i]} on day {name[6:9]}"
        for name in _NAMES
        for i in range(2 + (name > "train/103"))
    ]
    found = _outcome(tmp_path, _NAMES, {"captions.csv": ["image,caption_number,caption", *lines]})
    assert not found.error
    both = {"split": "train", "texts": "A dog runs on day 100|A cat sleeps on day 100"}
    assert found.facts["train/100.jpg"] == both


def test_two_columns_like_classes_are_asked(tmp_path: Path) -> None:
    tables = {"train.csv": ["id,race,mood,age", *_rows("x y", "p p q q", "30 40")]}
    error = _outcome(tmp_path, _NAMES, tables).error
    assert "csv:train.csv:id:race" in error
    assert "csv:train.csv:id:mood" in error
    assert "csv:train.csv:id:age" not in error


@pytest.mark.parametrize("sign", [" = ", "="])
def test_different_texts_are_no_classes_if_they_have_several_words(
    sign: str, tmp_path: Path
) -> None:
    rows = [f"{i},x{sign}{i}" for i in range(100, 108)]
    found = _outcome(tmp_path, _NAMES, {"a.csv": ["id,formula_of", *rows]})
    is_asked = "--labels csv:a.csv:id:formula_of (" in found.error
    assert is_asked or found.facts[_NAMES[0]] == {"split": "train", "text": "x = 100"}
    assert is_asked is (" " not in sign)


@pytest.mark.parametrize("column", ["md5", "class", "width"])
def test_class_folders_beside_a_table_of_the_same_or_of_sizes_are_no_question(
    tmp_path: Path, column: str
) -> None:
    names = [f"{name}/{i}.jpg" for i in range(4) for name in ("cat", "dog")]
    cells = {"md5": ["0a", "0b"], "class": ["1", "2"], "width": ["40", "50"]}[column]
    lines = [f"file,{column},height"]
    lines += [f"{name},{cells[i % 2]},48" for i, name in enumerate(names)]
    found = _outcome(tmp_path, names, {"meta.csv": lines})
    assert not found.error
    assert len({fact["label"] for fact in found.facts.values()}) == 2


def test_a_table_without_header_is_read_without_one(tmp_path: Path) -> None:
    lines = [f"{name} {i % 2}" for i, name in enumerate(_NAMES)]
    found = _outcome(tmp_path, _NAMES, {"list.txt": lines})
    assert [found.facts[name]["label"] for name in _NAMES[:2]] == ["0", "1"]


def test_a_text_for_each_image_is_its_target(tmp_path: Path) -> None:
    texts = {f"train/{i}.txt": [f"a house, number {i}"] for i in range(100, 108)}
    found = _outcome(tmp_path, _NAMES, texts)
    assert found.facts["train/100.jpg"]["text"] == "a house, number 100"


@pytest.mark.parametrize(
    ("numbers", "label", "others_are"),
    [({"mild": 1, "no": 0}, "mild", "asked"), ({"00001": 1, "00007": 7}, "00001", "used")],
)
def test_folders_are_the_labels_if_a_table_numbers_them(
    tmp_path: Path, numbers: Mapping[str, int], label: str, others_are: str
) -> None:
    names = {f"{folder}/a{i}f{n}.jpg": n for folder, n in numbers.items() for i in range(4)}
    rows = [f"{name.rpartition('/')[2]},{n}" for name, n in names.items()]
    found = _outcome(tmp_path / "1", [*names], {"train.csv": ["id,grade", *rows]})
    assert found.facts[next(iter(names))]["label"] == label
    others = [*rows[:-1], rows[-1].replace(",", ",9")]  # one number is of no folder
    found = _outcome(tmp_path / "2", [*names], {"train.csv": ["id,grade", *others]})
    if others_are == "used":
        assert "train.csv, column 'grade'" in found.labels_from
    else:
        assert "--labels csv:train.csv:id:grade (" in found.error
        assert "--labels folder (the folders, which are other classes" in found.error


@pytest.mark.parametrize("names", ["train/10{}.jpg", "train/{}.jpg"])
def test_two_tables_that_disagree_are_asked_about(names: str, tmp_path: Path) -> None:
    images = [names.format(i) for i in range(8)]
    ids = [name[6:-4] for name in images]
    tables = {
        file: ["id,label", *(f"{one},{(i + first) % 2}" for i, one in enumerate(ids))]
        for first, file in enumerate(("a.csv", "b.csv"))
    }
    found = _outcome(tmp_path / "1", images, tables)
    assert "--labels csv:a.csv:id:label (" in found.error
    assert "--labels csv:b.csv:id:label (" in found.error
    found = _outcome(tmp_path / "2", images, tables | {"b.csv": tables["b.csv"][:4]})
    assert "b.csv is not used; it gives 3 images another label" in found.notes


@pytest.mark.parametrize(
    ("classes", "difference"),
    [("aaaabbbb", "differ from 'label' for 4 images"), ("xyxxxyxy", "are other classes than"),
     ("wxyzwxyz", "are other classes than 'label'"), ("xxxxxxxx", ""), ("xyxyxyxy", "")],
)  # fmt: skip
def test_classes_of_a_table_that_contradict_their_folders_are_asked_about(
    tmp_path: Path, classes: str, difference: str
) -> None:
    """Other names of the same classes are a note."""
    names = [f"{'ab'[i % 2] * 3}/{100 + i}.jpg" for i in range(8)]
    rows = ["id,label", *(f"{100 + i},{one * 3}" for i, one in enumerate(classes))]
    found = _outcome(tmp_path, names, {"train.csv": rows})
    if difference:
        assert "--labels csv:train.csv:id:label (" in found.error
        assert f"--labels folder (the folders, which {difference}" in found.error
    elif len({*classes}) > 1:
        note = "column 'label' for 8 of 8 images renames the class folders: aaa is xxx, bbb is yyy"
        assert note in found.notes
    else:
        assert found.facts["aaa/100.jpg"]["label"] == "aaa"


def test_pairs_of_images_do_not_label_the_first(tmp_path: Path) -> None:
    rows = [f"{100 + i},{100 + (i + 1) % 8},{i % 2}" for i in range(8)]
    found = _outcome(tmp_path / "1", _NAMES, {"pairs.csv": ["left,right,same", *rows]})
    assert "pairs.csv: columns 'left' and 'right' name different images in a row" in found.error
    found = _outcome(tmp_path / "2", _NAMES, {"pairs.csv": ["image,next,label", *rows]})
    assert found.facts["train/101.jpg"]["label"] == "1"


_STATED = ["train", "val", "test", "train"]


@pytest.mark.parametrize("title", ["split", "Subset"])
def test_a_column_that_states_splits_is_used_or_noted(title: str, tmp_path: Path) -> None:
    names = [f"all/{100 + i}.jpg" for i in range(8)]
    tables = {"meta.csv": [f"id,label,{title}", *_rows("a b", " ".join(_STATED))]}
    found = _outcome(tmp_path, names, tables)
    splits = ["train", "validation", "test", "train"] * 2
    assert [found.facts[name]["split"] for name in names] == splits
    given = outcome(tmp_path / "source", {"labels": "csv:meta.csv:id:label"})
    assert {one["split"] for one in given.facts.values()} == {"train"}
    note = f"column {title!r} of meta.csv states splits: --split column:{title} uses it"
    assert note in given.notes
    used = outcome(
        tmp_path / "source", {"labels": "csv:meta.csv:id:label", "split": f"column:{title}"}
    )
    assert [used.facts[name]["split"] for name in names] == splits


_ALL = [name.replace("train", "all") for name in _NAMES]


@pytest.mark.parametrize(
    ("title", "cells", "splits"),
    [
        ("split", "train train query gallery", "train train query gallery"),
        ("evaluation_status", "train train query gallery", "train train query gallery"),
        ("split", "train id_val test ood_test", "train id_val test ood_test"),
        ("Train", "1 1 1 0", "train train train test"),
    ],
    ids=["usual title", "any title", "another word is a split of its own", "for training or not"],
)
def test_a_column_of_splits_divides_the_images(
    title: str, cells: str, splits: str, tmp_path: Path
) -> None:
    found = _outcome(tmp_path, _ALL, {"meta.csv": [f"id,label,{title}", *_rows("a b", cells)]})
    assert [found.facts[name]["split"] for name in _ALL] == 2 * splits.split()


@pytest.mark.parametrize("cell", ["holdout", "Not-Sure"])
def test_a_cell_in_a_column_of_splits_without_such_a_word_is_asked_about(
    cell: str, tmp_path: Path
) -> None:
    rows = _rows("a b", f"train test {cell}")
    error = _outcome(tmp_path, _ALL, {"meta.csv": ["id,label,split", *rows]}).error
    flag = f"--split column:split:train=train,test=test,{cell}=train ("
    assert f"--labels csv:meta.csv:id:label {flag}" in error
    assert "--labels csv:meta.csv:id:label (" in error


def test_empty_cells_in_a_column_of_splits_are_asked_about(tmp_path: Path) -> None:
    rows = [
        f"{row},{split}"
        for row, split in zip(_rows("a b")[:6], ["train", "test", ""] * 2, strict=True)
    ]
    error = _outcome(tmp_path, _ALL[:6], {"meta.csv": ["id,label,split", *rows]}).error
    assert "--split column:split:train=train,test=test (" in error
    assert "column 'split' of meta.csv; an empty cell as train" in error
    rows = [row.replace("test", "extra") for row in rows]  # all images would be in train
    assert _outcome(tmp_path, _ALL[:6], {"meta.csv": ["id,label,split", *rows]}).facts


def test_two_columns_of_one_title_are_no_error_if_nothing_uses_them(tmp_path: Path) -> None:
    rows = [f"{row},{i},{i + 1}" for i, row in enumerate(_rows("a b"))]
    found = _outcome(tmp_path, _ALL, {"meta.csv": ["id,label,note,note", *rows]})
    assert found.facts[_ALL[1]]["label"] == "b", found.error


@pytest.mark.parametrize(
    ("title", "more", "flag"),
    [
        ("image", {}, "'csv:ann/{id}.csv:image:"),
        ("id", {}, "'csv:ann/{file}.csv:id:"),
        ("image", {"ann/all.csv": ["image,xmin,ymin,xmax,ymax,score", "0.jpg,1,2,9,8,1"]}, ""),
        ("image", {"old/ann/0.csv": ["image,xmin,ymin,xmax,ymax,score", "0.jpg,1,2,9,8,1"]}, ""),
        ("image", {"ann/none.csv": []}, ""),
    ],
)
def test_many_tables_have_a_pattern_if_it_fits_no_other_file(
    title: str, more: dict[str, list[str]], flag: str, tmp_path: Path
) -> None:
    """A table has the boxes of two images, so that its name is no id."""
    tables = {
        f"ann/{i:02}.csv": [
            f"{title},xmin,ymin,xmax,ymax,label",
            *(f"{n}.jpg,1,2,9,8,cat" for n in (2 * i, 2 * i, 2 * i + 1)),
        ]
        for i in range(20)
    }
    found = _outcome(tmp_path, [f"img/{i}.jpg" for i in range(40)], tables | more)
    assert {one["boxes"] for one in found.facts.values()} == {"cat,cat", "cat"}, found.error
    assert flag in " ".join(found.notes)
    assert ("{" in " ".join(found.notes)) == bool(flag)


def test_words_of_splits_beside_other_words_are_classes_of_a_column(tmp_path: Path) -> None:
    """Ids that begin with a word of a split state none, either."""
    rows = [f"train_{i},{one}" for i, one in enumerate(["train", "bus", "test", "car"] * 2)]
    names = [f"all/train_{i}.jpg" for i in range(8)]
    found = _outcome(tmp_path, names, {"meta.csv": ["id,vehicle", *rows]})
    assert [found.facts[one]["label"] for one in names[:2]] == ["train", "bus"]
    assert {one["split"] for one in found.facts.values()} == {"train"}


def test_a_list_of_names_classes_and_splits_divides_the_folders(tmp_path: Path) -> None:
    names = [f"img/{'ab'[i % 2] * 4}/{i}.jpg" for i in range(8)]
    words = ["train", "query", "gallery", "gallery"] * 2
    pairs = [*zip(names, words, strict=True)]
    rows = [f"{name} {name.split('/')[1]} {word}" for name, word in pairs]
    found = _outcome(tmp_path, names, {"list_partition.txt": ["image item status", *rows]})
    assert [found.facts[name]["split"] for name in names] == words
    assert found.facts[names[0]]["label"] == "aaaa"


def test_a_table_with_labels_that_names_no_image_is_noted(tmp_path: Path) -> None:
    rows = [f"other-{i},{i % 2}" for i in range(8)]
    found = _outcome(tmp_path, _NAMES, {"meta.csv": ["id,label", *rows]})
    what = "none of its columns has names of images in the source: id (other-0), label (0)"
    assert f"meta.csv is not used: {what}" in found.notes


def test_a_table_of_splits_divides_images_of_class_folders(tmp_path: Path) -> None:
    names = [f"{'ab'[i // 4]}/{100 + i}.jpg" for i in range(8)]
    found = _outcome(tmp_path, names, {"meta.csv": ["id,split", *_rows(" ".join(_STATED))]})
    assert [found.facts[name]["split"] for name in names[:3]] == ["train", "validation", "test"]
    assert found.facts[names[7]] == {"split": "train", "label": "b"}


@pytest.mark.parametrize(("last", "classes"), [("-1", {"0", "1"}), ("1", {"-1", "0", "1"})])
def test_minus_1_is_no_class_if_only_and_all_test_images_have_it(
    tmp_path: Path, last: str, classes: set[str]
) -> None:
    """As in the Parquet of a test set whose labels are not public."""
    names = [f"{'train' if i < 6 else 'test'}/{i}.jpg" for i in range(9)]
    labels = [*("01" * 3), "-1", "-1", last]
    rows = ["id,label", *(f"{i},{one}" for i, one in enumerate(labels))]
    found = _outcome(tmp_path, names, {"labels.csv": rows})
    assert {fact["label"] for fact in found.facts.values() if "label" in fact} == classes
    note = "--null 'nan,NaN,<NA>,-1' is decided: 3 images of test have no label but -1"
    assert (note in found.notes) == (last == "-1")


def test_web_addresses_are_no_labels(tmp_path: Path) -> None:
    rows = [f"{100 + i},https://example.com/{i}.jpg" for i in range(len(_NAMES))]
    found = _outcome(tmp_path, _NAMES, {"links.csv": ["id,link_text", *rows]})
    assert all("text" not in fact for fact in found.facts.values())


def test_the_largest_of_lists_within_each_other_has_the_test_images(tmp_path: Path) -> None:
    own = [f"{i} {i % 2 + 70}" for i in range(100, 116)]
    tables = {"train_list.txt": own[:8], "test_list_2.txt": own[8:10], "test_list_8.txt": own[8:]}
    found = _outcome(tmp_path, [f"images/{i}.jpg" for i in range(100, 116)], tables)
    assert {fact["split"] for fact in found.facts.values()} == {"train", "test"}
    assert len(found.facts) == 16


def test_a_column_of_splits_counts_for_images_outside_of_folders_of_splits(tmp_path: Path) -> None:
    names = [f"set/{i}.jpg" for i in range(100, 108)] + ["test/900.jpg", "test/901.jpg"]
    tables = {
        "index.csv": ["id,class,train-valid", *_rows("a b", "train train train valid")],
        "test.csv": ["id,class", "900,a", "901,b"],
    }
    found = _outcome(tmp_path, names, tables)
    assert found.facts["set/103.jpg"] == {"split": "validation", "label": "b"}
    assert found.facts["test/900.jpg"] == {"split": "test", "label": "a"}


def test_paths_of_images_in_a_table_come_before_folders_of_studies(tmp_path: Path) -> None:
    names = [f"set/patient{i}/study{n}/view.jpg" for i in range(4) for n in (1, 2)]
    rows = [f"{name},{i % 2},{i % 3 % 2},1" for i, name in enumerate(names)]
    found = _outcome(tmp_path, names, {"set/list.csv": ["Path,edema,fracture,device", *rows]})
    assert "--labels csv:set/list.csv:Path:edema,fracture,device" in found.error + str(found.notes)


def test_cells_of_four_numbers_are_boxes_and_another_cell_means_none(tmp_path: Path) -> None:
    cells = [
        "9 8 20 21",
        "4 5 15 18;2 2 9 9",
        "1 2 8 9",
        "3 3 9 12",
        "5 4 20 11",
        "7 7 9 9",
        "none_here",
        "none_here",
    ]
    rows = [f"{100 + i},{cell},{'xyz'[i % 3]}" for i, cell in enumerate(cells)]
    found = _outcome(tmp_path, _NAMES, {"train.csv": ["id,spots,site", *rows]})
    assert found.facts["train/101.jpg"] == {"split": "train", "boxes": "object,object"}
    assert found.facts["train/107.jpg"] == {"split": "train", "boxes": ""}
    assert "--boxes 'csv:train.csv:id:xyxy(spots)' --null none_here" in " ".join(found.notes)


def test_tables_that_number_many_folders_anew_prove_that_these_are_classes(tmp_path: Path) -> None:
    keys = [f"set/{n:03}/{i}{n}.jpg" for n in range(300, 460) for i in range(4)]
    lists = {
        f"{split}.txt": "\n".join(f"{key} {int(key[4:7]) - start}" for key in own).encode()
        for split, start, own in (("train", 300, keys[:400]), ("test", 400, keys[400:]))
    }
    members = {key: jpeg(8, 8, i) for i, key in enumerate(keys)} | lists
    found = outcome(write_folder(tmp_path / "source", members), {})
    assert found.facts[keys[0]] == {"split": "train", "label": "300"}
    assert found.facts[keys[-1]] == {"split": "test", "label": "459"}


@pytest.mark.parametrize("file", ["train_test_split", "test_or_train_split"])
def test_a_text_of_splits_by_number_is_asked_about_unless_its_form_is_documented(
    file: str, tmp_path: Path
) -> None:
    names = [f"{kind}/{i}.jpg" for kind in ("crow", "gull") for i in range(6)]
    lists = {
        "images.txt": [f"{i} {name}" for i, name in enumerate(names, 1)],
        f"{file}.txt": [f"{i} {i % 2}" for i in range(1, len(names) + 1)],
    }
    found = _outcome(tmp_path / "open", names, lists)
    given = outcome(tmp_path / "open" / "source", {"labels": "folder"})
    if file == "train_test_split":
        for facts in (found.facts, given.facts):
            train = [key for key, fact in facts.items() if fact["split"] == "train"]
            assert sorted(train) == names[::2]
        return
    flags = f"--labels folder --join images.txt --join {file}.txt:1"
    assert f"{flags} --split column:{file}.2:1=train,0=test (" in found.error
    assert "--labels folder (all images are in train)" in found.error
    assert {fact["split"] for fact in given.facts.values()} == {"train"}


def test_names_composed_of_cells_have_their_row(tmp_path: Path) -> None:
    places = [(patient, x) for patient in (7, 12) for x in (31, 64, 96)]
    names = [f"p_{patient}_x_{x}.png" for patient, x in places]
    rows = [f"{patient},{x},{'tumor' if x > 60 else 'normal'}" for patient, x in places]
    found = _outcome(tmp_path, names, {"patches.csv": ["patient,x_coord,tissue", *rows]})
    assert found.facts["p_12_x_31.png"] == {"split": "train", "label": "normal"}
    assert found.facts["p_12_x_64.png"] == {"split": "train", "label": "tumor"}


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (("train.csv", "id,kind", ",{}"), ("sample_submission.csv", "id,a,b", ",0.5,0.5")),
        (("train.jsonl", "", ""), ("test.jsonl", "", "")),
    ],
)
def test_a_table_of_test_images_without_labels_beside_that_of_train_states_their_split(
    train: tuple[str, str, str], test: tuple[str, str, str], tmp_path: Path
) -> None:
    names, tables = [f"all/p{i}.jpg" for i in range(12)], {}
    for (name, head, cells), numbers in ((train, range(9)), (test, range(9, 12))):
        rows = [head, *(f"p{i}{cells.format('ab'[i % 2])}" for i in numbers)]
        own = [{"id": f"p{i}", "note": f"{i} {i}", "label": "ab"[i % 2]} for i in numbers]
        for row in own if name == "test.jsonl" else ():
            del row["label"]
        tables[name] = rows if head else [*map(json.dumps, own)]
    found = _outcome(tmp_path, names, tables)
    assert {found.facts[f"all/p{i}.jpg"]["split"] for i in range(9, 12)} == {"test"}
    assert found.facts["all/p1.jpg"] == {"split": "train", "label": "b"}


def test_a_table_of_test_images_counts_although_they_are_in_a_folder_called_train(
    tmp_path: Path,
) -> None:
    tables = {
        "train.csv": ["image,label", *(f"{i}.jpg,{i % 2}" for i in range(100, 106))],
        "test.csv": ["image", "106.jpg", "107.jpg"],
    }
    found = _outcome(tmp_path, _NAMES, tables)
    tested = {key for key, fact in found.facts.items() if fact["split"] == "test"}
    assert tested == {"train/106.jpg", "train/107.jpg"}
    assert len(found.facts) == len(_NAMES)


def test_two_columns_of_grades_are_asked_for_apart_and_together(tmp_path: Path) -> None:
    """The tables of two splits are one, though only the first has empty columns at its end."""
    grades = _rows("0 1 2", "0 1")
    tables = {
        "a. Training.csv": ["Image name,Retinopathy grade,Risk of edema ,,,", *grades[:6]],
        "b. Testing.csv": ["Image name,Retinopathy grade,Risk of edema", *grades[6:]],
    }
    names = [f"{'train' if i < 106 else 'test'}/{i}.jpg" for i in range(100, 108)]
    error = _outcome(tmp_path, names, tables).error
    assert ":'Image name':" not in error
    for columns in ("Retinopathy grade", "Risk of edema", "Retinopathy grade,Risk of edema"):
        assert f"Testing.csv:Image name:{columns}'" in error
    assert "Retinopathy grade,Risk of edema' --target classes" in error


def test_a_sample_submission_with_the_columns_of_labels_states_no_split(tmp_path: Path) -> None:
    names = [f"all/{i}.jpg" for i in range(100, 112)]
    tables = {"train.csv": ["id,kind", *_rows("a b")]}
    tables["sample_submission.csv"] = ["id,kind", *(f"{i},a" for i in range(108, 112))]
    facts = _outcome(tmp_path, names, tables).facts
    assert {fact["split"] for fact in facts.values()} == {"train"}


def test_a_table_that_links_images_to_rows_of_another_table_is_joined(tmp_path: Path) -> None:
    tables = {
        "links.csv": ["photo,shop", *_rows("7 8 9")],
        "shops.csv": ["shop,label", "7,food", "8,books", "9,food"],
    }
    error = _outcome(tmp_path / "1", _NAMES, tables).error
    assert "--labels csv:links.csv:photo:label --join shops.csv" in error
    assert "--labels csv:links.csv:photo:shop" in error
    tables["shops.csv"] = ["shop,name", "7,Food", "8,Books", "9,Shoes"]
    assert _outcome(tmp_path / "2", _NAMES, tables).facts["train/100.jpg"]["label"] == "7"


def test_cells_with_a_json_list_of_captions_are_texts(tmp_path: Path) -> None:
    lists = [[f"A dog runs in field {i}.", f"The dog of photo {i} runs."] for i in range(8)]
    cells = [json.dumps(one).replace('"', '""') for one in lists]
    rows = [f'{100 + i},"{cell}","[{i}, 9]"' for i, cell in enumerate(cells)]
    found = _outcome(tmp_path, _NAMES, {"a.csv": ["filename,raw,sentids", *rows]})
    assert found.facts["train/101.jpg"]["texts"] == "|".join(lists[1])
