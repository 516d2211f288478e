"""Settings of the site: `make docs` writes it to build/site."""

from __future__ import annotations

import inspect
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
FULL_TEXTS = {
    "index": "README.md",
    "contributing": "CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
}
"""Page → file whose text the page begins with. Its copy in the repository has only a link."""

project = "shardprep"
project_copyright = "the shardprep authors, Apache-2.0"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["*.py"]

myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # the tables of images.md have smaller titles

default_role = "code"
autodoc_member_order = "groupwise"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_rtype = False
nitpick_ignore_regex = [("py:.*", ".*")]

html_theme = "furo"
html_title = "shardprep"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_search_summary = False  # a page from file:// must not fetch others
html_search_scorer = str(ROOT / "docs" / "search_order.js")
html_copy_source = False
html_extra_path = ["llms.txt"]
html_show_sourcelink = False
html_use_index = False
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
copybutton_line_continuation_character = "\\"


def setup(app: Sphinx) -> None:
    """Connect the functions below."""
    app.connect("source-read", _adapt)
    app.connect("autodoc-process-docstring", _escape, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", _without_checks)
    app.connect("html-page-context", _for_screen_readers, priority=900)  # after furo


def _adapt(app: Sphinx, page: str, source: list[str]) -> None:
    """Insert the full text of a page, and let links to such files lead to their pages."""
    folder, text = "", source[0]
    if page in FULL_TEXTS:
        file = ROOT / FULL_TEXTS[page]
        app.env.note_dependency(file)
        folder, text = "..", file.read_text("utf-8") + text.partition("<!-- tree -->")[2]
    pages = {f"../{file}": f"{page}.md" for page, file in FULL_TEXTS.items()}

    def link(found: re.Match[str]) -> str:
        path = os.path.normpath(Path("docs", folder, found[1]))
        path = os.path.relpath(path, "docs")
        return f"]({pages.get(path, path)}"

    text = re.sub(r"\[[\w/]+\.md\]\(", "[](", text)  # the title of a page, not the name of its file
    source[0] = re.sub(r"\]\((?!\w+:)([^)#\s]+)", link, text)


def _escape(*given: Any) -> None:
    """Escape what reStructuredText reads as markup, except `code` and lists."""
    lines: list[str] = given[-1]
    parts = [re.split(r"(`[^`]*`)", text) for text in lines]
    for place, own in enumerate(parts):
        own[::2] = [re.sub(r"(?<=\S)\*|\*(?=\S)|\||_(?!\w)", r"\\\g<0>", text) for text in own[::2]]
        lines[place] = "".join(own)


def _without_checks(*given: Any) -> tuple[str, str] | None:
    """Return a signature without types if these contain the checks of their values."""
    value, signature = given[3], given[5]
    if "Annotated[" not in (signature or ""):
        return None
    found = inspect.signature(value)
    given_by_caller = [one for one in found.parameters.values() if one.name != "self"]
    plain = [one.replace(annotation=one.empty) for one in given_by_caller]
    return str(found.replace(parameters=plain, return_annotation=found.empty)), given[6] or ""


def _for_screen_readers(
    _app: Sphinx, _page: str, _template: str, context: dict[str, Any], _tree: object
) -> None:
    """Level the captions of the tree, let keys scroll, and make no list of lines in a <dt>."""
    tree = context["furo_navigation_tree"]
    context["furo_navigation_tree"] = tree.replace(
        'role="heading"', 'role="heading" aria-level="2"'
    )
    body = context.get("body", "").replace("<pre>", '<pre tabindex="0">')
    body = body.replace('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper')
    context["body"] = re.sub(
        r"<dl>\n((?:<dd><em class=\"sig-param\">.*</dd>\n)+)</dl>", _lines, body
    )


def _lines(parameters: re.Match[str]) -> str:
    lines = parameters[1].replace("<dd>", '<span class="sig-line">').replace("</dd>", "</span>")
    return lines.replace("\n", "")
