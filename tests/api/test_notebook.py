"""Notebooks: results as tables, progress in a cell, a kernel that builds."""

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardprep
from shardprep import reader
from shardprep.api import display
from shardprep.api.display import Cell
from shardprep.dataset.card import Card, Link, card
from shardprep.progress import Progress
from tests.reporter.pages import Page
from tests.support.builders import animals, jpeg, tree, write, zip_bytes
from tests.support.command import run

HOSTILE = "<script>alert(1)</script> \x1b[31m \u202e & \"quoted\" 'too'"


def tags(page: str) -> set[str]:
    """Return the names of the tags of a page, which are closed in order."""
    found = Page(page.encode("ascii", "xmlcharrefreplace")).tags
    assert not [name for _, attrs in found for name in attrs if name.startswith("on")]
    return {tag for tag, _ in found}


@dataclass(frozen=True, slots=True, repr=False)
class Example(Card):
    text: object = HOSTILE
    many: dict[str, object] = field(default_factory=dict)
    rows: tuple[object, ...] = ()


class Unshowable:
    def __str__(self) -> str:
        raise ValueError("no")

    __repr__ = __str__


def test_a_card_shows_hostile_names_as_text() -> None:
    card = Example(many={HOSTILE: HOSTILE}, rows=(HOSTILE,))
    for text in (repr(card), card._repr_html_()):
        assert not re.search("[\x1b\u202e\n]", text)
    assert tags(card._repr_html_()) == {"table", "caption", "tbody", "tr", "th", "td"}


@pytest.mark.parametrize("number", [1000, 1_000_000])
def test_a_card_of_many_values_stays_small_and_counts_them(number: int) -> None:
    names: dict[str, object] = {f"class {i} {'x' * 1000}": i for i in range(min(10000, number))}
    card = Example("x" * number, names, tuple(range(number)))
    assert len(card._repr_html_().encode()) < 100_000
    assert f"{number:,} in all" in card._repr_html_()
    assert len(repr(card)) < 5_000
    tags(card._repr_html_())


def test_a_card_with_long_rows_is_cut_after_a_row() -> None:
    @dataclass(repr=False)
    class Long(Card):
        def facts(self) -> dict[str, Any]:
            return {f"fact {i}": {f"{j}" * 300: "é" * 300 for j in range(60)} for i in range(50)}

    page = Long()._repr_html_()
    assert len(page.encode()) < 100_000
    assert re.search(r"… \d+ more", page)
    tags(page)


def test_a_card_never_raises() -> None:
    card = Example(text=Unshowable())
    assert "Example object at" in repr(card)
    assert "Example object at" in card._repr_html_()


@pytest.mark.usefixtures("drawn")
def test_every_result_is_one_line_and_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "pets.zip", zip_bytes(animals(8) | {"train/cat.9.jpg": b"no image"}))
    given: dict[str, Any] = {"size": 32, "max_rejected": "50%"}
    built = shardprep.build("pets.zip", workers=1, **given)
    results = {
        "BuildResult": (built, "rejected: not_an_image 1"),
        "Plan": (shardprep.build("pets.zip", dry_run=True), "train 9"),
        "PartResult": (shardprep.build("pets.zip", part="1/2", **given), "part: 1/2"),
        "Facts": (shardprep.inspect("tfrecords"), "cat 4, dog 4"),
        "Verification": (shardprep.verify("tfrecords"), "problems: none"),
        "Difference": (shardprep.diff("tfrecords", "tfrecords"), "same: every record"),
        "Survey": (shardprep.init("pets.zip"), "labels by: prefix"),
        "Report": (shardprep.report("tfrecords"), "looked at: 8 of 8 images"),
        "Sample": (shardprep.sample("sample"), "shapes.zip"),
    }
    (built.path / next(iter(built.manifest.shards))).unlink()
    results["Verification "] = (shardprep.verify("tfrecords"), "missing")
    for name, (result, text) in results.items():
        line = repr(result)
        assert line.startswith(f"<{name.strip()} ")
        assert text in line
        assert "\n" not in line
        assert len(line) < 2_000
        html = result._repr_html_()
        assert "script" not in tags(html)
        assert f"<caption>{name.strip()}</caption>" in html


def test_a_dataset_and_a_report_show_eight_pictures_from_the_shards(tmp_path: Path) -> None:
    """Damaged pictures are left out."""
    source = write(tmp_path / "pets.zip", zip_bytes(animals(30)))
    built = shardprep.build(source, tmp_path / "out", size=32, workers=1)
    dataset = shardprep.reader.Dataset(built.path, decode=False)
    for shown in (dataset, dataset[:9], shardprep.report(built.path)):
        html = shown._repr_html_()
        assert html.count('<img src="data:image/webp;base64,') == 8
        assert len(html.encode()) < 100_000
        assert "script" not in tags(html)
    assert "<img" not in dataset[:0]._repr_html_()
    shard = built.path / next(iter(built.manifest.shards))
    data = bytearray(shard.read_bytes())
    data[200] ^= 1
    shard.write_bytes(data)
    assert dataset._repr_html_().count("<img") == 7
    assert repr(dataset).startswith("shardprep.reader.Dataset('pets/1.0.0', 'train', 30 records")


def test_a_full_card_has_no_pictures() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (8, 112, 112, 3), np.uint8)
    facts = {f"fact {i}": "é" * 240 for i in range(200)}
    assert card("Full", {}, noise).count("<img") == 8
    assert "<img" not in card("Full", facts, noise)
    assert len(card("Full", facts, noise).encode()) < 150_000


def test_a_cell_shows_the_last_notices_a_bar_and_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(Cell, "_draw", lambda self: drawn.append(self.html()))
    with Cell() as shown:
        for i in range(100):
            shown(Progress(notice=f"{i} {HOSTILE}"))
        shown(Progress("encoding", 10, 40, "images", num_before=5, num_rejected=2))
        shown(Progress())
    assert drawn[-1].count("<div>") == display._MOST_NOTICES + 1
    assert '<progress max="40" value="10"></progress> 10 of 40 images' in drawn[-1]
    assert "2 rejected" in drawn[-1]
    assert tags(drawn[-1]) == {"div", "progress"}


def test_a_cell_is_updated_seldom_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each update is a message to the browser."""
    drawn: list[str] = []

    def draw(self: Cell) -> None:
        self._next_s = time.monotonic() + 60
        drawn.append(self.html())

    monkeypatch.setattr(Cell, "_draw", draw)
    with Cell() as shown:
        for i in range(1000):
            shown(Progress("encoding", i, 1000, "images"))
    assert len(drawn) == 2
    assert "999 of 1,000 images" in drawn[-1]


@pytest.fixture(name="kernel", scope="module")
def _kernel(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that runs a cell in a kernel: its messages, by type."""
    manager = pytest.importorskip("jupyter_client.manager")
    pytest.importorskip("ipykernel")
    folder = tmp_path_factory.mktemp("notebook")
    write(folder / "pets.zip", zip_bytes(animals(24)))
    master, client = manager.start_new_kernel(cwd=str(folder))

    def run(code: str) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}

        def take(message: Any) -> None:
            found.setdefault(message["msg_type"], []).append(message["content"])

        client.execute_interactive(code, output_hook=take, timeout=120)
        return found

    run.folder = folder  # type: ignore[attr-defined]
    yield run
    client.stop_channels()
    master.shutdown_kernel(now=True)


@pytest.mark.thorough
def test_a_kernel_builds_and_reads_a_dataset(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The notebooks of the documents do so with TensorFlow, whose import takes seconds."""
    said = kernel(
        'import shardprep; shardprep.build("pets.zip", size=32, shards=4, workers=2, progress=True)'
    )
    assert "error" not in said
    assert "stream" not in said, "nothing is printed"
    pages = [one["data"]["text/html"] for one in said["display_data"] + said["update_display_data"]]
    assert "24 of 24 images" in pages[-1]
    assert all(tags(page) <= {"div", "progress"} for page in pages)
    (result,) = said["execute_result"]
    assert result["data"]["text/plain"].startswith("<BuildResult at: tfrecords/pets/1.0.0")
    assert "<caption>BuildResult</caption>" in result["data"]["text/html"]
    read = kernel(
        "images, labels = next(iter(shardprep.reader.Dataset('tfrecords').batches(8)))\n"
        "images.shape, labels.max() < 2"
    )
    assert read["execute_result"][0]["data"]["text/plain"].startswith("((8, 32, 32, 3), ")
    monkeypatch.chdir(kernel.folder)
    other = shardprep.build("pets.zip", "other", size=32, shards=4, workers=1)
    assert tree(other.path) == tree(kernel.folder / "tfrecords/pets/1.0.0")


def test_viewers_and_written_reports_are_links_and_facts_equal_inspect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = {f"train/cat.{90 + i}.jpg": jpeg(12, 12, seed=90 + i) for i in range(2)}
    source = write(tmp_path / "pets.zip", zip_bytes(animals(30) | sizes))
    shardprep.build(source, size=32, workers=1)
    (tmp_path / "a page").mkdir()
    report = shardprep.report(output="a page/r&d.html")
    html = report._repr_html_()
    assert '<a href="a%20page/r%26d.html" target="_blank" rel="noopener">' in html
    assert "a" in tags(html)
    assert "<a " not in shardprep.report()._repr_html_()
    with shardprep.view() as viewer:
        assert f'<a href="{viewer.url}" target="_blank"' in viewer._repr_html_()
    facts = shardprep.inspect()
    assert facts.findings
    printed = " ".join(run("inspect", cwd=tmp_path).stdout.split())
    for one in facts.findings:
        assert one in printed
        assert one in facts._repr_html_()


def test_a_link_is_neither_markup_nor_script() -> None:
    for text in (HOSTILE, "javascript:alert(1)", '"><b>'):
        html = Example(text=Link(text))._repr_html_()
        assert tags(html) == {"table", "caption", "tbody", "tr", "th", "td", "a"}
        assert 'href="javascript:' not in html


def test_a_number_of_one_has_a_singular(tmp_path: Path) -> None:
    source = write(tmp_path / "pets.zip", zip_bytes(animals(1)))
    made = shardprep.build(source, tmp_path / "out", size="8x8", labels="prefix", workers=1)
    assert made.manifest.facts()["size"].startswith("1 shard, ")
    other = shardprep.build(source, tmp_path / "other", size="9x9", labels="prefix", workers=1)
    assert shardprep.leaks(made.path, other.path).facts()["first"].endswith(": 1 image")
    assert repr(reader.select(made.path, "train")).endswith(": 1 record>")
