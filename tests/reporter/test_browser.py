"""The page in a real browser: offline, in both themes and widths, without scripts, by keyboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shardprep.dataset.schema import BOX, BOX_LABEL, MASK
from shardprep.reporter.report import Report
from tests.reporter.pages import CONTROLS, LUMINANCE, UNSEEN, WIDTHS, opened, page_file
from tests.support.annotated import annotated
from tests.support.browser import serious
from tests.support.builders import write

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(name="address", scope="module")
def _address(report: Report, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "planted-report.html"
    return write(path, report.html().encode()).as_uri()


@pytest.fixture(name="marked", scope="module")
def _marked(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("marked")
    return page_file(annotated(folder, BOX, BOX_LABEL, MASK), folder).as_uri()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_opens_offline_in_both_themes_and_widths(
    browser: Browser, address: str, width: int, theme: Any
) -> None:
    with opened(browser, address, width, color_scheme=theme) as page:
        assert page.title().startswith("planted")
        assert page.evaluate("document.images.length") > 60
        assert page.evaluate(UNSEEN) == 0
        assert page.evaluate("document.documentElement.scrollWidth") == width
        is_light = page.evaluate(LUMINANCE) > 3 * 127
        assert is_light == (theme == "light")


def test_the_page_is_complete_without_scripts(
    browser: Browser, address: str, report: Report
) -> None:
    with opened(browser, address, java_script_enabled=False) as page:
        assert page.locator(".findings > li").count() == len(report.findings)
        assert page.locator("#gallery img").first.is_visible()
        assert page.locator("#splits table").first.is_visible()
        assert page.locator("button").count() == 0
        facts = page.locator("#gallery .pic").first
        assert not facts.locator("dl").is_visible()
        facts.locator("summary").click()
        assert facts.locator("dl").is_visible()
        page.locator("#findings summary").first.click()
        assert page.locator("#findings .key").first.is_visible()


def test_charts_are_drawn(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        size = "one => { const box = one.getBBox(); return box.width * box.height }"
        areas = page.locator("svg.chart path.area")
        assert areas.count() >= 2 * 6
        for i in range(areas.count()):
            assert areas.nth(i).evaluate(size) > 0
        assert page.locator("svg.chart line.limit").count() == 7
        assert page.locator("#originals svg.square rect").count() > 3


@pytest.mark.thorough
def test_the_keyboard_reaches_every_control(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        number = page.locator(CONTROLS).count()
        page.evaluate("""() => {
            window.reached = [];
            document.addEventListener('focusin', one => window.reached.push(one.target));
        }""")
        for _ in range(number + 5):
            page.keyboard.press("Tab")
        seen = page.evaluate(
            f"window.reached.map([].indexOf, [...document.querySelectorAll(`{CONTROLS}`)])"
        )
        visible = page.evaluate(
            f"[...document.querySelectorAll(`{CONTROLS}`)].map((one, i) => "
            "one.checkVisibility({contentVisibilityAuto: true}) ? i : -1).filter(i => i >= 0)"
        )
        assert set(visible) <= set(seen)


def test_tables_sort_and_code_is_copied(browser: Browser, address: str) -> None:
    with opened(browser, address, permissions=["clipboard-read", "clipboard-write"]) as page:
        first = page.locator("#classes tbody th").first
        head = page.locator("#classes thead button").first
        head.click()
        assert first.inner_text() == "cat"
        head.click()
        assert first.inner_text() == "dog"
        assert page.locator("#classes [aria-sort=descending]").count() == 1
        page.locator("#channels button").click()
        # A function of the page would be text that is evaluated, which the page forbids.
        page.locator("#channels button", has_text="Copied").wait_for()
        assert "mean = (" in page.evaluate("navigator.clipboard.readText()")


def test_the_page_prints(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        printed = page.pdf()
        assert printed.startswith(b"%PDF")
        assert printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page ") >= 2


@pytest.mark.parametrize(
    ("name", "theme"),
    [
        ("address", "light"),
        ("marked", "dark"),
        pytest.param("address", "dark", marks=pytest.mark.thorough),
        pytest.param("marked", "light", marks=pytest.mark.thorough),
    ],
)
def test_axe_finds_nothing_serious(
    browser: Browser, request: pytest.FixtureRequest, name: str, theme: Any
) -> None:
    with opened(browser, request.getfixturevalue(name), color_scheme=theme) as page:
        assert serious(page) == []


@pytest.mark.thorough
def test_boxes_and_masks_lie_on_their_pictures_and_can_be_hidden(
    browser: Browser, marked: str
) -> None:
    """In both widths, without scripts, also in an opened picture."""
    for width in WIDTHS:
        with opened(browser, marked, width, java_script_enabled=False) as page:
            shot = page.locator(".shot:has(svg)").first
            for _ in range(2):
                place = shot.locator("img").first.bounding_box()
                assert place == shot.locator("img.over").bounding_box()
                assert place == shot.locator("svg.over").bounding_box()
                shot.click()
            page.get_by_label("Show boxes and masks").uncheck()
            assert page.locator(".over:visible").count() == 0
            assert shot.locator("img").first.is_visible()
