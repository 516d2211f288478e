"""Every command reads a text as the same path, address or error."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from shardprep.errors import RecipeError, ShardprepError
from shardprep.reader import Dataset, iterate, load
from shardprep.storage.url import ObjectUrl, local_path, parse_place
from tests.support.builders import animals, tree, write, zip_bytes
from tests.support.command import invoke
from tests.support.paths import DATA


@pytest.fixture(name="here")
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "pets.zip", zip_bytes(animals(6)))
    return tmp_path


SCHEMES = tomllib.loads((DATA / "schemes.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("text", "hint"), SCHEMES.items())
def test_an_unknown_scheme_is_an_error_with_a_hint(text: str, hint: str) -> None:
    said = r"the unknown scheme .*://, not s3:// or gs:"
    with pytest.raises(RecipeError, match=said) as error:
        parse_place(text)
    assert error.value.hint.startswith(hint)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("text", ["https://host/x", "https:/host/x", str(Path("https://host/x"))])
def test_an_address_that_became_a_path_is_shown_as_an_address(text: str) -> None:
    with pytest.raises(RecipeError, match=r"^https://host/x: has the unknown scheme https://"):
        parse_place(text)


@pytest.mark.parametrize(
    "text",
    ["run:1", "run:1/pets/1.0.0", "C:\\photos", "C:/photos", "c://photos", "a:/b", "./s3://b"],
)
def test_a_path_may_hold_a_colon(text: str) -> None:
    assert parse_place(text) == Path(text)


def test_an_address_is_not_a_path() -> None:
    assert parse_place("s3://bucket/key") == ObjectUrl("s3", "bucket", "key")
    with pytest.raises(
        RecipeError, match="s3://bucket/key: is an address, not a path; give a local path"
    ):
        local_path("s3://bucket/key")


def command(*arguments: str) -> Callable[[], object]:
    return lambda: invoke(*arguments, catch_exceptions=False)


ADDRESS = "s3a://bucket/pets"


@pytest.mark.parametrize(
    "use",
    [
        command("build", ADDRESS),
        command("build", "pets.zip", "--out", ADDRESS),
        command("build", "pets.zip", "--labels", f"csv:{ADDRESS}.csv"),
        command("build", "pets.zip", "--join", f"{ADDRESS}.csv:id"),
        command("build", "pets.zip", "--split", f"list:train={ADDRESS}.txt"),
        command("build", "pets.zip", "--save-rejected", ADDRESS),
        command("init", ADDRESS),
        command("finalize", ADDRESS),
        command("inspect", ADDRESS),
        command("verify", ADDRESS),
        command("bench", ADDRESS),
        command("fetch", ADDRESS),
        command("fetch", "s3://bucket/pets", "--to", ADDRESS),
        command("fetch", "s3://bucket/pets", "--to", "s3://bucket/pets"),
        command("download", "dogs-vs-cats", "--to", ADDRESS),
        command("sample", ADDRESS),
        lambda: load(ADDRESS),
        lambda: iterate(ADDRESS, batch_size=2),
        lambda: Dataset(ADDRESS),
        lambda: Dataset(Path(ADDRESS)),
    ],
)
def test_an_address_with_an_unknown_scheme_is_never_a_folder(
    here: Path, use: Callable[[], object]
) -> None:
    with pytest.raises(ShardprepError, match=r"s3a?:/.*(scheme|is an address|a table must be)"):
        use()
    assert [path.name for path in here.iterdir()] == ["pets.zip"]


def test_paths_of_a_dataset_may_have_a_colon(here: Path) -> None:
    rows = "".join(f"{name},{name[:3]}\n" for name in animals(6))
    write(here / "in:1" / "labels.csv", f"id,kind\n{rows}".encode())
    write(here / "in:1" / "more.csv", f"id,place\n{rows}".encode())
    write(here / "in:1" / "pets.zip", zip_bytes(animals(6)))
    for arguments in (
        ("build", "in:1/pets.zip", "--out", "run:1", "--size", "8x8", "--shards", "2",
         "--labels", "csv:in:1/labels.csv:id:kind", "--join", "in:1/more.csv"),
        ("build", "in:1/pets.zip", "--out", "plain", "--size", "8x8", "--shards", "2",
         "--labels", "csv:in:1/labels.csv:id:kind", "--join", "in:1/more.csv:id"),
        ("inspect", "run:1"),
        ("verify", "run:1/pets", "--decode"),
    ):  # fmt: skip
        done = invoke(*arguments)
        assert done.exit_code == 0, (arguments, done.output, done.exception)
    found = json.loads(invoke("inspect", "run:1", "--json").stdout)
    assert found["path"] == "run:1/pets/1.0.0"
    there, plain = tree(here / "run:1/pets/1.0.0"), tree(here / "plain/pets/1.0.0")
    shards = [name for name in there if "tfrecord-" in name]
    assert [there[name] for name in shards] == [plain[name] for name in shards]
    images = [
        image for one, _ in load("run:1", batch_size=2, shuffle=False) for image in one.numpy()
    ]
    assert len(images) == len(Dataset("run:1/pets/1.0.0")) == 6
    assert (images[0] == Dataset("run:1", as_supervised=False)[0]["image"]).all()
