"""docs/llms.txt and docs/SKILL.md, made of the other pages and the commands.

`python -m tests.documents.assistant_pages` writes them. The form of llms.txt is that of
https://llmstxt.org: a title, a summary, and lists of links with a sentence each.
"""

import re

from tests.documents.cli_page import parser
from tests.support.paths import DATA, README, ROOT

DOCS = ROOT / "docs"
_FIRST = ("cheatsheet", "cli", "python", "labels", "kaggle", "reading", "format", "json")
"""Pages that answer most questions."""


def llms_text() -> str:
    """Return docs/llms.txt."""
    summary = README.split("\n\n")[1]
    pages = [DOCS / f"{name}.md" for name in _FIRST]
    others = sorted({*DOCS.glob("*.md")} - {*pages, DOCS / "SKILL.md"})
    parts = ["# shardprep\n", f"> {' '.join(summary.split())}\n"]
    for title, paths in (("Start here", pages), ("All other pages", others)):
        parts.append(f"## {title}\n")
        parts += [_link(path.name, path.read_text(encoding="utf-8")) for path in paths]
        parts.append("")
    return "\n".join(parts)


def _link(name: str, page: str) -> str:
    title = page.split("\n", 1)[0].removeprefix("# ")
    text = next(part for part in page.split("\n\n")[1:] if not re.match(r"[#|$<!]|```|\s", part))
    sentence = re.split(r"(?<=[.]) ", " ".join(text.split()))[0]
    sentence = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", sentence).removeprefix("This page ")
    return f"- [{title}]({name}): {sentence[0].upper()}{sentence[1:].rstrip(':.')}."


def skill_text() -> str:
    """Return docs/SKILL.md."""
    head = (DATA / "skill_head.md").read_text(encoding="utf-8")
    sheet = (DOCS / "cheatsheet.md").read_text(encoding="utf-8").split("\n\n", 2)[2]
    codes = re.search(
        r"^\| exit code \|.*?\n\n", (DATA / "cli_head.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert codes is not None
    names = [f"`{name}`" for name in parser().commands]
    return (
        f"{head}## Tasks\n\nDATASET is a folder such as `tfrecords/pets`.\n\n{sheet}\n"
        f"## Exit codes\n\n{codes[0]}"
        f"## More\n\nThe commands are {', '.join(names[:8])},\n{', '.join(names[8:])}.\n"
        "`shardprep COMMAND --help` (for `build`, `--help-all`) and [cli.md](cli.md) list\n"
        "every option, [llms.txt](llms.txt) the pages.\n"
    )


if __name__ == "__main__":
    (DOCS / "SKILL.md").write_text(skill_text(), encoding="utf-8")
    (DOCS / "llms.txt").write_text(llms_text(), encoding="utf-8")
