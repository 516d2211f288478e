"""JSON an element at a time, with arrays in parts."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.catalog.objects.formats import json_stream
from tests.support.examples import examples, texts

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(texts(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    document=st.dictionaries(texts(max_size=4), values | st.lists(values, max_size=8), max_size=5),
    indent=st.sampled_from([None, 0, 3]),
    ascii_only=st.booleans(),
    chunk=st.integers(1, 4),
)
@examples(50)
def test_elements_are_those_of_the_whole_document(
    document: dict[str, Any], indent: int | None, chunk: int, *, ascii_only: bool
) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "_CHUNK", chunk)
        found: dict[str, Any] = {}
        for key, several in json_stream.elements(f"{text}   ".encode(), "x"):
            found.setdefault(key, []).extend(several)
    assert found == {k: v if isinstance(v, list) else [v] for k, v in document.items()}
