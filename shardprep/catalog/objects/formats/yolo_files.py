"""YOLO's files in a source: those of images, those that name the classes, lists of splits."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from shardprep.catalog.objects.find_documents import (
    AnnotatedSource,
    Sign,
    below,
    by_sample,
    named_as_images,
)
from shardprep.catalog.objects.formats import yolo
from shardprep.catalog.objects.formats.bounded_read import read_each
from shardprep.catalog.objects.parsed import Found
from shardprep.errors import SourceError, some_of
from shardprep.recipe.object_rules import FormatRule
from shardprep.source.members import Member


def read_source(rule: FormatRule, source: AnnotatedSource) -> Found:
    """Return the objects of a source; the rule may name the file with the names of classes.

    Raises:
        SourceError: files name the classes in different ways, or a file is damaged.

    """
    documents, argument = source.documents, next(iter(rule.files), "")
    if argument:
        files = [yolo.NameFile(*documents.find(argument))]
    else:
        files = _name_files(source, is_strict=True)
        if any(one.names != files[0].names for one in files[1:]):
            both = some_of([one.key for one in files], 3)
            what = f"several files name the classes in different ways: {both}"
            raise SourceError("--boxes yolo", what, f"name one: --boxes yolo:{files[0].key}")
    names = next(iter(files), None)
    members, others = _label_texts(source, files[0].key if argument else "")
    paths = [path for one in files[:1] for several in one.splits.values() for path in several]
    lists: dict[str, Sequence[str]] = {}
    for path in paths:
        listed = [m.key for m in documents.members(".txt") if m.key.endswith(path.lstrip("./"))]
        if path.lower().endswith(".txt") and listed:
            lists[path] = documents.ids(listed[0])
    return yolo.read_yolo(
        read_each(members),
        source.index,
        names,
        strays=others,
        lists=lists,
        outlines=source.outlines,
    )


def recognise(source: AnnotatedSource) -> list[Sign]:
    """Return the sign of YOLO, or one for each file that names the classes in its own way."""
    files = _name_files(source)
    if all(one.names == files[0].names for one in files[1:]):
        options = {"yolo": files[0]} if files else {}
    else:
        options = {f"yolo:{one.key}": one for one in files}
    signs: list[Sign] = []
    for option, names in options.items():
        key = names.key
        members = named_as_images(source, ".txt")
        if len(options) > 1:
            members = below(members, key)
        sign = Sign(option, f"YOLO, classes of {key}")
        is_one = functools.partial(yolo.is_yolo, num_keypoints=names.num_keypoints)
        signs += by_sample(source, members, is_one, sign)
    return signs


def _label_texts(source: AnnotatedSource, names: str) -> tuple[list[Member], list[Member]]:
    """Return the text files named as images, and the others.

    Where files lie below the folder of the file of names, only those count.
    """
    members, folder = named_as_images(source, ".txt"), names.rpartition("/")[0]
    inside = below(members, names) if folder else []
    named = {member.key for member in members}
    others = [one for one in source.documents.members(".txt") if one.key not in named]
    return inside or members, others


def _name_files(source: AnnotatedSource, *, is_strict: bool = False) -> list[yolo.NameFile]:
    """Return the files that name classes, the surest first.

    Where texts named as images lie beside some or deeper, the others are of other sets. It is an
    error, if `is_strict`, that one of the usual name is damaged.
    """
    found = []
    for member in source.documents.members(*yolo.NAME_SUFFIXES):
        try:
            found.append(yolo.NameFile(member.key, source.documents.find(member.key)[1]))
        except SourceError:
            if is_strict and member.key.rpartition("/")[2].lower() in yolo.NAME_FILES:
                raise
    texts = named_as_images(source, ".txt")
    found = [one for one in found if below(texts, one.key)] or found
    ranks = {name: rank for rank, name in enumerate(yolo.NAME_FILES)}
    return sorted(
        found, key=lambda one: (ranks.get(one.key.rpartition("/")[2].lower(), len(ranks)), one.key)
    )
