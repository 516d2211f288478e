"""Annotation documents that are changed at random: a sound dataset or one line, in bounds."""

from pathlib import Path

import pytest
from hypothesis import settings

from tests.catalog.mutated_documents import (
    FORMS,
    NUM_DOCUMENTS,
    NUMBER,
    Tally,
    images,
    mutated,
    try_out,
    try_source,
)
from tests.support.builders import write, zip_bytes

_PARTS = 4


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(_PARTS))
def test_a_mutated_document_is_a_sound_dataset_or_one_line(tmp_path: Path, part: int) -> None:
    number = NUM_DOCUMENTS // _PARTS
    begin = part * number
    tried = range(begin, begin + number * settings().max_examples // 100)
    tally = try_out(tried, tmp_path)
    assert tally.faults == []
    assert tally.built + tally.refused == len(tried)
    assert min(tally.built, tally.refused) >= 1


@pytest.mark.parametrize("name", FORMS)
def test_each_form_is_sound_before_it_is_mutated(tmp_path: Path, name: str) -> None:
    """Else mutations would be tried on something that nobody reads."""
    form, tally = FORMS[name], Tally()
    members = {**images(), **form.others, **form.documents}
    source = write(tmp_path / "x.zip", zip_bytes(members))
    assert try_source(source, tmp_path / "out", form.options, tally) == ""
    assert tally.built == 1


def test_a_try_is_the_same_each_time() -> None:
    assert [mutated(number) for number in range(40)] == [mutated(number) for number in range(40)]


_HUGE = (b"9" * 401, b"1e308", b"-1e308", b"1e999", b"9223372036854775808")


@pytest.mark.parametrize("name", FORMS)
def test_a_huge_number_in_any_place_is_handled(tmp_path: Path, name: str) -> None:
    form = FORMS[name]
    key, data = next(iter(form.documents.items()))
    places = [*NUMBER.finditer(data)]
    steps = max(1, len(places) * len(_HUGE) * 100 // (6 * settings().max_examples))
    cases = [(place, value) for place in places for value in _HUGE][::steps]
    for number, (place, value) in enumerate(cases):
        text = data[: place.start()] + value + data[place.end() :]
        members = {**images(), **form.others, **form.documents, key: text}
        source = write(tmp_path / "x.zip", zip_bytes(members))
        assert try_source(source, tmp_path / str(number), form.options, Tally()) == "", text
