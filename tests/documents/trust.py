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
    "name": "odd, long or clashing names",
    "link": "links and devices as members",
    "member": "members that cannot be read",
    "archive": "an archive that cannot be read",
    "size": "false sizes",
    "cut": "truncated at any place",
    "damage": "damaged bytes",
    "hidden": "members that the directory does not list",
    "overlap": "members that share their bytes",
    "bomb": "decompression bombs",
    "depth": "nested too deeply",
    "time": "slow to read by construction",
    "junk": "junk before or after the archive",
    "nothing": "empty, or not an archive",
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
        ("SIGKILL before each change to the disk, in turn", least["every change"], same),
        ("SIGKILL by a timer, at random moments", least["random moments"], same),
        ("disk full (*), at each written page", least["full disk"], f"one-line error; {same}"),
        ("read-only disk (*)", str(LEAST["read-only"]), f"one-line error, nothing written; {same}"),
        (
            "build in parts: SIGKILL before each change to the disk, in turn",
            least["every change of parts"], same,
        ),
        (
            "parts built at the same time: SIGKILL by a timer, at random moments",
            least["parts at random moments"], same,
        ),
        (
            "each part built by two processes at the same time", str(LEAST["parts together"]),
            "the same bytes",
        ),
        ("SIGKILL of a build that has workers", str(PARENT_KILLS), f"all workers end; {same}"),
        ("SIGKILL of workers in one build", f"at least {MIN_WORKER_KILLS}", "the same bytes"),
        ("Ctrl-C", "1", f"exit code 130, all workers end; {same}"),
        (
            "a decoder (replaced in the test) that kills its process",
            str(ends["crashed"] * len(CHUNK_SIZES)),
            "only that image is rejected, as `crashed`",
        ),
        (
            "a decoder (replaced in the test) that hangs", str(ends["timeout"] * len(CHUNK_SIZES)),
            "only that image is rejected, as `timeout`",
        ),
        (
            "a decoder with too little memory", str(len(STARVED_MEGABYTES)),
            "only that image is rejected, as `crashed`, with the reason",
        ),
        (
            f"a source ({', '.join(SOURCES)}) that {', '.join(CHANGES)} while it is read",
            str(len(SOURCES) * len(CHANGES)),
            "an error, and nothing is kept; with the original source, the same bytes",
        ),
        ("a build into a folder that another build uses", "1", "an error"),
    ]  # fmt: skip


def document_part() -> str:
    """Return the paragraph about mutated annotation documents."""
    found = load_documents()
    text = (
        f"**Mutated annotations.** In {found.tried:,} sources, the annotation documents, tables "
        f"and lists of names were mutated at random from a seed, in {len(FORMS)} forms. "
        f"{found.built:,} became datasets that pass `verify --decode`. The other "
        f"{found.refused:,} ended with a one-line error ({found.date}). None needed more than "
        f"{MOST_S:.0f} s or {MOST_KIB >> 10} MiB. Each run of the tests tries the first "
        f"{NUM_DOCUMENTS}."
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
        ("images", "tried", "written", "of these, with noted damage", "rejected"),
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
    fault_table = table(("fault", "times", "result"), list(fault_rows()))
    problems = table(
        ("problem", "meaning"), [(f"`{kind}`", text) for kind, text in MEANINGS.items()]
    )
    return f"""# What was tested

This page counts the inputs and faults that shardprep was tested with, so that you can judge
whether to trust it with a dataset too large to look at. The tests write this page (`python -m
tests.documents.trust`) and fail if it claims more than they check. In all these tests no image
was lost, and none was left out silently.

## Inputs

**Images.** The tests make {sum(row.tried for row in images)} odd and broken images. Each is
written, or rejected with a reason. [images.md](images.md) lists them.

{image_table}

**Archives.** The tests make {sum(tried for _, tried, _ in archives)} hostile archives. None wrote
outside its dataset, ran forever, or needed more than 500 MB.

{archive_table}

{document_part()}

**Datasets.** In {NUM_GATE} datasets, the documents, tables, records or indexes were changed at
random and signed again, so that every hash is correct. {len(READERS)} commands, layouts and
readers open each of them. They end with a result or a one-line error, in bounded memory. `make
soak` tries {NUM_SOAK} of them.

**Files of other projects.** If a collection of other projects' test files is available, the tests
use it; it is not part of this project. It has more than 2,500 images: the build ends, written +
rejected + skipped = inputs, no image hangs, and more than {MIN_WRITTEN_OF_OTHERS:,} can be
written. It has more than {MIN_ARCHIVES_OF_OTHERS} hostile archives: each is built, or is a
one-line error.

## Faults

The system makes these faults, or a process really dies. "The same bytes" means: equal to an
undisturbed build, every file compared. At any time, a file under its final name is complete.

{fault_table}

**Two runs at the same address in object storage.** {len(meetings())} pairs are tested: builds,
parts, `--overwrite` and `finalize`, at an empty address, over a dataset, or over the files of a
killed run. Their requests are played in {num_orders()} orders; in some of them one run is killed
or interrupted. If there was a finished dataset, there is one at every moment. Both runs end with
a dataset or with one clear error. `make soak` plays every order with one pause of one run until
the other has ended.

(*) Tested if the system lets the tests mount their own disk, skipped otherwise.

{page_part(load(RECORD), table)}
## What `verify` finds

`shardprep verify` names damage by its file and, if they apply, its record, offset and source key:

{problems}

## Not covered

- Power cuts. The tests use SIGKILL instead, which does not lose data that the system has not
  written yet.
- Disks and file systems with a false `fsync`, network file systems, faulty memory, Windows and
  macOS.
- Wrong labels in the source. shardprep stores the labels of the source.
- If the machine pauses twice at the same image for longer than `--timeout`, the image is rejected
  as `timeout` and counted.
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page_text(made()), encoding="utf-8")


if __name__ == "__main__":
    main()
