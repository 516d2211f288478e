"""The page as a file: well formed, closed to the network, the same for the same dataset."""

import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.image.near_pairs import PAIR
from shardprep.reporter.page import html, pictures
from shardprep.reporter.report import Report
from tests.reporter.pages import HOSTILE, ODD, Page, checked, packed, page_of, reported, strange
from tests.support.command import error_of, ran, run
from tests.support.examples import examples, texts
from tests.support.paths import ROOT
from tests.support.planted import file, photo, planted_set


@pytest.fixture(name="page", scope="module")
def _page(report: Report) -> bytes:
    return report.html().encode()


def test_a_page_has_the_findings_and_the_kinds_without_findings(
    page: bytes, report: Report
) -> None:
    found = checked(page)
    text = found.text
    assert len([1 for tag, _ in found.tags if tag == "img"]) > 60
    for one in report.findings:
        assert one.name in text
        assert all(key in text for key in one.keys)
    assert "shardprep build … --dedup" in text
    assert "classes without an image in train" in text
    assert report.contents.manifest.sha256 in text


def test_the_same_dataset_gives_the_same_bytes(
    page: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dataset is built again in another folder, without a cache. The page has no path."""
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path / "cache"))
    path = planted_set(tmp_path / "elsewhere")
    assert reported(path).html().encode() == page
    assert str(tmp_path).encode() not in page
    assert b"/tmp" not in page


def test_a_wheel_carries_the_style_and_the_script() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    globs = project["tool"]["setuptools"]["package-data"]["shardprep.reporter.page"]
    folder = ROOT / "shardprep" / "reporter" / "page"
    carried = {path for glob in globs for path in folder.glob(glob)}
    assert carried == {path for path in folder.iterdir() if path.suffix in (".css", ".js")}
    assert len(carried) == 2


@pytest.mark.parametrize("options", [{"thumbs": 0}, {"has_pixels": False}])
def test_a_page_without_pictures_has_none(path: Path, options: dict[str, Any]) -> None:
    assert not [tag for tag, _ in page_of(path, **options).tags if tag == "img"]


@given(value=st.one_of(texts(), st.sampled_from(HOSTILE)))
def test_no_text_becomes_markup(value: str) -> None:
    made = html.tag("html", html.tag("p", value, title=value), html.key(value), html.block(value))
    found = Page(made.encode("ascii", "xmlcharrefreplace"))
    assert [tag for tag, _ in found.tags] == ["html", "p", "bdi", "pre", "code"]
    assert not set("\u202e\u2066\u200f\0\x1b") & set(found.text)
    assert all(one.isprintable() or one in " \n\xa0" or ord(one) > 127 for one in found.text)


def test_keys_and_class_names_of_any_kind_stay_text(tmp_path: Path) -> None:
    odd = [one for one in HOSTILE if "\0" not in one and len(one) < 200 and "\ud800" not in one]
    members = {f"{one}/{one}.png": file(photo(i) // 8, "PNG") for i, one in enumerate(odd)}
    found = page_of(packed(tmp_path, members, labels="folder", size="32x32"))
    assert "\\u202e" in found.text
    assert "<script>alert(1)</script>" in found.text


TARGETS: dict[str, tuple[dict[str, Any], str]] = {
    "multilabel": ({"labels": "csv:t.csv:id:tags", "separator": " "}, "Most often together"),
    "regression": ({"labels": "csv:t.csv:id:price", "target": "regression"}, "numbers to learn"),
    "text": ({"labels": "csv:t.csv:id:said", "target": "text"}, "length of texts"),
    "none": ({"labels": "none"}, "Images"),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_each_kind_of_target_has_its_section(tmp_path: Path, kind: str) -> None:
    keys, words = TARGETS[kind]
    rows = "".join(f"{i},{'a b' if i % 3 else 'c'},{i * 1.5},said {i}\n" for i in range(24))
    members = {f"{i}.png": file(photo(i), "PNG") for i in range(24)}
    members["t.csv"] = f"id,tags,price,said\n{rows}".encode()
    text = page_of(packed(tmp_path, members, size="32x32", **keys)).text
    assert words in text
    assert ("with a target" in text) == (kind != "none")


def test_co_occurrence_of_many_classes_is_a_grid(tmp_path: Path) -> None:
    """The thirty largest classes; the diagonal is blank."""
    rows = "".join(f"{i},{i % 40} {(i + 1) % 40}\n" for i in range(120))
    members = {f"{i}.png": file(photo(i, 24, 24), "PNG") for i in range(120)}
    members["t.csv"] = f"id,tags\n{rows}".encode()
    keys = {"labels": "csv:t.csv:id:tags", "separator": " "}
    found = page_of(packed(tmp_path, members, size="24x24", **keys), thumbs=1)
    cells = [attrs for tag, attrs in found.tags if tag == "rect" and attrs.get("width") == "1"]
    assert len([one for one in cells if (one["class"] or "").startswith("h")]) >= 2 * 29
    assert not [one for one in cells if int(one["x"] or 0) == 29 - int(one["y"] or 0)]


def noise(rng: np.random.Generator, side: int) -> Any:
    return rng.integers(0, 256, (side, side, 3), np.uint8)


@pytest.mark.thorough
def test_a_thousand_classes_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are listed, the largest and smallest with bars; forty have pictures."""
    # The search for near copies takes most of the time, and noise has none.
    monkeypatch.setattr("shardprep.reporter.pixels.near_pairs", lambda _: np.empty(0, PAIR))
    rng = np.random.default_rng(0)
    members = {
        f"class {i:04d} {'of a long name ' * 3}/{j}.png": file(noise(rng, 24), "PNG")
        for i in range(1000)
        for j in range(1 + (i < 40) * 2)
    }
    found = page_of(packed(tmp_path, members, labels="folder", size="24x24"))
    assert "960 more" in found.text
    assert all(f"class {i:04d}" in found.text for i in range(1000))
    assert len([1 for tag, _ in found.tags if tag == "img"]) >= 40 * 3


def test_pictures_keep_to_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures beyond it are left out evenly, so that every class has some."""
    rng = np.random.default_rng(0)
    members = {f"{'abcd'[i % 4]}/{i}.png": file(noise(rng, 112), "PNG") for i in range(80)}
    report = reported(packed(tmp_path, members, labels="folder", size="112x112"), thumbs=20)
    whole = pictures.draw_pictures(report)
    size = sum(len(one.data) for one in whole.thumbnails.values())
    monkeypatch.setattr(pictures, "_BUDGET_BYTES", size // 2)
    found = pictures.draw_pictures(report)
    assert sum(len(one.data) for one in found.thumbnails.values()) <= size // 2
    kept = [len(one) for one in found.gallery.values()]
    assert min(kept) > 0
    assert max(kept) - min(kept) <= 4
    checked(report.html().encode())


def test_an_item_table_that_differs_from_the_records_is_one_line(
    path: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(path, tmp_path / "set")
    table = pq.read_table(copy / "items.parquet")
    pq.write_table(pa.concat_tables([table.slice(1), table.slice(0, 1)]), copy / "items.parquet")
    assert "its rows differ from the records" in error_of(run("report", copy, cwd=tmp_path), 1)


@examples(20)
@given(data=st.data(), column=st.sampled_from(list(ODD)))
def test_any_values_in_the_item_table_give_a_page(
    tmp_path_factory: pytest.TempPathFactory, path: Path, data: st.DataObject, column: str
) -> None:
    copy = strange(path, tmp_path_factory.mktemp("strange") / "set", column, data)
    page_of(copy, has_pixels=False)


def test_a_report_is_written_whole_or_not_at_all(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = ran("report", planted / "tfrecords", cwd=tmp_path)
    assert "leaks: 1 image is a copy" in done.stdout
    before = (tmp_path / "planted-report.html").read_bytes()
    done = run("report", planted / "tfrecords", "-o", "-", "--quiet", cwd=tmp_path)
    assert done.stdout.encode() == before
    assert done.stderr == ""

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shardprep.storage.atomic_file.os.fsync", stopped)
    with pytest.raises(KeyboardInterrupt):
        run("report", planted / "tfrecords", cwd=tmp_path)
    assert (tmp_path / "planted-report.html").read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["planted-report.html"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("-o", "nowhere/x.html"), "the folder nowhere does not exist"),
        (("-o", "-", "--json"), "--out -"),
        (("--sample", "0"), "whole number"),
        (("--thumbs", "-1"), "whole number"),
    ],
)
def test_wrong_options_are_one_line(
    planted: Path, tmp_path: Path, arguments: tuple[str, ...], text: str
) -> None:
    done = run("report", planted / "tfrecords", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert text in done.stderr
    assert not list(tmp_path.iterdir())
