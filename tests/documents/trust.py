"""docs/trust.md: `tests/data/trust.md` with figures that are counted, or asserted by tests.

`python -m tests.documents.trust` writes the page, `test_trust` compares it. No fault is made again:
their figures are the constants that their own tests hold.
"""

import textwrap
from collections import Counter
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
    KINDS,
    MIN_ARCHIVES_OF_OTHERS,
    WHOLE,
    Ordeal,
    archive_rows,
    made,
)
from tests.support.paths import DATA, ROOT
from tests.writer.faulty import (
    CHANGES,
    ENDS_OF_WORKERS,
    GATE_STEP,
    LEAST,
    MIN_WORKER_KILLS,
    PARENT_KILLS,
    SOURCE_CHANGES,
    SOURCES,
)
from tests.writer.meetings import meetings, num_orders

PAGE, TEMPLATE = ROOT / "docs" / "trust.md", DATA / "trust.md"


class ImageRow(NamedTuple):
    kind: str
    tried: int
    written: int
    damaged: int
    rejected: dict[str, int]


def image_rows() -> list[ImageRow]:
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


def document_part() -> str:
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
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def page_text(ordeal: Ordeal) -> str:
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
            (KINDS[kind], tried, *(ends.get(end, 0) for end in (WHOLE, COUNTED, ERROR)))
            for kind, tried, ends in archives
        ],
    )
    problems = table(
        ("problem", "meaning"), [(f"`{kind}`", text) for kind, text in MEANINGS.items()]
    )
    ends = Counter(kind for _, _, kind, _ in ENDS_OF_WORKERS)
    return TEMPLATE.read_text(encoding="utf-8").format(
        num_images=sum(row.tried for row in images),
        image_table=image_table,
        num_archives=sum(tried for _, tried, _ in archives),
        archive_table=archive_table,
        document_part=document_part(),
        num_gate=NUM_GATE,
        num_soak=NUM_SOAK,
        num_readers=len(READERS),
        min_written_of_others=MIN_WRITTEN_OF_OTHERS,
        min_archives_of_others=MIN_ARCHIVES_OF_OTHERS,
        least={plan: max(1, number // GATE_STEP) for plan, number in LEAST.items()},
        gate_step=GATE_STEP,
        parent_kills=PARENT_KILLS,
        min_worker_kills=MIN_WORKER_KILLS,
        crashes=ends["crashed"],
        hangs=ends["timeout"],
        starved=len(STARVED_MEGABYTES),
        sources=", ".join(SOURCES),
        changes=", ".join(CHANGES),
        source_changes=len(SOURCE_CHANGES),
        num_meetings=len(meetings()),
        num_orders=num_orders(),
        soak=page_part(load(RECORD), table),
        problems=problems,
    )


def main() -> None:
    PAGE.write_text(page_text(made()), encoding="utf-8")


if __name__ == "__main__":
    main()
