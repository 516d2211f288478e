"""The site: it is built without a warning, its links lead somewhere, and people find pages."""

from __future__ import annotations

import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pytest

import shardprep
from shardprep import reader
from tests.support.browser import serious
from tests.support.paths import README, ROOT, shared_folder
from tests.support.processes import Program

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DOCS = ROOT / "docs"
MOST_CPU_S, MOST_BYTES = 60, 15_000_000
MOST_LINES_OF_README = 120
LOOKED_AT = [
    *("index", "labels", "boxes", "kaggle", "notebook"),
    *("recipe", "splits", "selections", "verify", "platforms"),
]
HITS = {
    "resume": {"reading", "keras", "pytorch", "jax"},
    "dicom": {"images", "platforms"},
    "class weights": {"selections"},
    "overwrite": {"cli", "reuse"},
    "ctc": {"pytorch"},
}
"""Words → pages that answer them."""
AUGMENT = re.findall(
    r'^    "(\w+)",', (ROOT / "shardprep/reader/augment/__init__.py").read_text(), re.MULTILINE
)
"""Its public names. Importing it takes TensorFlow and 20 seconds."""


class Page(HTMLParser):
    """The links, the names of places and the headings of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, _: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in {"href", "src"}:
                self.links.append(value or "")
            elif name == "id":
                self.places.add(value or "")


@pytest.fixture(name="site", scope="module")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site, built as `make docs` does, once for all tests."""

    def make(folder: Path) -> None:
        command = re.search(r"sphinx-build ((?:.*\\\n)*.*)", (ROOT / "Makefile").read_text())
        assert command is not None
        options = command[1].replace("\\\n", "").split()
        options[-1], options[-3] = str(folder), str(folder.with_name("doctrees"))
        code = "import os, sys; from sphinx.cmd.build import main; os.chdir(sys.argv[1])"
        program = Program(f"{code}; assert main(sys.argv[2:]) == 0", ROOT, *options)
        done = program.wait()
        assert done.returncode == 0, done.stderr
        assert program.cpu_s < MOST_CPU_S

    return shared_folder(tmp_path_factory, "site", make)


def test_every_page_is_in_the_tree_once() -> None:
    text = (DOCS / "index.md").read_text()
    trees = re.findall(r"^```\{toctree\}\n(?::.*\n)*\n((?:[^`\n]+\n)*)", text, re.MULTILINE)
    listed = "".join(trees).replace("Start <self>", "index").split()
    assert sorted(listed) == sorted(path.stem for path in DOCS.glob("*.md"))


def test_every_page_begins_with_its_use() -> None:
    for path in DOCS.glob("*.md"):
        if path.stem not in {"SKILL", "index", "changelog", "contributing"}:
            assert re.match(r"# .+\n\nThis page ", path.read_text()), path.name


def test_every_extra_is_explained() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(declared["optional-dependencies"]) - {"browser", "docs", "test"}
    rows = re.findall(r"^\| `(\w+)` \| ", (DOCS / "platforms.md").read_text(), re.MULTILINE)
    assert set(rows) == extras


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= MOST_LINES_OF_README


@pytest.mark.thorough
def test_links_and_anchors_lead_somewhere(site: Path) -> None:
    pages = {path.name: Page(path) for path in site.glob("*.html")}
    assert len(pages) > 40
    broken = []
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            path = unquote(parts.path) or name
            is_there = (site / path).is_file()
            if is_there and parts.fragment and path in pages:
                is_there = unquote(parts.fragment) in pages[path].places
            if not is_there:
                broken.append((name, link))
    assert broken == []
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < MOST_BYTES


@pytest.mark.thorough
def test_no_public_name_is_undocumented(site: Path) -> None:
    text = (site / "api.html").read_text("utf-8")
    names = {f"shardprep.{name}" for name in shardprep.__all__}
    names |= {f"shardprep.reader.{name}" for name in reader.__all__}
    names |= {f"shardprep.reader.augment.{name}" for name in AUGMENT}
    missing = {name for name in names if f' id="{name}"' not in text}
    assert missing <= {"shardprep.reader", "shardprep.reader.augment"}, "modules, which have titles"
    places = re.findall(r'<dt class="sig sig-object py" id="([\w.]+)">(.*?)</dd>', text, re.DOTALL)
    described = {name for name, rest in places if re.search(r"<dd>.*\w", rest, re.DOTALL)}
    assert names - missing <= described


@pytest.mark.thorough
def test_words_are_found_in_the_first_three_hits(site: Path, browser: Browser) -> None:
    for words, fitting in HITS.items():
        page = browser.new_page()
        page.goto(f"{(site / 'search.html').as_uri()}?q={words.replace(' ', '+')}")
        page.locator(".search-summary", has_text="Search finished").wait_for()
        links = page.locator("#search-results li > a").evaluate_all("all => all.map(a => a.href)")
        first = [Path(urlsplit(link).path).stem for link in links[:3]]
        page.close()
        assert set(first) & fitting, (words, first)


@pytest.mark.thorough
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_are_readable_for_all(site: Path, browser: Browser, width: int, theme: Any) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=theme, offline=True
    )
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda one: said.append(one.text))
    page.on("pageerror", lambda one: said.append(str(one)))
    for name in LOOKED_AT:
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") == width, name
    page.close()
    assert said == []
    page = context.new_page()  # axe asks for the style sheets, which the browser refuses
    for name in LOOKED_AT:
        page.goto((site / f"{name}.html").as_uri())
        is_first = name == LOOKED_AT[0]  # the tree is the same on all pages
        assert serious(page, None if is_first else "article") == [], name
    context.close()
