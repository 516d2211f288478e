"""The viewer in a real browser: filters, arrow keys, without scripts, by keyboard, both themes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shardprep.dataset.schema import BOX, BOX_LABEL, MASK
from shardprep.reporter.report import Report
from tests.reporter.pages import CONTROLS, LUMINANCE, UNSEEN, WIDTHS, opened
from tests.support.annotated import annotated
from tests.support.browser import serious
from tests.support.viewing import Served, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ALL_OF_THEM = """
() => Promise.all([...document.images].map(one => {
    one.loading = 'eager';
    return one.complete || new Promise(done => { one.onload = one.onerror = done; });
}))
"""
"""Waits until all images are loaded or have failed, also below the window."""


@pytest.fixture(name="one", scope="module")
def _one(path: Path, report: Report) -> Iterator[Served]:
    """Serve a dataset whose measures are cached."""
    assert report.findings
    with served(path) as one:
        one.client.page("/findings")
        yield one


@pytest.fixture(name="marked", scope="module")
def _marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = annotated(tmp_path_factory.mktemp("marked"), BOX, BOX_LABEL, MASK)
    with served(path) as one:
        yield one


def home(one: Served, width: int = 1280) -> tuple[str, int, str]:
    return f"http://127.0.0.1:{one.client.port}", width, one.client.cookie


def arrived(page: Page, address: str) -> None:
    page.wait_for_url(re.compile(f"{re.escape(address)}$"))


@pytest.mark.thorough
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_pages_fit_both_themes_and_widths(
    browser: Browser, one: Served, width: int, theme: Any
) -> None:
    with opened(browser, *home(one, width), color_scheme=theme) as page:
        for target in ("/", "/item/0", "/findings", "/item/60"):
            page.goto(target)
            page.evaluate(ALL_OF_THEM)
            assert page.evaluate(UNSEEN) == 0
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert (page.evaluate(LUMINANCE) > 3 * 127) == (theme == "light")


@pytest.mark.parametrize(("theme", "target"), [("light", "/"), ("dark", "/item/0")])
def test_axe_finds_nothing_serious(
    browser: Browser, marked: Served, theme: Any, target: str
) -> None:
    with opened(browser, *home(marked), color_scheme=theme) as page:
        page.goto(target)
        assert serious(page) == []


def test_a_choice_filters_and_changes_the_address(browser: Browser, one: Served) -> None:
    with opened(browser, *home(one)) as page:
        page.get_by_label("Finding").select_option("leaks")
        arrived(page, "/?finding=leaks")
        assert page.locator(".tiles li").count() == 2
        page.get_by_label("Split").select_option("validation")
        arrived(page, "/?split=validation&finding=leaks")
        assert page.locator(".tiles li").count() == 1
        with page.expect_navigation():
            page.get_by_role("link", name="All items").click()
        page.keyboard.press("/")
        page.keyboard.type("nearly")
        page.keyboard.press("Enter")
        arrived(page, "/?key=nearly")
        assert "nearly.png" in page.locator(".tiles li").inner_text()


@pytest.mark.thorough
def test_arrow_keys_lead_from_item_to_item_and_back(browser: Browser, one: Served) -> None:
    with opened(browser, *home(one)) as page:
        page.goto("/?label=0&split=validation")
        shown = page.locator(".tiles a")
        numbers = [int((shown.nth(i).get_attribute("href") or "").split("?")[0].rpartition("/")[2])
                   for i in range(3)]  # fmt: skip
        with page.expect_navigation():
            shown.first.click()
        for key, place in (("Right", 1), ("Right", 2), ("Left", 1), ("Left", 0), ("Left", 0)):
            page.keyboard.press(f"Arrow{key}")
            arrived(page, f"/item/{numbers[place]}?split=validation&label=0")
        page.keyboard.press("ArrowUp")
        arrived(page, "/?split=validation&label=0")
        page.goto("/")
        page.keyboard.press("ArrowRight")
        arrived(page, "/?page=2")
        page.get_by_label("Key").focus()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Tab")
        assert page.url.endswith("/?page=2")


@pytest.mark.thorough
def test_the_viewer_works_without_scripts(browser: Browser, one: Served) -> None:
    with opened(browser, *home(one), java_script_enabled=False) as page:
        page.get_by_label("Class").select_option("1")
        page.get_by_label("Key").fill("train/dog/0")
        with page.expect_navigation():
            page.get_by_role("button", name="Show").click()
        number = page.locator(".tiles li").count()
        assert number == sum(f"{i:02d}"[0] == "0" for i in range(1, 32, 2))
        with page.expect_navigation():
            page.locator(".tiles a").first.click()
        with page.expect_navigation():
            page.get_by_role("link", name="next ›").click()
        assert "2 of 5 that fit" in page.locator("nav.pager").inner_text()
        with page.expect_navigation():
            page.get_by_role("link", name="findings").first.click()
        with page.expect_navigation():
            page.get_by_role("link", name="Show 2 items").first.click()
        assert page.locator(".tiles li").count() == 2


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["/", "/item/0"])
def test_tab_reaches_every_control_in_the_order_of_the_page(
    browser: Browser, one: Served, target: str
) -> None:
    controls = f"{CONTROLS}, input, select"
    with opened(browser, *home(one)) as page:
        page.goto(target)
        number = page.locator(controls).count()
        seen = []
        for _ in range(number):
            page.keyboard.press("Tab")
            seen.append(page.evaluate(
                f"[...document.querySelectorAll(`{controls}`)].indexOf(document.activeElement)"
            ))  # fmt: skip
        assert seen == [*range(number)]


@pytest.mark.thorough
def test_boxes_and_masks_lie_on_the_image_and_can_be_hidden(
    browser: Browser, marked: Served
) -> None:
    number = next(
        number for number in range(7) if marked.client.page(f"/item/{number}").count("<path d=") > 1
    )
    for width in WIDTHS:
        with opened(browser, *home(marked, width), java_script_enabled=False) as page:
            page.goto(f"/item/{number}")
            place = page.locator(".large > img").first.bounding_box()
            assert place is not None
            assert place["width"] <= width
            assert place == page.locator("img.over").bounding_box()
            assert place == page.locator("svg.over").bounding_box()
            page.get_by_label("Show boxes and masks").uncheck()
            assert page.locator(".over:visible").count() == 0
            assert page.locator(".large > img").first.is_visible()
