"""Results as tables of Markdown, with the reason of each figure that is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.training_machine.figures import (
    MODELS,
    READING,
    TRAINING,
    Figure,
    Missing,
    Rate,
    Results,
)


def reading_table(counts: Sequence[int], results: Results) -> str:
    """Return images per second: a row for each way to read, a column for each number of cores."""
    names = [f"{count}" for count in counts]
    rows = [
        [name, *(_images(results[Figure(way, cores)]) for cores in counts)]
        for way, name in READING.items()
    ]
    return _table(["images/s, by cores", *names], rows)


def training_table(counts: Sequence[int], results: Results) -> str:
    """Return images per second and the share of waiting: a row for each way and count of cores."""
    heads = [head for name in MODELS.values() for head in (f"{name}, images/s", "waiting")]
    rows = []
    for way, name in TRAINING.items():
        for cores in counts:
            found = [results.get(Figure(way, cores, model)) for model in MODELS]
            if any(found):
                cells = [cell for one in found for cell in (_images(one), _waiting(one))]
                rows.append([name, str(cores), *cells])
    return _table(["batches from", "cores", *heads], rows)


def missing_figures(results: Results) -> str:
    """Return a line for each figure that failed, and one with the number of skipped figures."""
    missing = {key: one.reason for key, one in results.items() if isinstance(one, Missing)}
    lines = [f"failed: {figure}: {reason}" for figure, reason in missing.items() if reason]
    skipped = sum(not reason for reason in missing.values())
    if skipped:
        lines.append(f"skipped: {skipped} figures, because the time was over; raise --minutes")
    return "\n".join(lines)


def _images(result: Rate | Missing | None) -> str:
    if isinstance(result, Rate):
        return f"{result.images_s:,.0f}"
    if result is None:
        return "–"
    return "failed" if result.reason else "skipped"


def _waiting(result: Rate | Missing | None) -> str:
    return f"{100 * result.waiting:.1f}%" if isinstance(result, Rate) else "–"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(heads)}", *lines[1:]])
