"""The commands that check or compare datasets: verify, leaks and diff."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import typer

from shardprep.cli.streams import EXIT_PROBLEMS, console, picked, print_json
from shardprep.errors import counted, some_of

if TYPE_CHECKING:
    from shardprep.api.json_types import Overlap, Problem, Verification
    from shardprep.cli.console import Terminal
    from shardprep.cli.options import Call
    from shardprep.dataset.diff import Difference, ItemChange
    from shardprep.dataset.leak_check import LeakSearch

_SHOWN = 5
_SHOWN_CHANGES = 3


def verify(call: Call, *, as_json: bool) -> None:
    """Check every byte, record, label and document of a dataset.

    Exits with 3 if problems are found or remain after --repair, or if --leaks
    finds copies in different splits.

    Examples:
        shardprep verify
        shardprep verify tfrecords/dogs_vs_cats --decode
        shardprep verify tfrecords/dogs_vs_cats --leaks
        shardprep verify tfrecords/dogs_vs_cats --repair --source dogs-vs-cats.zip
    """
    found = call()
    if not as_json:
        if found.before is not None:
            _print_checked(console(), found.before)
        _print_checked(console(), found)
        if found.leaks is not None:
            _print_leaks(console(), found.leaks)
        elif call.keywords.get("leaks"):
            console().entry("leaks", "not searched, because of these problems")
        decode, repair = (bool(call.keywords.get(name)) for name in ("decode", "repair"))
        _print_next(console(), found, decode=decode, repair=repair)
    else:
        from shardprep.api.json_types import VerifyJson

        summary = picked(VerifyJson, found, path=found.location)
        for name in ("repaired", "leaks"):
            if summary[name] is None:
                del summary[name]
        print_json(summary)
    if found.problems or not (found.leaks is None or found.leaks.is_clean):
        raise typer.Exit(EXIT_PROBLEMS)


def _print_checked(terminal: Terminal, found: Verification) -> None:
    from shardprep.storage.space import megabytes

    terminal.heading(found.location)
    if found.problems:
        _print_problems(terminal, found)
    if found.unknown:
        terminal.entry("unknown", f"{some_of(found.unknown)}: not part of the dataset, harmless")
    rate = found.num_bytes / max(found.elapsed_s, 1e-9)
    terminal.entry("time", f"{found.elapsed_s:.1f} s, {megabytes(rate)}/s")
    verdict = "no problem found"
    if found.problems:
        num_files = len({problem.file for problem in found.problems})
        verdict = f"{counted(len(found.problems), 'problem')} found in {counted(num_files, 'file')}"
    records = f"{counted(found.num_shards, 'shard')}, {counted(found.num_records, 'record')}"
    terminal.notice(
        f"{records}, {megabytes(found.num_bytes)} checked: {verdict}",
        style="red" if found.problems else "green",
    )
    if found.address:
        terminal.entry("not seen", "incomplete uploads: add a lifecycle rule that aborts them")


def _print_next(terminal: Terminal, found: Verification, *, decode: bool, repair: bool) -> None:
    if found.problems and not repair:
        from shardprep.api.checks import repairing

        terminal.entry("next", repairing(found))
    elif found.leaks is not None and not found.leaks.is_clean:
        text = "build again with --split validation=0.2 and --group near, or with --dedup near"
        terminal.entry("next", f"{text}; shardprep report shows the pictures")
    elif not found.problems and not decode:
        command = f"shardprep verify {shlex.quote(found.location)} --decode"
        terminal.entry("next", f"{command} also checks the pixels of every image")


def _print_leaks(terminal: Terminal, found: LeakSearch) -> None:
    lines = []
    for leak in found.leaks[:_SHOWN]:
        facts = zip(leak.keys, leak.splits, leak.changes, strict=True)
        images = some_of([f"{key} ({', '.join(filter(None, more))})" for key, *more in facts])
        lines.append(f"{leak.kind}: {images}")
    terminal.entries("leaks", lines, len(found.leaks))
    if found.num_scenes:
        groups = counted(found.num_scenes, "group")
        text = f"{groups} of images of one scene in several splits; they are not copies"
        terminal.entry("scenes", text, style="dim")
    for what in found.contradictions:
        terminal.entry("certified", f"no: it {what}", style="red")
    if not found.has_certificate:
        text = "no: a build with --group near or --dedup near records its search"
        terminal.entry("certified", text, style="dim")
    elif not found.contradictions:
        also = ", and says that copies are in several splits" if found.leaks else ""
        terminal.entry("certified", f"yes: the certificate of the build still holds{also}")
    unread = f" ({found.num_unread:,} cannot be decoded)" if found.num_unread else ""
    leaks = counted(len(found.leaks), "group") if found.leaks else "no groups"
    terminal.notice(
        f"{counted(found.num_images, 'image')} compared{unread}: {leaks} of copies in different "
        "splits",
        style="green" if found.is_clean else "red",
    )


def _print_problems(terminal: Terminal, verification: Verification) -> None:
    from shardprep.cli.console import plain_table

    by_kind = verification.by_kind
    table = plain_table("problem", "found", "what it means", left=("what it means",))
    for kind, found in by_kind.items():
        table.add_row(kind, f"{len(found):,}", found[0].meaning)
    terminal.print(table)
    # Outside a terminal, each line starts with its kind, so that grep finds it.
    for kind, found in by_kind.items():
        lines = [_problem_line(problem) for problem in found[:_SHOWN]]
        terminal.entries(kind, lines, len(found), many=not terminal.is_terminal)


def _problem_line(problem: Problem) -> str:
    where = [problem.file]
    if problem.record is not None:
        where.append(f"record {problem.record:,}")
    if problem.offset is not None:
        where.append(f"offset {problem.offset:,}")
    if problem.key:
        where.append(problem.key)
    return f"{', '.join(where)}: {problem.what}"


def leaks(call: Call, *, as_json: bool) -> None:
    """Show which images of a dataset have a copy in another dataset.

    Finds equal files, and copies of another size, encoding, brightness or
    orientation, also cropped ones. Exits with 3 if it finds a copy.

    Examples:
        shardprep leaks tfrecords/mine tfrecords/public
        shardprep leaks tfrecords/mine s3://bucket/sets/public --json
    """
    found = call()
    if as_json:
        print_json(found)
    else:
        _print_overlap(console(), found)
    if found.shared:
        raise typer.Exit(EXIT_PROBLEMS)


def _print_overlap(terminal: Terminal, found: Overlap) -> None:
    terminal.heading(found.first, f" in {found.second}")
    for one in found.shared[:_SHOWN]:
        copy = ", ".join(filter(None, (one.copy_split, one.change)))
        terminal.entry(one.kind, f"{one.key} ({one.split}) is {one.copy} ({copy})")
    terminal.more(len(found.shared) - _SHOWN)
    images = counted(found.num_first, "image")
    terminal.notice(
        f"{len(found.shared):,} of {images} have a copy among {found.num_second:,}",
        style="red" if found.shared else "green",
    )


def diff(call: Call, *, as_json: bool) -> None:
    """Show the differences between two datasets: items, splits, targets, classes, options.

    Reads the manifests and item tables. If they do not decide whether records are equal, reads
    the records of shards that differ. Exits with 3 if records differ.

    Examples:
        shardprep diff tfrecords/pets/1.0.0 tfrecords/pets/1.1.0
        shardprep diff tfrecords/pets s3://bucket/sets/pets --json
    """
    result = call()
    if as_json:
        print_json(result)
    else:
        _print_difference(console(), result)
    if not result.is_equal:
        raise typer.Exit(EXIT_PROBLEMS)


def _print_difference(terminal: Terminal, found: Difference) -> None:
    terminal.heading(found.before, f" → {found.after}")
    _print_changes(terminal, found)
    for name in ("classes_added", "classes_removed"):
        if names := getattr(found, name):
            terminal.entry("classes", f"{name.removeprefix('classes_')}: {', '.join(names)}")
    terminal.entries("features", found.features)
    terminal.entries("recipe", found.recipe)
    records = f"{counted(found.num_before, 'record')} before, {found.num_after:,} after"
    verdict = (
        "the same records" if found.is_equal else f"{counted(found.num_same, 'item')} unchanged"
    )
    if not found.is_equal and found.num_same == found.num_before == found.num_after:
        verdict = "the same items, but the shards differ (order, number of shards or encoding)"
    terminal.notice(f"{records}: {verdict}", style="green" if found.is_equal else "")


def _print_changes(terminal: Terminal, found: Difference) -> None:
    from shardprep.cli.console import plain_table
    from shardprep.dataset.diff import MEANINGS

    kinds = {kind: number for kind, number in found.num_changes.items() if number}
    if kinds:
        table = plain_table("change", "items", "what it means", left=("what it means",))
        for kind, number in kinds.items():
            table.add_row(kind, f"{number:,}", MEANINGS[kind])
        terminal.print(table)
        equal = ", ".join(kind for kind in found.num_changes if kind not in kinds)
        terminal.entry("no change", equal)
    for kind, number in kinds.items():
        lines = [_change_line(change) for change in found.some(kind, _SHOWN_CHANGES)]
        terminal.entries(kind, lines, number)


def _change_line(change: ItemChange) -> str:
    from shardprep.cli.console import HASH_DIGITS

    before, after = change.before, change.after
    if change.kind == "source":
        before, after = before[:HASH_DIGITS], after[:HASH_DIGITS]
    if change.kind == "record":
        before, after = f"{int(before):,}", f"{int(after):,} bytes"
        if change.before == change.after:
            after += ", other pixels"
    return f"{change.key}: {before or 'nothing'} → {after or 'nothing'}"
