import json
from pathlib import Path

import pytest

from shardprep.catalog.catalog import Catalog
from shardprep.errors import QuestionError
from tests.catalog.builders import asked, catalog
from tests.support.builders import jpeg, write_folder, zip_bytes
from tests.support.first_contact import outcome
from tests.support.scenes import picture

NAMES = [f"{name}/{i}.png" for name in ("cat", "dog") for i in range(6)]


def pictures(start: str, seed: str = "", kind: str = "scene") -> dict[str, bytes]:
    return {f"{start}/{name}": picture(kind, name, seed + name, (64, 48)) for name in NAMES}


def keys(plan: Catalog) -> list[str]:
    return [item.key for item in plan.items]


@pytest.mark.parametrize(
    ("start", "copy", "flag"),
    [
        ("set", "set/set", "--exclude 'set/set/*'"),
        ("set", "set_again", "--exclude 'set_again/*'"),
        ("a/b", "a/b/c", "--exclude 'a/b/c/*'"),
        ("Set", "set/Set", "--exclude 'set/Set/*'"),
        ("Train", "train", "--dedup"),
    ],
)
def test_a_copy_of_the_set_is_left_out_with_a_note(
    tmp_path: Path, start: str, copy: str, flag: str
) -> None:
    """Globs ignore case, so that none leaves out a folder whose name differs in case alone."""
    plan = catalog(tmp_path, pictures(start) | pictures(copy))
    assert sorted(keys(plan)) == sorted(f"{start}/{name}" for name in NAMES)
    assert any(f"{flag} is decided: 12 images in " in one for one in plan.findings)


def test_each_of_several_sizes_of_a_set_leaves_out_all_others(tmp_path: Path) -> None:
    """Folders of other scenes with equal names stay."""
    sizes = {"original": (64, 48), "size_32": (32, 24), "size_48": (48, 36)}
    members = {f"{one}/{name}": picture("scene", name, name, size)
               for one, size in sizes.items() for name in NAMES}  # fmt: skip
    flags = asked(tmp_path / "1", members)
    assert flags == [*(f"--root {one}" for one in sizes), "--labels folder"]
    flags = asked(tmp_path / "2", members | pictures("other", "another"))
    assert flags[0] == "--exclude 'size_32/*' --exclude 'size_48/*'"


@pytest.mark.parametrize("name", ["photos", "train"])
@pytest.mark.parametrize("inner", [True, False])
def test_an_archive_beside_its_files_is_left_out(tmp_path: Path, name: str, *, inner: bool) -> None:
    files = {f"{i}.jpg": jpeg(seed=i) for i in range(8)}
    members = {f"{name}/{key}": data for key, data in files.items()}
    packed = zip_bytes(members if inner else files)
    plan = catalog(tmp_path, {**members, f"{name}.zip": packed})
    assert sorted(keys(plan)) == sorted(members)
    assert any(f"--exclude '{name}.zip/*' is decided: 8 images" in one for one in plan.findings)


def test_equal_names_and_sizes_with_other_bytes_are_not_copies(tmp_path: Path) -> None:
    bmp = {name: picture("scene", "a.bmp", name, (64, 48)) for name in NAMES}
    others = {name: picture("scene", "a.bmp", f"x{name}", (64, 48)) for name in NAMES}
    first = {f"set/{name[:-3]}bmp": data for name, data in bmp.items()}
    second = {f"set/more/{name[:-3]}bmp": data for name, data in others.items()}
    assert len(keys(catalog(tmp_path, first | second))) == 24


def test_splits_that_are_copies_stay(tmp_path: Path) -> None:
    assert len(keys(catalog(tmp_path, pictures("valid") | pictures("test")))) == 24


def test_folders_of_the_same_scenes_are_a_question(tmp_path: Path) -> None:
    with pytest.raises(QuestionError, match=r"--root set/plain .*--root set/toned"):
        catalog(tmp_path, pictures("set/plain") | pictures("set/toned", kind="grey"))


def test_folders_of_other_scenes_are_one_set(tmp_path: Path) -> None:
    members = pictures("set/summer") | pictures("set/winter", "x")
    plan = catalog(tmp_path, members, labels="folder")
    assert len(keys(plan)) == 24
    assert plan.label_names == ("cat", "dog")


def test_classes_of_the_same_images_stay(tmp_path: Path) -> None:
    same = {f"{name}/{i}.png": picture("scene", "a.png", str(i)) for name in "ab" for i in range(4)}
    assert len(keys(catalog(tmp_path, same))) == 8


def test_thumbnails_are_left_out_and_gestures_stay(tmp_path: Path) -> None:
    slides = {f"train_images/{i}.png": picture("scene", "a.png", str(i)) for i in range(6)}
    small = {f"train_thumbnails/{i}_thumbnail.png": picture("scene", "a.png", f"x{i}")
             for i in range(6)}  # fmt: skip
    assert sorted(keys(catalog(tmp_path / "a", slides | small))) == sorted(slides)
    hands = {f"{name}/{i}.png": picture("scene", "a.png", f"{name}{i}")
             for name in ("palm", "thumb", "thumbs") for i in range(4)}  # fmt: skip
    assert len(keys(catalog(tmp_path / "b", hands))) == 12


def converted(names: tuple[str, str], scene: str = "") -> dict[str, bytes]:
    """Return the same pictures as PNG and as JPEG, in a folder for each class."""
    return {
        f"{folder}/{stem}.{end}": picture("scene", f"a.{end}", f"{own}{stem}", (64, 48))
        for folder, end, own in zip(names, ("png", "jpg"), ("", scene), strict=True)
        for stem in (name[:-4] for name in NAMES)
    }


def test_pictures_that_are_there_again_in_another_format_are_left_out(tmp_path: Path) -> None:
    plan = catalog(tmp_path, converted(("png_images", "jpeg_images")))
    assert sorted(keys(plan)) == sorted(f"png_images/{name}" for name in NAMES)
    assert any("12 images in jpeg_images again in another format" in one for one in plan.findings)


def test_other_scenes_in_folders_named_by_formats_stay(tmp_path: Path) -> None:
    assert len(keys(catalog(tmp_path, converted(("png", "jpg"), "other ")))) == 24


def test_two_partitions_of_the_same_files_are_asked_for(tmp_path: Path) -> None:
    same = {f"{name}{i}": jpeg(16 + i, 16, i) for name in ("cup", "rim") for i in range(4)}
    members = {
        f"set/{way}/{'test' if name[-1] in odd else 'train'}/{name[:3]}/{name}.jpg": data
        for way, odd in (("by_place", "0"), ("by_chance", "23"))
        for name, data in same.items()
    }
    flags = asked(tmp_path / "1", members)
    assert flags == ["--root set/by_chance", "--root set/by_place"]
    others = {key: data + b"0" * key.count("by_place") for key, data in members.items()}
    assert len(catalog(tmp_path / "2", others, labels="folder").items) == 16


@pytest.mark.parametrize("top", ["", "set/"])
def test_a_question_shows_folders_that_may_be_the_source_alone(tmp_path: Path, top: str) -> None:
    """They have the same classes; their images are no copies, and in one there are splits."""
    members = pictures(f"{top}small/train") | pictures(f"{top}small/test", "t")
    members |= pictures(f"{top}large", "x")
    flags = asked(tmp_path, members)
    assert f"--exclude '{top}large/*'" in flags
    assert f"--exclude '{top}small/*'" in flags


def test_a_folder_whose_name_was_read_in_another_encoding_is_left_out(tmp_path: Path) -> None:
    other = "Du\u0308rer".encode().decode("cp437")
    members = {f"{name}/{i}.jpg": picture("scene", "a.jpg", str(i)) for i in range(4)
               for name in ("D\u00fcrer", other)}  # fmt: skip
    members |= {f"Monet/{i}.jpg": picture("scene", "a.jpg", f"m{i}") for i in range(4)}
    plan = catalog(tmp_path, members)
    assert plan.label_names == ("D\u00fcrer", "Monet")


def test_a_picture_named_as_not_found_is_left_out(tmp_path: Path) -> None:
    members = pictures("set") | {"set/cat/imageNotFound.gif": picture("grey", "a.gif", "x")}
    assert "set/cat/imageNotFound.gif" not in keys(catalog(tmp_path, members))


@pytest.mark.parametrize(("name", "alone"), [("part", []), ("fold", ["--exclude"])])
def test_folders_that_differ_in_a_number_are_parts_except_folds(
    tmp_path: Path, name: str, alone: list[str]
) -> None:
    keys = [f"{name}_{n}/s{who}/{n}{who}{i}.png" for n in (1, 2) for who in range(4) for i in "ab"]
    flags = _flags(tmp_path, {key: picture("scene", key, key, (64, 48)) for key in keys})
    assert "--labels folder" in flags
    assert [one.split()[0] for one in flags if f"{name}_1/*" in one] == alone


def _flags(folder: Path, members: dict[str, bytes]) -> list[str]:
    try:
        catalog(folder, members)
    except QuestionError as error:
        return [one.flags for one in error.choices]
    return []


def test_images_named_like_folders_of_one_image_are_no_pictures_of_classes(tmp_path: Path) -> None:
    names = [f"test/good/{i:03}.png" for i in range(3)] + [f"more/{i:03}/0.png" for i in range(4)]
    members = {name: picture("scene", name, name, (64, 48)) for name in names}
    assert not any("good" in one for one in _flags(tmp_path, members))


def test_a_small_part_of_an_archive_beside_it_is_left_out_with_its_documents(
    tmp_path: Path,
) -> None:
    photos = {f"{i}.jpg": picture("scene", "a.jpg", str(i)) for i in range(8)}
    members = {}
    for name, own in (("valid", range(8)), ("valid-mini", range(2))):
        files = {f"{i}.jpg": photos[f"{i}.jpg"] for i in own}
        document = {
            "images": [{"id": i, "file_name": f"{i}.jpg"} for i in own],
            "annotations": [
                {"id": i, "image_id": i, "category_id": 1, "bbox": [2, 2, 9, 9]} for i in own
            ],
            "categories": [{"id": 1, "name": "fork"}],
        }
        packed = zip_bytes({**files, "_annotations.coco.json": json.dumps(document).encode()})
        members[f"{name}.zip"] = packed
    plan = catalog(tmp_path, members)
    assert [key.partition("/")[0] for key in keys(plan)] == ["valid.zip"] * 8
    assert any("--exclude 'valid-mini.zip/*' is decided: 2 images" in one for one in plan.findings)
    assert any("--boxes coco is decided" in one for one in plan.findings)


_ABOUT_THE_SET = {
    "a logo above the folders of classes": ("logo.png", "", "logo.png"),
    "an overview within the only folder": ("pets/overview.jpg", "pets/", "overview.jpg"),
    "a logo above the only folder, which a table describes": ("a.jpg", "cat/", "a.jpg"),
    "a figure in a folder for documents": ("docs/result.png", "", "'docs/*.png'"),
    "a figure in such a folder beside only one folder": ("docs/a.png", "cat/", "'docs/*.png'"),
}
"""A picture about the set, the folder of the set, and what leaves it out."""


@pytest.mark.parametrize("case", _ABOUT_THE_SET)
def test_a_picture_about_the_set_is_left_out_with_a_note(tmp_path: Path, case: str) -> None:
    name, above, flag = _ABOUT_THE_SET[case]
    names = [f"{above}{x}/{i}.jpg" for x in ("cat", "dog") for i in range(5)]
    names = [f"cat/{i}.jpg" for i in range(10)] if above == "cat/" else names
    members = {one: jpeg(16, 16, i) for i, one in enumerate([*names, name])}
    table = "\n".join(["name,label", *(f"{i}.jpg,{'xy'[i % 2]}" for i in range(10))])
    documents = {"README.md": f"![]({name})", **({"labels.csv": table} if above == "cat/" else {})}
    members |= {one: text.encode() for one, text in documents.items()}
    plan = catalog(tmp_path, members)
    assert sorted(keys(plan)) == sorted(names)
    assert any(f"--exclude {flag} is decided: 1 picture" in one for one in plan.findings)


@pytest.mark.parametrize(
    ("more", "document"),
    [
        (["7.jpg"], {}),
        (["odd.jpg"], {"labels.csv": "name,label\nodd,cat\n"}),
        (["odd.jpg"], {"list.txt": "pets/cat/1.jpg odd.jpg\n"}),
        (["odd.jpg"], {"odd.json": "{}"}),
        ([f"{x}.jpg" for x in ("odd", "even", "other")], {}),
        ([f"figures/of_{i}.jpg" for i in range(6)], {}),
    ],
)
def test_a_picture_named_like_others_or_by_a_document_stays_an_image(
    tmp_path: Path, more: list[str], document: dict[str, str]
) -> None:
    """Likewise three loose pictures, and a folder of as many pictures as those of classes."""
    names = [f"{x}/{i}.jpg" for x in ("cat", "dog", "fox", "owl") for i in range(6)]
    members = {one: jpeg(16, 16, i) for i, one in enumerate([*names, *more])}
    members |= {name: text.encode() for name, text in document.items()}
    source = write_folder(tmp_path / "source", members)
    assert "--exclude" not in str(outcome(source, {}))


def test_pictures_named_like_class_folders_beside_them_are_left_out_in_a_wrapper(
    tmp_path: Path,
) -> None:
    names = [f"set/{x}/{i}.jpg" for x in ("cat", "dog") for i in range(6)]
    above = ["set/cat.jpg", "set/dog.jpg"]
    plan = catalog(tmp_path, {x: jpeg(16, 16, i) for i, x in enumerate([*names, *above])})
    assert sorted(keys(plan)) == sorted(names)
