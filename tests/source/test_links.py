"""Links of a folder that lead outside are skipped, unless the user allows them."""

import json
import os
from pathlib import Path

import pytest

from shardprep.catalog.survey import recipe_text, survey_source
from shardprep.errors import SourceError
from shardprep.recipe.recipe import make_recipe
from shardprep.source.byte_range import MemberError, PlainExtent
from shardprep.source.file_listing import LEADS_OUTSIDE
from shardprep.source.listing import list_source
from shardprep.writer.originals import save_rejected
from shardprep.writer.plan.fingerprint import make_fingerprint
from tests.support.builders import animals, build, jpeg, tree, write, write_folder, zip_bytes
from tests.support.command import run
from tests.writer.records import rows

SECRET = b"a secret of this machine, of the person who builds"


@pytest.fixture(name="photos")
def _photos(tmp_path: Path) -> Path:
    """A stranger's folder: ten images, and links to files and folders of the machine."""
    home = write_folder(tmp_path / "home", {"key.txt": SECRET, "album/mine.jpg": jpeg(seed=99)})
    folder = write_folder(tmp_path / "photos", animals(10))
    (folder / "train/cat.90.jpg").symlink_to(home / "key.txt")
    (folder / "train/cat.91.jpg").symlink_to("../../home/album/mine.jpg")
    (folder / "notes.csv").symlink_to(home / "key.txt")
    (folder / "train/album").symlink_to(home / "album", target_is_directory=True)
    (folder / "train/nothing.jpg").symlink_to(home / "nothing.jpg")
    return folder


OUTSIDE = {
    "notes.csv", "train/album", "train/cat.90.jpg", "train/cat.91.jpg", "train/nothing.jpg",
}  # fmt: skip


def keys_of(folder: Path, **keys: object) -> list[str]:
    """Return the keys of the images that would be built."""
    limits = make_recipe({"source": str(folder), **keys}, "test").source_limits
    found = list_source(folder, folder.with_name("work"), lambda _: None, limits=limits)
    return [member.key for member in found.images]


def test_links_that_lead_outside_are_skipped_counted_and_named(
    photos: Path, tmp_path: Path
) -> None:
    made = build(photos, tmp_path / "out", size="16x16")
    assert made.manifest.totals.num_written == 10
    assert made.manifest.totals.skipped == {LEADS_OUTSIDE: len(OUTSIDE)}
    reasons = {key: row["reason"] for key, row in rows(made.path).items()}
    assert {key for key, reason in reasons.items() if reason == LEADS_OUTSIDE} == OUTSIDE
    assert SECRET[:8] not in b"".join(tree(tmp_path / "out").values())


def test_no_byte_behind_a_link_reaches_the_copies_of_rejected_images(
    photos: Path, tmp_path: Path
) -> None:
    made = build(photos, tmp_path / "out", size="16x16", min_side=41, max_rejected=1.0)
    recipe = make_recipe({"source": str(photos)}, "test")
    num_files, _ = save_rejected(made.path, recipe, tmp_path / "bad", print)
    assert num_files > 0
    assert all(SECRET not in path.read_bytes() for path in tmp_path.glob("bad/**/*.*"))


def test_follow_links_follows_files_and_folders(photos: Path, tmp_path: Path) -> None:
    there = {"train/album/mine.jpg", "train/cat.90.jpg", "train/cat.91.jpg"}
    assert set(keys_of(photos, follow_links=True)) - set(keys_of(photos)) == there
    made = build(
        photos, tmp_path / "out", size="16x16", follow_links=True, labels="none", max_rejected=1
    )
    totals = made.manifest.totals
    assert (totals.num_written, totals.num_rejected) == (12, 1)
    assert totals.skipped == {"not a regular file": 1, "not an image": 1}


def test_links_inside_are_followed_and_hard_links_are_files(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "photos", {"a/1.jpg": jpeg(), "b/2.jpg": jpeg(seed=2)})
    (folder / "3.jpg").symlink_to("a/1.jpg")
    (folder / "4.jpg").symlink_to(folder / "3.jpg")
    for link in ("a_link", "zz"):
        (folder / link).symlink_to(folder / "b", target_is_directory=True)
    os.link(write(tmp_path / "far.jpg", jpeg(seed=5)), folder / "5.jpg")
    (tmp_path / "named").symlink_to(folder, target_is_directory=True)
    for given in (folder, tmp_path / "named"):
        assert keys_of(given) == ["3.jpg", "4.jpg", "5.jpg", "a/1.jpg", "b/2.jpg"]


def test_links_to_a_sibling_or_over_two_links_lead_outside(tmp_path: Path) -> None:
    """The sibling's name begins like the source; a/up is inside, and leads out."""
    folder = write_folder(tmp_path / "photos", {"a/1.jpg": jpeg()})
    (folder / "2.jpg").symlink_to(write(tmp_path / "photos2" / "x.jpg", jpeg(seed=2)))
    (folder / "a/up").symlink_to(tmp_path / "photos2", target_is_directory=True)
    (folder / "x.jpg").symlink_to("a/up/x.jpg")
    assert keys_of(folder) == ["a/1.jpg"]


def test_an_archive_that_is_named_may_be_a_link(tmp_path: Path) -> None:
    archive = write(tmp_path / "cache" / "blob", zip_bytes(animals(4)))
    (tmp_path / "pets.zip").symlink_to(archive)
    assert build(tmp_path / "pets.zip", tmp_path / "out", size="8x8").manifest.totals.num_written


def test_a_folder_of_nothing_but_links_names_the_flag(tmp_path: Path) -> None:
    far = write_folder(tmp_path / "far", animals(4, folder=""))
    (tmp_path / "photos").mkdir()
    for path in far.iterdir():
        (tmp_path / "photos" / path.name).symlink_to(path)
    said = "holds no image, but 4 links that lead out of it; add --follow-links"
    with pytest.raises(SourceError, match=said):
        build(tmp_path / "photos", tmp_path / "out")
    with pytest.raises(SourceError, match=said):
        survey_source(tmp_path / "photos", tmp_path / "work", print)
    survey = survey_source(tmp_path / "photos", tmp_path / "work", print, follow_links=True)
    assert survey.num_images == 4
    assert "follow_links = true\n" in recipe_text(survey)


def test_the_command_line_says_what_it_has_skipped_and_how_to_take_it(photos: Path) -> None:
    done = run("build", photos, "--size", "16x16", cwd=photos.parent)
    assert "skipped 5 links that lead outside; --follow-links follows links" in done.stderr
    assert "skipped   5 link that leads outside" in done.stdout
    flags = ("--follow-links", "--labels", "none", "--dry-run", "--json")
    plan = json.loads(run("build", photos, *flags, cwd=photos.parent).stdout)
    assert plan["images"] == {"train": 13}


def test_the_fingerprint_holds_the_flag_and_the_links_left_out(photos: Path) -> None:
    def fingerprint(**keys: object) -> tuple[dict[str, str], object]:
        found = make_fingerprint(make_recipe({"source": str(photos), **keys}, "test"))
        return found.inputs, found.options["follow_links"]

    before = fingerprint()
    assert before[1] is False
    assert fingerprint(follow_links=True) == (fingerprint(follow_links=True)[0], True)
    assert fingerprint(follow_links=True)[0] != before[0]
    (photos / "train/another.jpg").symlink_to("/etc/hostname")
    assert fingerprint()[0] != before[0]


@pytest.mark.parametrize("what", ["a link", "a pipe"])
def test_what_is_swapped_between_listing_and_reading_is_not_read(tmp_path: Path, what: str) -> None:
    photo = write(tmp_path / "photos" / "1.jpg", jpeg())
    extent = PlainExtent(str(photo), 0, len(jpeg()))
    assert extent.read() == jpeg()
    photo.unlink()
    if what == "a link":
        photo.symlink_to(write(tmp_path / "secret", bytes(100_000)))
    else:
        os.mkfifo(photo)
    with pytest.raises(MemberError, match="not a regular file"):
        extent.read()


@pytest.mark.parametrize("kind", ["pipe", "device", "too large"])
def test_a_table_that_is_named_must_be_a_regular_file_of_some_size(
    tmp_path: Path, kind: str
) -> None:
    folder = write_folder(tmp_path / "photos", animals(4))
    table = write(tmp_path / "big.csv", b"id,label\n")
    os.truncate(table, 3_000_000_000)
    os.mkfifo(tmp_path / "pipe")
    path = {"pipe": tmp_path / "pipe", "device": "/dev/zero", "too large": table}[kind]
    with pytest.raises(SourceError, match=r"no such label table|larger than --max-member-size"):
        build(folder, tmp_path / "out", labels=f"csv:{path}:id:label")
