"""Folders of patients, series, clips and tomograms are samples; folders of classes stay classes."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from shardprep.catalog.survey import survey_source
from tests.catalog.builders import asked, catalog
from tests.support.builders import write_folder
from tests.support.layouts import expanded
from tests.support.scenes import picture

SIZE = (16, 12)


def pictures(*patterns: str, kind: str = "view") -> dict[str, bytes]:
    """Return a picture for each key; those of a folder show one scene."""
    keys = [key for pattern in patterns for key in expanded(pattern)]
    return {key: picture(kind, key, key.rpartition("/")[0], SIZE) for key in keys}


def classes_of(folder: Path, members: Mapping[str, bytes]) -> tuple[str, ...]:
    return catalog(folder, members).label_names


def test_folders_that_are_ids_of_a_table_are_clips(tmp_path: Path) -> None:
    members = pictures("clips/{11..16}/{00001..00003}.jpg")
    rows = "".join(f"{clip},{('up', 'down')[clip % 2]}\n" for clip in range(11, 17))
    table = {"train.csv": f"clip,gesture\n{rows}".encode()}
    assert classes_of(tmp_path / "a", members | table) == ("down", "up")
    assert len(catalog(tmp_path / "c", members | table).items) == 6
    photos = pictures("photos/{11..16}/{1,2}.jpg")  # each may be an example
    own = asked(tmp_path / "d", photos | {"train.csv": f"case,gesture\n{rows}".encode()})
    assert own[0] == "--stack 'photos/{id}/*.jpg' --labels csv:train.csv:case:gesture"
    assert own[-2:] == ["--labels none", "--labels folder"]
    assert asked(tmp_path / "b", members) == ["--labels folder", "--labels none"]


@pytest.mark.parametrize(
    "rows",
    [
        "id,name,group\n11,oak,tree\n12,elm,tree\n13,rose,flower\n14,lily,flower\n",
        "class_id,group\n11,tree\n12,tree\n13,flower\n14,flower\n",
    ],
)
def test_a_list_of_classes_is_no_table_of_samples(tmp_path: Path, rows: str) -> None:
    members = pictures("plants/{11..14}/{001..004}.jpg") | {"classes.csv": rows.encode()}
    assert len(classes_of(tmp_path, members)) == 4


def test_a_table_with_a_row_for_each_image_is_used_without_a_question(tmp_path: Path) -> None:
    rows = "".join(f"1{i},{j}{i},{i % 2}\n" for i in range(1, 5) for j in (700, 800))
    members = pictures(*(f"scans/1{i}/{{700{i},800{i}}}.png" for i in range(1, 5)))
    members |= {"train.csv": f"patient_id,image_id,label\n{rows}".encode()}
    assert classes_of(tmp_path, members) == ("0", "1")


@pytest.mark.parametrize(
    "name", ["patient{001..004}", "Tomo_{0a1,0b2,1c3}", "1.2.840.113.{51..54}"]
)
def test_folders_named_like_samples_lead_to_a_question(tmp_path: Path, name: str) -> None:
    own = asked(tmp_path, pictures(f"data/{name}/s_{{0..2}}.png"))
    stack = "--stack 'data/{id}/*.png' --labels none"
    assert own == [stack, "--labels none", "--labels folder"]


def test_series_of_dicom_files_are_stacks(tmp_path: Path) -> None:
    found = catalog(tmp_path / "a", pictures("ct/P-{01..03}/1.2.84/1.3.46/{1..3}.dcm"))
    assert [one.key for one in found.items] == ["ct/P-01", "ct/P-02", "ct/P-03"]
    own = asked(tmp_path / "d", pictures("ct/P-{01..03}/1.2.84/1.3.46/{1..2}.dcm"))
    assert own[0] == "--stack 'ct/{id}/*/*/*.dcm' --labels none"  # views of a breast, perhaps
    members = pictures("train/{01..04}/{T1,T2}/{1..2}.dcm")
    rows = b"case,grade\n01,0\n02,1\n03,0\n04,1\n"
    own = asked(tmp_path / "b", members | {"labels.csv": rows})
    assert "--stack '{id}/T2/*.dcm' --labels csv:labels.csv:case:grade" in own
    words = pictures("ct/{healthy,sick}/{1..3}.dcm", "mr/{healthy,sick}/{1..3}.dcm")
    assert asked(tmp_path / "c", words)[:2] == ["--labels folder", "--labels folder:2"]


def test_slices_of_two_formats_are_one_pattern(tmp_path: Path) -> None:
    """Half of the patients have another suffix."""
    members = pictures("scans/p{00..04}/s_{0..2}.png", "scans/p{05..09}/s_{0..2}.tif")
    rows = "".join(f"p{i:02},{i % 2}\n" for i in range(10))
    table = {"labels.csv": f"patient,label\n{rows}".encode()}
    own = asked(tmp_path, members | table)
    assert own[0].startswith("--stack 'scans/{id}/*.*' --labels csv:labels.csv:patient:label")
    stack = {"stack": "scans/{id}/*.*", "labels": "csv:labels.csv:patient:label"}
    made = catalog(tmp_path / "typed", members | table, **stack)
    assert len(made.items) == 10


@pytest.mark.parametrize(
    ("names", "stack"), [("{flair,t1}", "{flair,t1}"), ("$_{flair,t1}", "{id}_{flair,t1}")]
)
def test_the_same_kinds_of_pictures_in_each_folder_are_channels(
    tmp_path: Path, names: str, stack: str
) -> None:
    cases = [f"B20_{i}" for i in range(4)]
    members = pictures(*(f"set/{one}/{names.replace('$', one)}.png" for one in cases), kind="grey")
    assert asked(tmp_path / "a", members)[0] == f"--stack '{{id}}/{stack}.png' --labels none"
    mask = names.replace("{flair,t1}", "seg")
    masks = dict[str, bytes]()
    for one in cases:
        masks |= pictures(f"set/{one}/{mask.replace('$', one)}.png", kind="mask")
    own_mask = f"{{id}}/{mask.replace('$', '*')}.png"
    own = asked(tmp_path / "b", members | masks)
    assert own[0] == f"--stack '{{id}}/{stack}.png' --masks '{own_mask}'"
    words = pictures("trees/{birch,elm,fir}/{after,before}.png")
    assert len(classes_of(tmp_path / "c", words)) == 3


def test_slices_in_a_folder_beside_their_mask(tmp_path: Path) -> None:
    members = pictures("scrolls/{1,2,3}/layers/{00..02}.png", "scrolls/{1,2,3}/{ir,ink_mask}.png")
    own = asked(tmp_path, members)
    assert own[0] == "--stack '{id}/layers/*.png' --masks '{id}/ink_mask.png'"


def test_takes_have_the_class_in_their_names(tmp_path: Path) -> None:
    members = pictures("frames/v_{Archery,TableTennis}_g01_c0{1,2}/img_{1..3}.jpg")
    own = asked(tmp_path, members)
    assert own[0] == r"--labels 'regex:/v_(?P<label>[^/]+?)_g\d+_c\d+'"
    found = catalog(tmp_path / "b", members, own[0].split("'")[1])
    assert found.label_names == ("Archery", "TableTennis")


@pytest.mark.parametrize(
    "pattern",
    [
        "digits/{0..4}/{000..004}.png",
        "{train,val}/s{1..6}/{1..4}.jpg",
        "train/n0144{0764,0765}/{1..4}.jpg",
        "cars/{Audi_A4,BMW_320}/{1..3}.jpg",
        "rooms/{01..03}/{bath,hall}/{1..3}.jpg",
    ],
)
def test_folders_are_classes_if_they_are_words_in_one_level_or_in_two_splits(
    tmp_path: Path, pattern: str
) -> None:
    assert classes_of(tmp_path, pictures(pattern))


@pytest.mark.parametrize(
    ("pattern", "flags"),
    [
        ("faces/s{1..6}/{1..4}.jpg", ["--labels folder", "--labels none"]),
        ("cars/Audi_A{4,6}/{1..3}.jpg", ["--labels folder", "--labels none"]),
        (
            "rooms/{day,night}/{bath,hall}/{1..3}.jpg",
            [
                *("--labels folder", "--labels folder:2", "--labels none"),
                *("--exclude 'rooms/night/*'", "--exclude 'rooms/day/*'"),
            ],
        ),
        (
            "art/{old/oil,old/ink,new}/{1..3}.jpg",
            [
                "--labels folder",
                "--labels 'regex:^art/(?P<label>[^/]+)/'",
                "--labels 'regex:^art/(?P<label>.+)/[^/]+$'",
                "--labels none",
            ],
        ),
    ],
)
def test_codes_and_levels_of_words_are_asked_for(
    tmp_path: Path, pattern: str, flags: list[str]
) -> None:
    assert asked(tmp_path, pictures(pattern)) == flags


def test_numbers_that_a_letter_marks_in_names_are_proposed_as_targets(tmp_path: Path) -> None:
    members = pictures("set/{0001..0005}/p_2m_{-15,30}P_{-10,0,10}H.jpg")
    found = asked(tmp_path, members)
    number = r"(?P<label>(?:(?<=[_/])-)?\d+)H(?![A-Za-z])[^/]*$"
    assert f"--labels 'regex:{number}' --target regression" in found


def test_folders_of_splits_with_numbered_files_are_no_samples(tmp_path: Path) -> None:
    """Neither are they proposed as such by a survey."""
    members = pictures("set/{images,annotations}/{training,test}/{0001..0004}.png")
    source = write_folder(tmp_path / "source", members)
    found = survey_source(source, tmp_path / "work", lambda _: None)
    assert not any("stack" in one.options for one in found.rules)
