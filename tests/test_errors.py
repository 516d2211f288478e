"""Errors are values that travel: through a pickle with all fields, through PyTorch as one line."""

import copy
import pickle
import re
import traceback
from pathlib import Path
from typing import Any

import pytest

from shardprep.dataset.manifest import Manifest
from shardprep.errors import (
    BuildError,
    DatasetError,
    InternalError,
    OptionError,
    OptionName,
    RecordError,
    ShardprepError,
    SourceError,
    StorageError,
    concise,
    is_short_of_memory,
    name_options_as_flags,
    nearest_name,
    some_of,
    use_one_of,
)
from shardprep.storage.store import NoAnswerError
from shardprep.writer.finalize import TooManyRejectedError


def every(kind: type[ShardprepError] = ShardprepError) -> list[type[ShardprepError]]:
    found = [one for below in kind.__subclasses__() for one in every(below)]
    return [kind, *(one for one in found if one.__module__.startswith("shardprep."))]


def made(kind: type[ShardprepError]) -> ShardprepError:
    more: dict[type, dict[str, Any]] = {
        RecordError: {"offset": 1234},
        TooManyRejectedError: {"manifest": Manifest.model_construct(), "draft": Path("draft")},
    }
    return kind("a.tfrecord, record 3", "CRC is 1: not 2", "copy it; again", **more.get(kind, {}))


def test_every_error_can_be_pickled_with_its_fields() -> None:
    kinds = every()
    assert {RecordError, TooManyRejectedError, NoAnswerError} <= {*kinds}
    for kind in kinds:
        error = made(kind)
        error.add_note("a note")
        copies = [pickle.loads(pickle.dumps(error, number)) for number in range(6)]
        for one in (*copies, copy.copy(error)):
            assert type(one) is kind
            assert one.__dict__ == error.__dict__
            assert (str(one), one.args) == (str(error), error.args)


def test_the_offset_of_a_record_is_printed_once_and_is_not_in_what() -> None:
    error = made(RecordError)
    assert error.what == "CRC is 1: not 2"
    assert str(error) == "a.tfrecord, record 3: offset 1,234: CRC is 1: not 2; copy it; again"
    assert str(RecordError("example", "is none")) == "example: is none"


def shown_by_ipython(error: Exception, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the output of a cell that raises an error three calls deep."""
    shells = pytest.importorskip("IPython.core.interactiveshell")
    shell = shells.InteractiveShell.instance()

    def deep(depth: int) -> None:
        if depth:
            deep(depth - 1)
        try:
            raise ValueError("what came before")
        except ValueError as cause:
            raise error from cause

    shell.user_ns["deep"] = deep
    capsys.readouterr()
    assert not shell.run_cell("deep(3)").success
    return capsys.readouterr().out.strip()


@pytest.mark.parametrize("kind", [one for one in every() if one is not InternalError])
def test_a_notebook_shows_an_error_as_its_one_line(
    kind: type[ShardprepError], capsys: pytest.CaptureFixture[str]
) -> None:
    error = made(kind)
    error.add_note("a note")
    assert shown_by_ipython(error, capsys) == f"{kind.__name__}: {error}"


def test_a_notebook_shows_the_traceback_of_a_fault_of_our_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = shown_by_ipython(made(InternalError), capsys)
    assert "in deep" in said
    assert said.splitlines()[-1].startswith("shardprep.errors.InternalError: a.tfrecord")


@pytest.mark.parametrize("kind", [DatasetError, RecordError, StorageError, NoAnswerError])
def test_an_error_made_of_a_traceback_is_its_last_line(kind: type[ShardprepError]) -> None:
    """As `torch._utils.ExceptionWrapper` makes it."""
    error = made(kind)
    error.add_note("what else there is")
    try:
        try:
            raise DatasetError("inner", "was first")
        except DatasetError as inner:
            raise error from inner
    except ShardprepError:
        text = f"Caught {kind.__name__} in worker 0.\nOriginal {traceback.format_exc()}"
    again = kind(text)
    assert str(again) == str(error)
    assert again.__notes__ == [text]
    assert str(pickle.loads(pickle.dumps(again))) == str(error)


def test_an_error_can_have_one_text_only() -> None:
    assert str(BuildError("nothing is left")) == "nothing is left"


@pytest.mark.parametrize(
    "value", ["x" * 201, "it's " * 1000, '"' * 999, "a\0\n" * 500, "é'\"\\" * 300]
)
def test_a_value_quoted_in_a_message_has_at_most_200_characters(value: str) -> None:
    what = f"the image's label {value!r} is not among 'a.', {value[:40]!r} and 'b'"
    error = SourceError("t.csv", what, f"use {value!r}")
    ends = repr(value)[1:5], repr(value)[-5:-1]
    for text, pattern in (
        (error.what, r"the image's label (['\"])(.*?)\1 is not among 'a\.', (['\"])(.*)\3 and 'b'"),
        (error.hint, r"use (['\"])(.*)\1()"),
    ):
        match = re.fullmatch(pattern, text)
        assert match is not None, text
        assert len(match[2]) == 200
        assert (match[2][:4], match[2][-4:]) == ends
    assert repr(value[:40]) in error.what


@pytest.mark.parametrize("number", [5, 50])
def test_a_long_list_in_advice_is_cut_at_an_item(number: int) -> None:
    classes = [f"class number {i}" for i in range(number)]
    hint = SourceError(
        "", "b", f"name all classes: {OptionName('classes', ','.join(classes))}"
    ).hint
    end = "10, … and 39 more'" if number == 50 else "4'"
    assert hint.startswith("name all classes: --classes 'class number 0,class number 1,")
    assert hint.endswith(f",class number {end}")
    caption = "a dog, a cat, and " * 30
    assert "…" in concise(repr(caption))
    assert "more" not in concise(repr(caption))


def test_messages_have_a_bounded_length() -> None:
    names = [f"{i}{'n' * 100_000}" for i in range(50)]
    error = SourceError("w" * 9999, f"its columns are {', '.join(names)}", some_of(names))
    assert len(str(error)) < 2200
    assert str(error).endswith(" and 46 more")
    assert SourceError("a", "b 'c'", "d").what == "b 'c'"


def test_short_values_and_apostrophes_are_left_alone() -> None:
    text = "the images' label 'x' isn't 'y'" + ", the dogs' and the cats'" * 20
    assert concise(text) == text


def test_an_option_is_named_as_the_user_wrote_it() -> None:
    option = OptionName("mask_values", "auto")
    error = OptionError.of(option, 9, ("a", "b"))
    assert str(error) == "--mask-values auto: 9 is not one of a, b"
    assert pickle.loads(pickle.dumps(error)).place == option
    name_options_as_flags(yes=False)
    try:
        assert error.where == 'mask_values="auto"'
        assert str(OptionName("SOURCE")) == "source"
        error.blame("shardprep.toml")
        assert error.where == 'shardprep.toml: mask_values="auto"'
    finally:
        name_options_as_flags()
    assert str(OptionName("SOURCE")) == "SOURCE"
    assert error.where == 'shardprep.toml: mask_values="auto"'


def test_a_library_that_does_not_fit_into_memory_is_a_lack_of_memory() -> None:
    loader = "libparquet.so: failed to map segment from shared object"
    assert is_short_of_memory(ImportError(loader))
    assert is_short_of_memory(ImportError(f"not built with support for Parquet ({loader})"))
    assert not is_short_of_memory(ImportError("not built with support for Parquet (no such file)"))


def test_an_interpreter_that_has_no_memory_for_an_exception_is_short_of_it() -> None:
    lost = "<function _find_and_load at 0x7ff84376fce0> returned NULL without setting an exception"
    assert is_short_of_memory(SystemError(lost))
    assert is_short_of_memory(SystemError("error return without exception set"))
    assert not is_short_of_memory(SystemError("bad argument to internal function"))


def test_the_beginning_of_a_name_proposes_the_name() -> None:
    assert use_one_of("val", ["train", "validation"]).startswith("is validation meant? ")
    assert use_one_of("x", ["train", "validation"]) == "use one of train, validation"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("cta", "cat"), ("cats", "cat"), ("ct", "cat"), ("CAT", "cat"), ("labrdor", "labrador"),
        ("ant", ""), ("dat", ""), ("tac", ""), ("fold2", ""), ("", ""),
    ],
)  # fmt: skip
def test_a_name_is_proposed_for_a_typo_and_not_for_another_word(name: str, meant: str) -> None:
    assert nearest_name(name, ["labrador", "cat", "fold1"]) == meant
