"""tests/data/public_names.txt: the public names of Python with the arguments that they take.

`python -m tests.documents.public_names` writes it. Decorators make many signatures, so they are
those of the running program; of names whose import takes TensorFlow with it, those of the source.
 Annotations are left out: they are spelled differently by each version of Python.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import griffe

import shardprep
from shardprep import reader
from tests.support.paths import DATA, ROOT

FILE = DATA / "public_names.txt"


_LONG = 100
_RETURNED = {
    "ArrayBatches": "arrays.batches",
    "Batches": "tf.iterator",
    "Diagnosis": "diagnosis.diagnosis",
    "KerasBatches": "keras",
    "Loader": "torch.loader",
}
"""Class → module of the reader: what its functions return."""
_INIT = "__init__"
_BY_SOURCE = {"ResumeInEpoch", "StallMeter", "augment"}
"""Names of the reader whose import takes TensorFlow or Keras with it."""


def public_names() -> str:
    """Return the text of the file."""
    source = griffe.load("shardprep.reader", search_paths=[ROOT])
    parts = {
        "shardprep": _members(shardprep, {*shardprep.__all__} - {"reader", "__version__"}),
        "reader": [
            *_members(reader, {*reader.__all__} - _BY_SOURCE),
            *_written(source, _BY_SOURCE - {"augment"}),
            *(
                line
                for n, one in _RETURNED.items()
                for line in _written(source[one], {n})
                if _INIT not in line
            ),
        ],
        "augment": _written(source["augment"], {str(name) for name in source["augment"].exports}),
    }
    lines = ["# Written by python -m tests.documents.public_names"]
    for name, members in parts.items():
        lines += [f"class {name}:", *(f"    {line}" for line in members)]
    return "\n".join([*lines, ""])


def _members(module: Any, names: set[str]) -> Iterator[str]:
    for name in sorted(names):
        one = getattr(module, name)
        if not inspect.isclass(one):
            yield f"def {name}{_arguments(one)}: ..."
            continue
        bases = [base.__name__ for base in one.__bases__ if base.__name__ in names]
        yield f"class {name}({', '.join(bases)}):" if bases else f"class {name}:"
        yield f"    def __init__{_arguments(one, 'self')}: ..."
        own = {key for kind in one.__mro__ if _is_ours(kind) for key in _keys(kind)}
        for key in sorted(key for key in own if not key.startswith("_")):
            member = inspect.getattr_static(one, key, None)
            if inspect.isfunction(member) or isinstance(member, classmethod | staticmethod):
                yield f"    def {key}{_arguments(getattr(one, key))}: ..."
            else:
                yield f"    {key}: object"


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("shardprep")


def _keys(kind: type) -> set[str]:
    return {*vars(kind), *inspect.get_annotations(kind)}


def _arguments(of: Any, *first: str) -> str:
    try:
        given = inspect.signature(of).parameters.values()
    except ValueError:  # of a class in C
        return f"({', '.join((*first, '*args', '**kwargs'))})"
    before = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in first]
    plain = [
        one.replace(annotation=inspect.Parameter.empty, default=_default(one.default))
        for one in given
    ]
    return _signature([*before, *plain])


def _signature(parameters: list[inspect.Parameter]) -> str:
    """Return a signature with sorted keywords; a long one has a line for each of them."""
    named = [one for one in parameters if one.kind == inspect.Parameter.KEYWORD_ONLY]
    last = [one for one in parameters if one.kind == inspect.Parameter.VAR_KEYWORD]
    first = [one for one in parameters if one not in (*named, *last)]
    text = str(inspect.Signature([*first, *sorted(named, key=lambda one: one.name), *last]))
    if len(text) < _LONG:
        return text
    for one in named:
        text = text.replace(f", {one}", f",\n            {one}")
    return text


class _Text(str):
    """A default that is written without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _default(value: Any) -> Any:
    plain = (bool, int, float, str, tuple, type(None))
    return value if value is inspect.Parameter.empty or isinstance(value, plain) else _Text("...")


def _written(module: Any, names: set[str]) -> Iterator[str]:
    """Yield the lines of names whose signatures in the source are the real ones."""
    for name in sorted(names):
        one = module[name].final_target if module[name].is_alias else module[name]
        if not one.is_class:
            yield f"def {name}{_in_source(one)}: ..."
            continue
        yield f"class {name}:"
        members = {k: m for k, m in one.members.items() if not k.startswith("_") or k == _INIT}
        for key, member in sorted(members.items()):
            is_method = member.is_function
            yield f"    def {key}{_in_source(member)}: ..." if is_method else f"    {key}: object"
        if not members:
            yield "    ..."


def _in_source(function: Any) -> str:
    kinds = {"keyword-only": inspect.Parameter.KEYWORD_ONLY}
    given = [
        inspect.Parameter(
            one.name.lstrip("*"),
            kinds.get(one.kind.value, inspect.Parameter.POSITIONAL_OR_KEYWORD),
            default=inspect.Parameter.empty if one.default is None else _Text(one.default),
        )
        for one in function.parameters
        if not one.kind.value.startswith("variadic")
    ]
    return _signature(given)


def breaking(before: str, after: str) -> list[str]:
    """Return what programs that use the names of `before` would miss in `after`."""
    old, new = (griffe.visit("public", FILE, code) for code in (before, after))
    return [
        one.explain(griffe.ExplanationStyle.ONE_LINE)
        for one in griffe.find_breaking_changes(old, new)
    ]


if __name__ == "__main__":
    FILE.write_text(public_names(), encoding="utf-8")
