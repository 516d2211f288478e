"""docs/report.png, a part of the sample's report: `python -m tests.documents.report_picture`."""

from __future__ import annotations

import io
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from tests.support.browser import MISSING, browser_program
from tests.support.builders import build, sample
from tests.support.command import run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PICTURE = Path(__file__).parents[2] / "docs" / "report.png"
SIZE = (1200, 780)
"""Width and height in pixels."""
MOST_BYTES = 200_000


def draw(browser: Browser, folder: Path) -> bytes:
    from playwright.sync_api import FloatRect

    build(sample(folder), folder / "tfrecords", size="64x64", labels="prefix", name="shapes",
          split="train=0.8,validation=0.2", shards=4)  # fmt: skip
    cache = {**os.environ, "SHARDPREP_CACHE": str(folder / "cache")}
    done = run("report", "--quiet", cwd=folder, environment=cache)
    if done.returncode:
        sys.exit(done.stderr)
    tab = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
    tab.goto((folder / "shapes-report.html").as_uri())
    top = tab.locator("h2", has_text="Classes").evaluate("one => one.offsetTop")
    part = FloatRect(x=0, y=top - 20, width=SIZE[0], height=SIZE[1])
    shot = tab.screenshot(full_page=True, clip=part)
    tab.close()
    drawn = Image.open(io.BytesIO(shot)).convert("RGB")
    out = io.BytesIO()
    drawn.quantize(128).save(out, "PNG", optimize=True)
    return out.getvalue()


if __name__ == "__main__":
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as here, sync_playwright() as play:
        program = browser_program() or sys.exit(MISSING)
        chromium = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        PICTURE.write_bytes(draw(chromium, Path(here)))
