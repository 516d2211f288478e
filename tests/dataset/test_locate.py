"""One answer to "which dataset is meant", for folders and for object storage."""

import tomllib
from pathlib import Path

import pytest

from shardprep.dataset.locate import USUAL_SHARE, Version, locate, versions_below
from shardprep.errors import DatasetError
from shardprep.recipe.options import BUILD_DEFAULTS
from shardprep.storage.url import parse_place
from shardprep.writer.workspace.states import find_workspace
from tests.support.builders import write
from tests.support.object_store import Bucket
from tests.support.paths import DATA

CASES = tomllib.loads((DATA / "locate.toml").read_text(encoding="utf-8"))


@pytest.fixture(name="roots")
def _roots(bucket: Bucket, tmp_path: Path) -> tuple[str, str]:
    return str(tmp_path / "sets"), f"{bucket.url}/sets"


def lay(files: list[str], bucket: Bucket, tmp_path: Path) -> None:
    for name in files:
        write(tmp_path / "sets" / name, b"{}")
        bucket.put(f"sets/{name}", b"{}")


@pytest.mark.parametrize("case", CASES["datasets"])
def test_a_folder_and_an_address_mean_the_same_dataset(
    case: str, bucket: Bucket, tmp_path: Path, roots: tuple[str, str]
) -> None:
    files, expected = CASES["datasets"][case]
    lay(files, bucket, tmp_path)
    for root in roots:
        assert str(locate(root)) == f"{root}/{expected}".rstrip("/")


@pytest.mark.parametrize("case", CASES["errors"])
def test_the_error_without_a_dataset_is_equal_for_a_folder_and_an_address(
    case: str, bucket: Bucket, tmp_path: Path, roots: tuple[str, str]
) -> None:
    files, said = CASES["errors"][case]
    lay(files, bucket, tmp_path)
    lines = []
    for root in roots:
        with pytest.raises(DatasetError, match=said) as error:
            locate(root)
        lines.append(str(error.value).replace(root, ""))
    assert lines[0] == lines[1]


def test_a_dataset_without_a_manifest_is_found_only_with_damaged(
    bucket: Bucket, tmp_path: Path, roots: tuple[str, str]
) -> None:
    lay(["a/1.0.0/schema.json", "a/2.0.0.incomplete/schema.json"], bucket, tmp_path)
    for root in roots:
        for place in (root, f"{root}/a", f"{root}/a/1.0.0"):
            assert str(locate(place, damaged=True)) == f"{root}/a/1.0.0"
            with pytest.raises(DatasetError, match=r"holds no dataset|is not finished"):
                locate(place)


def test_unfinished_builds_are_found_as_datasets_are(
    bucket: Bucket, tmp_path: Path, roots: tuple[str, str]
) -> None:
    files = ["a/1.0.0/manifest.json", "a/1.0.0.incomplete/x", "a/2.0.0.incomplete/x"]
    lay(files, bucket, tmp_path)
    for root in roots:
        assert versions_below(parse_place(root)) == [
            Version(("a", "1.0.0"), is_finished=True, is_unfinished=True),
            Version(("a", "2.0.0"), is_finished=False, is_unfinished=True),
        ]
        assert find_workspace(f"{root}/a/2.0.0.incomplete").location == f"{root}/a/2.0.0"
        with pytest.raises(DatasetError, match=r"several unfinished builds: .*1\.0\.0, .*2\.0\.0;"):
            find_workspace(root)


def test_the_limit_of_rejections_that_explain_an_unfinished_build_is_the_default() -> None:
    assert BUILD_DEFAULTS["max_rejected"] == USUAL_SHARE
