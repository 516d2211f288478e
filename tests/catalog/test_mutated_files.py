"""Files of images and arrays that are changed at random: a sound dataset or one line, in bounds."""

from pathlib import Path

import pytest
from hypothesis import settings

from tests.catalog.mutated_documents import Tally, try_out, try_source
from tests.catalog.mutated_files import FORMS, NUM_FILES, mutated, packed, survey
from tests.support.builders import write, zip_bytes


@pytest.mark.timeout(600)
def test_a_mutated_file_is_a_sound_dataset_or_one_line(tmp_path: Path) -> None:
    tried = range(NUM_FILES * settings().max_examples // 100)
    tally = try_out(tried, tmp_path, mutated, survey)
    assert tally.faults == []
    assert tally.built + tally.refused == len(tried)
    assert min(tally.built, tally.refused) >= 1


@pytest.mark.parametrize("name", FORMS)
def test_each_form_is_built_before_it_is_mutated(tmp_path: Path, name: str) -> None:
    form, tally = FORMS[name], Tally()
    source = write(tmp_path / "x.zip", zip_bytes({**form.others, **packed(form.documents)}))
    survey(source)
    assert try_source(source, tmp_path / "out", form.options, tally) == ""
    assert tally.built == 1
