"""`--relabel` replaces the labels of the images that a table names, and of no others."""

import shlex
from pathlib import Path
from typing import Any

import pytest

import shardprep
from shardprep.errors import ShardprepError, SourceError
from shardprep.recipe.recipe import make_recipe
from tests.catalog.builders import catalog, images
from tests.support.builders import build, jpeg, write, write_folder

KEYS = ("cat/1.png", "cat/2.png", "x/cat/1.png", "dog/3.png", "dog/4.png", "test/5.png")


def relabelled(folder: Path, table: str, **keys: Any) -> tuple[dict[str, str | None], Any]:
    """Return the label of each image, and the catalog; the labels are those of folders."""
    file = write(folder / "fixes.csv", table.encode())
    made = catalog(folder, images(*KEYS), **{"relabel": f"csv:{file}", **keys})
    names = (None, *made.label_names)
    targets = [-1 if one.target is None else one.target for one in made.items]
    return {
        one.key: names[int(str(t)) + 1] for one, t in zip(made.items, targets, strict=True)
    }, made


def test_only_named_images_with_a_label_get_another(tmp_path: Path) -> None:
    """A whole key is that image alone; an end of a key and a name do as in other tables."""
    table = "key,label\ncat/1.png,dog\n4,wolf\ndog/3.png,\ntest/5.png,cat\nno.png,cat\n"
    before, same = relabelled(tmp_path / "1", "key,label\ncat/2.png,cat\n")
    (warning,) = (one for one in same.findings if one.startswith("warning: --relabel: 1 row of "))
    assert "0 labels changed; labels are read from " in warning
    assert before == dict(zip(KEYS, ("cat", "cat", "cat", "dog", "dog", None), strict=True))
    after, made = relabelled(tmp_path / "2", table, classes=("cat", "dog", "wolf"))
    assert after == before | {"cat/1.png": "dog", "dog/4.png": "wolf"}
    assert made.rows_without_image == ("no.png",)
    assert any("fixes.csv: 1 of 5 entries (20%) fit no image" in one for one in made.findings)
    remark = next(one for one in made.findings if one.startswith("--relabel: 2 rows"))
    assert "fixes.csv, 2 labels changed; " in remark
    assert "2 images have no label, or an empty cell there" in remark
    assert made.labels_from.endswith("fixes.csv, column 'label' by 'key'")


def test_an_id_in_another_case_is_relabelled_and_said(tmp_path: Path) -> None:
    labels, made = relabelled(tmp_path, "key,label\nDOG/3.PNG,cat\nDog/4,cat\ncat/1.png,dog\n")
    assert labels["dog/3.png"] == labels["dog/4.png"] == "cat"
    said = "2 ids differ from the name of an image only in case, such as DOG/3.PNG (dog/3.png)"
    assert any(said in one for one in made.findings)


def test_the_table_names_classes_as_the_class_map_does(tmp_path: Path) -> None:
    """Also if the map swaps two names."""
    swap = "cat=dog,dog=cat"
    before, _ = relabelled(tmp_path / "1", "key,label\ncat/2.png,dog\n", class_map=swap)
    assert before["cat/2.png"] == "dog"
    after, made = relabelled(tmp_path / "2", "key,label\ncat/2.png,cat\n", class_map=swap)
    assert after == before | {"cat/2.png": "cat"}
    assert made.label_names == ("dog", "cat")  # the order of the old names


def test_a_class_that_no_image_has_is_a_question(tmp_path: Path) -> None:
    """A typo would renumber the classes; the flag of the error adds the class at the end."""
    table = "key,label\ncat/1.png,ape\n"
    with pytest.raises(SourceError) as caught:
        relabelled(tmp_path / "1", table)
    assert "has labels that are not classes: ape" in caught.value.what
    assert caught.value.hint.endswith("--classes cat,dog,ape")
    _, made = relabelled(tmp_path / "2", table, classes=("cat", "dog", "ape"))
    assert made.label_names == ("cat", "dog", "ape")
    after, _ = relabelled(tmp_path / "3", table, class_map="ape=ape")
    assert after["cat/1.png"] == "ape"


def test_a_class_whose_last_image_is_relabelled_keeps_its_number(tmp_path: Path) -> None:
    table = "key,label\ncat/1.png,dog\ncat/2.png,dog\nx/cat/1.png,dog\n"
    after, made = relabelled(tmp_path, table)
    assert (after["cat/1.png"], made.label_names) == ("dog", ("cat", "dog"))


def test_a_whole_number_is_the_class_whatever_its_decimals(tmp_path: Path) -> None:
    file = write(tmp_path / "fixes.csv", b"key,label\n0/1.png,7.0\n")
    members = images("0/1.png", "0/2.png", "7/3.png")
    made = catalog(tmp_path, members, relabel=f"csv:{file}", labels="folder")
    assert made.label_names == ("0", "7")


@pytest.mark.parametrize(
    ("table", "keys", "line"),
    [
        ("key,label\nno.png,cat\n", {}, "none of its columns has names of images"),
        (
            "key,label\nno.png,cat\n",
            {"relabel": "csv:fixes.csv:key:label"},
            "no id in its column 'key' names an image, such as no.png; write ids such as cat",
        ),
        ("key,label\ntest/5.png,cat\n", {}, "gives one new label to an image that has one label"),
        ("key,label\n4,cat\n", {"labels": "none"}, "gives one new label to an image that has one"),
        ("key,a,b\n4,1,0\n", {"relabel": "csv:fixes.csv:key:a,b"}, "gives one new label to an"),
        ("key,label\n4,cat\n4,dog\n", {}, "gives dog/4.png two labels"),
        ("key,a,b\n4,1,0\n", {}, "is the label: a, b; name the columns: --relabel csv:"),
        ("key,label\n4,cat\n", {"relabel": "fixes.csv"}, "relabel: 'fixes.csv' names no table"),
        ("key,label\n4,wolf\n", {"classes": "cat,dog"}, "wolf"),
    ],
)
def test_a_table_that_replaces_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, keys: dict[str, str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ShardprepError) as caught:
        relabelled(tmp_path, table, **keys)
    assert line in str(caught.value)


def test_the_option_and_its_table_are_in_the_fingerprint() -> None:
    recipe = make_recipe({"source": "x.zip", "relabel": "csv:a.csv:key:label"}, "test")
    assert (recipe.fingerprint_options()["relabel"], recipe.named_files[0]) == (
        "csv:a.csv:key:label", "a.csv"
    )  # fmt: skip


@pytest.mark.parametrize("header", ["old,new", "class_name,Label", "from,english"])
def test_the_header_of_a_class_map_is_not_a_class(tmp_path: Path, header: str) -> None:
    names = write(tmp_path / "names.csv", f"{header}\ncat,feline\n".encode())
    made = catalog(tmp_path, images(*KEYS), class_map=str(names))
    assert made.label_names == ("feline", "dog")
    assert "no class is called" not in " ".join(made.findings)


def test_a_class_that_looks_like_a_header_is_renamed(tmp_path: Path) -> None:
    names = write(tmp_path / "names.csv", b"old,new\ncat,feline\n")
    made = catalog(tmp_path, images("old/1.png", "old/2.png", "cat/3.png"), class_map=str(names))
    assert set(made.label_names) == {"new", "feline"}


@pytest.mark.parametrize("labels", ["auto", "folder", "csv:labels.csv:id:label"])
def test_copies_with_different_labels_are_named(tmp_path: Path, labels: str) -> None:
    keys = ("cat/1.png", "cat/2.png", "dog/3.png", "dog/4.png")
    members = {key: jpeg(8, 8, seed=int(key[4])) for key in keys}
    members |= {"dog/9.png": members["cat/1.png"], "cat/8.png": members["cat/2.png"]}
    if labels.startswith("csv"):
        rows = "".join(f"{key[4]},{key[:3]}\n" for key in members)
        members["labels.csv"] = f"id,label\n{rows}".encode()
    made = catalog(tmp_path, members, labels, dedup=True)
    (remark,) = (one for one in made.findings if "had another label" in one)
    assert remark == (
        "--dedup: of the left-out copies, 1 had another label than the image that is kept, "
        "such as dog/9.png (dog) and cat/1.png (cat)"
    )


TAGS = "key,tags\n1.png,a b\n2.png,b\n3.png,a\n4.png,a b\n5.png,c b\n6.png,c\n"


def tags(folder: Path, table: str, rows: str = TAGS, **keys: Any) -> dict[str, set[str]]:
    """Return the classes of each image; `rows` has several of them in a cell."""
    file = write(folder / "fixes.csv", table.encode())
    members = images(*(f"{i}.png" for i in range(1, 7))) | {"tags.csv": rows.encode()}
    made = catalog(folder, members, **{"labels": "csv:tags.csv", "relabel": f"csv:{file}", **keys})
    names = made.label_names
    return {one.key: {names[i] for i in one.target} for one in made.items}  # type: ignore[union-attr, index]


@pytest.mark.parametrize(
    "cell", ["c b", "b|c", '"c,b"', '"[""b"", ""c""]"', "b; c"], ids=["blank", "|", ",", "[]", ";"]
)
def test_several_classes_are_replaced_as_a_whole(tmp_path: Path, cell: str) -> None:
    """A list is written as in `--labels`, by any separator that gives classes of the images."""
    after = tags(tmp_path, f"key,tags\n1.png,{cell}\n2.png,a\n3.png,\n")
    assert after == {
        "1.png": {"b", "c"}, "2.png": {"a"}, "3.png": {"a"},
        "4.png": {"a", "b"}, "5.png": {"b", "c"}, "6.png": {"c"},
    }  # fmt: skip


def test_columns_of_flags_replace_columns_of_flags(tmp_path: Path) -> None:
    rows = "key,a,b,c\n" + "".join(f"{i}.png,1,{i % 2},0\n" for i in range(1, 7))
    keys = {"labels": "csv:tags.csv:key:*", "relabel": f"csv:{tmp_path / 'fixes.csv'}:key:*"}
    after = tags(tmp_path, "key,a,b,c\n1.png,0,0,1\n2.png,0,0,0\n", rows, **keys)
    assert (after["1.png"], after["2.png"], after["3.png"]) == ({"c"}, set(), {"a", "b"})


def test_an_unknown_one_of_several_classes_is_a_question(tmp_path: Path) -> None:
    with pytest.raises(
        SourceError, match=r"labels that are not classes: wolf.*--classes a,b,c,wolf"
    ):
        tags(tmp_path / "1", 'key,tags\n1.png,"[""a"", ""wolf""]"\n')
    after = tags(tmp_path / "2", "key,tags\n1.png,wolf a\n", classes=("a", "b", "c", "wolf"))
    assert after["1.png"] == {"a", "wolf"}
    swapped = tags(tmp_path / "3", "key,tags\n1.png,z\n", class_map="c=z")
    assert (swapped["1.png"], swapped["6.png"]) == ({"z"}, {"z"})


LIKE_CLASSES = {
    "another case": ("1,DOG\n3,Cat\n", "Cat (cat differs only in case), DOG (dog", ""),
    "their numbers": ("1,1\n3,0\n", "0 (is the number of cat), 1 (is the number of dog)", ""),
    "a typo and a new one": ("1,cta\n3,wolf\n", "cta (is cat meant?), wolf", "cta,wolf"),
    "case beside a new one": ("1,DOG\n3,wolf\n", "DOG (dog differs only in case), wolf", "wolf"),
}


@pytest.mark.parametrize("case", LIKE_CLASSES)
def test_a_label_that_is_almost_a_class_is_no_proposed_class(tmp_path: Path, case: str) -> None:
    rows, said, new = LIKE_CLASSES[case]
    file = write(tmp_path / "fixes.csv", f"key,label\n{rows}".encode())
    members = images("cat/1.png", "cat/2.png", "dog/3.png", "dog/4.png")
    with pytest.raises(SourceError) as caught:
        catalog(tmp_path, members, labels="folder", relabel=f"csv:{file}")
    assert f"labels that are not classes: {said}" in caught.value.what
    hint = f"state all classes: --classes cat,dog,{new}" if new else "use one of cat, dog"
    assert caught.value.hint.endswith(hint)


def test_numbers_among_numbers_of_classes_are_new_classes(tmp_path: Path) -> None:
    file = write(tmp_path / "fixes.csv", b"key,label\n1,0\n")
    with pytest.raises(SourceError, match=r"not classes: 0; .* --classes 3,7,0"):
        catalog(tmp_path, images("3/1.png", "7/2.png"), labels="folder", relabel=f"csv:{file}")


SEVERAL = {
    "Mass|nodule": ("Mass (mass differs only in case)", "use one of mass, nodule"),
    "nodule|cyst": ("cyst", "add them as classes: --classes cyst"),
    "mass, cyst": ("cyst", "add them as classes: --classes cyst"),
    "lung mass": ("lung mass", "add them as classes: --classes 'lung mass'"),
    "['mass', 'nodule']": ("is not JSON", 'write lists such as ["a", "b"]'),
}


@pytest.mark.parametrize("cell", SEVERAL)
def test_only_the_new_one_of_several_labels_is_proposed(tmp_path: Path, cell: str) -> None:
    """The option works as it is printed, and makes no class of the whole text."""
    rows = b"id,label\n1,mass\n2,mass|nodule\n3,nodule\n"
    members = images("1.png", "2.png", "3.png") | {"l.csv": rows}
    source = write_folder(tmp_path / "set", members)
    old = build(source, tmp_path / "old", labels="csv:l.csv:id:label", size="8x8").path
    fixes = write(tmp_path / "fixes.csv", f'id,label\n1,"{cell}"\n'.encode())
    said, hint = SEVERAL[cell]
    with pytest.raises(SourceError) as caught:
        shardprep.repack(old, tmp_path / "new", relabel=f"csv:{fixes}:id:label")
    assert said in caught.value.what
    assert caught.value.hint.endswith(hint)
    if "--classes" in hint:
        classes = shlex.split(hint)[-1]
        new = shardprep.repack(old, tmp_path / "new", relabel=f"csv:{fixes}", classes=classes)
        assert new.manifest.labels.names == ("mass", "nodule", classes)
