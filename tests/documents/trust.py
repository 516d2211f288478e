"""Figures and claims of docs/trust.md: they are counted, or asserted by tests.

`python -m tests.documents.trust` writes the page, `test_trust` compares it. No fault is made again:
their figures are the constants that their own tests hold.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from shardprep.image.process import ProcessedImage
from shardprep.verifier.problem import MEANINGS
from tests.catalog.mutated_documents import FORMS, MOST_KIB, MOST_S, NUM_DOCUMENTS
from tests.dataset.signed_mutations import NUM_GATE, NUM_SOAK, READERS
from tests.image.policy import CASES, MIN_WRITTEN_OF_OTHERS, POLICY, STARVED_MEGABYTES, outcome
from tests.soak.record import RECORD, load, load_documents, page_part
from tests.source.ordeal import (
    COUNTED,
    ERROR,
    MIN_ARCHIVES_OF_OTHERS,
    WHOLE,
    Ordeal,
    archive_rows,
    made,
)
from tests.writer.faulty import (
    CHANGES,
    CHUNK_SIZES,
    ENDS_OF_WORKERS,
    LEAST,
    MIN_WORKER_KILLS,
    PARENT_KILLS,
    SOURCES,
)
from tests.writer.meetings import meetings, num_orders

PAGE = Path(__file__).parents[2] / "docs" / "trust.md"
KINDS_OF_ARCHIVE = {
    "path": "member names that lead out of the folder",
    "name": "odd, long, clashing names",
    "link": "links and devices as members",
    "member": "members that cannot be read",
    "archive": "an archive that cannot be read",
    "size": "sizes that are not true",
    "cut": "cut anywhere",
    "damage": "damaged bytes",
    "hidden": "members that the directory does not show",
    "overlap": "members that share their bytes",
    "bomb": "bombs",
    "depth": "nested too deep",
    "time": "slow to read by construction",
    "junk": "junk before or behind",
    "nothing": "empty, or no archive",
}


class ImageRow(NamedTuple):
    """Counts of the images of one kind, by how they ended."""

    kind: str
    tried: int
    written: int
    damaged: int
    """Written images that are damaged."""
    rejected: dict[str, int]


def image_rows() -> list[ImageRow]:
    """Process every image of the policy."""
    rows = []
    for title, lines in POLICY.items():
        results = [outcome(case) for line, case in CASES.values() if line in lines]
        written = [result for result in results if isinstance(result, ProcessedImage)]
        rejected = [result for result in results if not isinstance(result, ProcessedImage)]
        assert all(result.reason for result in rejected), title
        damaged = sum(bool(result.damage) for result in written)
        kinds = Counter(result.kind for result in rejected)
        rows.append(
            ImageRow(title, len(results), len(written), damaged, dict(sorted(kinds.items())))
        )
    return rows


def fault_rows() -> list[tuple[str, str, str]]:
    """Return each fault: how it is made, how often, what holds after it."""
    ends = Counter(kind for _, kind, _ in ENDS_OF_WORKERS)
    least = {plan: f"at least {number}" for plan, number in LEAST.items()}
    same = "the next run ends with the same bytes"
    return [
        ("SIGKILL before a change to the disk, at each in turn", least["every change"], same),
        ("killed by a timer, at random moments", least["random moments"], same),
        ("disk full (*), at each page written", least["full disk"], f"one-line error; {same}"),
        ("read-only disk (*)", str(LEAST["read-only"]), f"one-line error, nothing written; {same}"),
        (
            "SIGKILL of a build in parts before a change to the disk, at each in turn",
            least["every change of parts"], same,
        ),
        (
            "parts, built at the same time, killed by a timer at random moments",
            least["parts at random moments"], same,
        ),
        (
            "each part built by two processes at the same time", str(LEAST["parts together"]),
            "the same bytes",
        ),
        ("SIGKILL of a build that has workers", str(PARENT_KILLS), f"no worker is left; {same}"),
        ("SIGKILL of workers in one build", f"at least {MIN_WORKER_KILLS}", "the same bytes"),
        ("Ctrl-C", "1", f"exit code 130, no worker is left; {same}"),
        (
            "a stand-in for a decoder that kills its process",
            str(ends["crashed"] * len(CHUNK_SIZES)),
            "that image is rejected as `crashed`, no other",
        ),
        (
            "a stand-in for a decoder that hangs", str(ends["timeout"] * len(CHUNK_SIZES)),
            "that image is rejected as `timeout`, no other",
        ),
        (
            "a decoder that is given too little memory", str(len(STARVED_MEGABYTES)),
            "that image is rejected as `crashed`, with the reason",
        ),
        (
            f"a source ({', '.join(SOURCES)}) that {', '.join(CHANGES)} while it is read",
            str(len(SOURCES) * len(CHANGES)),
            "an error, nothing is kept; with the source back, the same bytes",
        ),
        ("a build into a folder where another is at work", "1", "an error"),
    ]  # fmt: skip


def document_part() -> str:
    """Return what came of mutated annotation documents."""
    found = load_documents()
    text = (
        f"{found.tried:,} sources whose annotation documents, tables and lists of names were "
        f"mutated at random from a seed, in {len(FORMS)} forms: {found.built:,} became datasets in "
        f"which `verify --decode` finds nothing wrong, {found.refused:,} ended with an error of "
        f"one line, none otherwise ({found.date}). None took longer than {MOST_S:.0f} s or more "
        f"than {MOST_KIB >> 10} MiB. The first {NUM_DOCUMENTS} are tried with the tests."
    )
    return textwrap.fill(text, 100)


def table(head: tuple[str, ...], rows: list[Any]) -> str:
    """Return a Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def page_text(ordeal: Ordeal) -> str:
    """Return the page; `ordeal` is that of the archives that the suite makes."""
    images = image_rows()
    archives = archive_rows(ordeal)
    image_table = table(
        ("images", "tried", "written", "of these, damage noted", "rejected"),
        [
            (
                row.kind, row.tried, row.written, row.damaged,
                ", ".join(f"{number} `{kind}`" for kind, number in row.rejected.items()) or 0,
            )
            for row in images
        ],
    )  # fmt: skip
    archive_table = table(
        ("archives", "tried", WHOLE, COUNTED, ERROR),
        [
            (KINDS_OF_ARCHIVE[kind], tried, *(ends.get(end, 0) for end in (WHOLE, COUNTED, ERROR)))
            for kind, tried, ends in archives
        ],
    )
    fault_table = table(("fault", "times", "what holds"), list(fault_rows()))
    problems = table(
        ("problem", "meaning"), [(f"`{kind}`", text) for kind, text in MEANINGS.items()]
    )
    return f"""# What was tried

Can shardprep be trusted with a dataset too large to look at? This page is written by the tests
(`python -m tests.documents.trust`), and they fail where it says more than they do. In all that
follows no image was lost, and none was left out in silence.

## Inputs

{sum(row.tried for row in images)} odd and broken images made by the tests. Each is written or
rejected with a reason; [images.md](images.md) has them line by line.

{image_table}

{sum(tried for _, tried, _ in archives)} hostile archives made by the tests. None wrote outside its
dataset, ran without end, or took more than 500 MB.

{archive_table}

{document_part()}

{NUM_GATE} datasets whose documents, tables, records or indexes were changed at random and signed
anew, so that every hash is right. {len(READERS)} commands, layouts and readers open each, and end
with a result or one line, in bounded memory. `make soak` tries {NUM_SOAK} of them.

A collection of other projects' test files is tried too, where it is at hand; the project does not
carry it. More than 2,500 images: the build ends, written + rejected + skipped = inputs, and no
image hangs; more than {MIN_WRITTEN_OF_OTHERS:,} can be written. More than {MIN_ARCHIVES_OF_OTHERS}
hostile archives: each is built or is a one-line error.

## Faults

Made by the system, or by a process that really dies. "The same bytes" are those of an undisturbed
build, every file compared; in between, what has its final name is complete.

{fault_table}

Two runs at once over one place in object storage, {len(meetings())} pairs of them: builds, parts,
`--overwrite` and `finalize`, over nothing, over a dataset, over what a dead run has left. Their
requests are put in {num_orders()} orders, in some of which one run is killed or interrupted: a
finished dataset is there at each moment, if one was, and both end with it or with one clear error.
`make soak` plays each order in which one of them pauses once until the other is over.

(*) Tried where the system lets the tests mount a disk of their own, and skipped elsewhere.

{page_part(load(RECORD), table)}
## What `verify` finds

`shardprep verify` names damage by file and, where they exist, record, offset and source key:

{problems}

## What is not covered

Power cuts: a SIGKILL stands for them, which does not lose what the system has not yet written.
Disks and file systems that lie about `fsync`; network file systems; faulty memory; Windows and
macOS. Wrong labels in the source: shardprep stores what the source says. An image at which the
machine stands still twice for longer than `--timeout` is rejected as `timeout`, and counted.
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page_text(made()), encoding="utf-8")


if __name__ == "__main__":
    main()
