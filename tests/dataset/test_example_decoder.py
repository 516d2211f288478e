"""The short way through an Example finds the same as the long way, or nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from shardprep.dataset.example import ExampleDecoder, decode, encode
from shardprep.errors import RecordError
from tests.support.examples import texts

if TYPE_CHECKING:
    from shardprep.dataset.example import Values

STRATEGIES: dict[str, Any] = {
    "bytes": st.one_of(st.binary(max_size=40), st.integers(100, 20_000).map(bytes)),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float32": st.floats(width=32),
}
NAMES = st.one_of(st.sampled_from(["image", "image/filename", "label"]), texts(max_size=140))


@st.composite
def schemas_and_values(draw: Any) -> tuple[dict[str, str], dict[str, Values]]:
    """Draw dtypes by name, and for each a list of values, most often one."""
    dtypes = draw(st.dictionaries(NAMES, st.sampled_from(sorted(STRATEGIES)), max_size=5))
    sizes = st.sampled_from([1, 1, 1, 1, 0, 2, 30])
    values = {}
    for name, dtype in dtypes.items():
        size = draw(sizes)
        values[name] = draw(st.lists(STRATEGIES[dtype], min_size=size, max_size=size))
    return dtypes, values


def same(found: Any, expected: Any) -> bool:
    """Compare by feature, NaN being equal to itself."""
    return {name: comparable(values) for name, values in found.items()} == {
        name: comparable(values) for name, values in expected.items()
    }


def agrees(decoder: ExampleDecoder, data: bytes) -> bool:
    """Return whether the short way finds what the long way does, or nothing."""
    found = decoder.find(data)
    try:
        return found is None or same(found, decode(data))
    except RecordError:
        return False


def comparable(values: Any) -> list[Any]:
    return [repr(one) if isinstance(one, float) else one for one in values]


@given(schemas_and_values())
def test_it_finds_what_is_written_here(made: tuple[dict[str, str], dict[str, Values]]) -> None:
    dtypes, values = made
    data = encode(values, dtypes)
    found = ExampleDecoder(dtypes, dtypes).find(data)
    assert agrees(ExampleDecoder(dtypes, dtypes), data)
    if dtypes and all(len(name.encode()) < 128 for name in dtypes):
        assert found is not None


@given(schemas_and_values())
def test_empty_lists_without_a_type_are_never_found_to_be_something_else(
    made: tuple[dict[str, str], dict[str, Values]],
) -> None:
    """Datasets of earlier versions have them."""
    dtypes, values = made
    data = encode(values)
    assert agrees(ExampleDecoder(dtypes, dtypes), data)
    assert same(ExampleDecoder(dtypes, dtypes).decode(data), decode(data))


@given(schemas_and_values(), st.data())
def test_what_is_not_asked_for_is_passed_over(
    made: tuple[dict[str, str], dict[str, Values]], data: st.DataObject
) -> None:
    dtypes, values = made
    assume(dtypes)
    wanted = data.draw(st.sets(st.sampled_from(sorted(dtypes))))
    payload = encode(values, dtypes)
    found = ExampleDecoder(dtypes, wanted).find(payload)
    if found is not None:
        assert same(found, {name: decode(payload)[name] for name in wanted})


@given(schemas_and_values(), st.randoms(use_true_random=False))
def test_what_tensorflow_writes_is_never_found_to_be_something_else(
    made: tuple[dict[str, str], dict[str, Values]], random: Any
) -> None:
    """Its maps have no order, so features come in any."""
    tf = pytest.importorskip("tensorflow")
    dtypes, values = made
    message = tf.train.Example()
    names = list(values)
    random.shuffle(names)
    fields = {"bytes": "bytes_list", "int64": "int64_list", "float32": "float_list"}
    for name in names:
        kind = getattr(message.features.feature[name], fields[dtypes[name]])
        kind.value.extend(values[name])
    data = message.SerializeToString()
    assert agrees(ExampleDecoder(dtypes, dtypes), data)


SOUND: dict[str, Values] = {
    "image": [bytes(300)],
    "image/filename": [b"train/cat.1.jpg"],
    "image/height": [224],
    "label": [-1],
    "objects/bbox": [0.0, 0.25, 0.5, 1.0] * 2,
    "objects/label": [1, 300],
    "objects/mask": [b"a mask", bytes(200)],
    "weight": [0.5],
}
DTYPES = {
    "image": "bytes", "image/filename": "bytes", "image/height": "int64", "label": "int64",
    "objects/bbox": "float32", "objects/label": "int64", "objects/mask": "bytes",
    "weight": "float32",
}  # fmt: skip
NO_OBJECTS: dict[str, Values] = {
    **SOUND, "objects/bbox": [], "objects/label": [], "objects/mask": [],
}  # fmt: skip


@pytest.mark.parametrize("values", [SOUND, NO_OBJECTS], ids=["objects", "no objects"])
def test_a_sound_example_is_found_whole(values: dict[str, Values]) -> None:
    data = encode(values, DTYPES)
    found = ExampleDecoder(DTYPES, DTYPES).find(data)
    assert found is not None
    assert same(found, values)
    assert ExampleDecoder(DTYPES, DTYPES).decode(data) == values


def test_what_is_not_found_is_decoded_the_long_way() -> None:
    more = {**SOUND, "more": [1]}
    assert ExampleDecoder(DTYPES, DTYPES).decode(encode(more)) == more
    assert ExampleDecoder({}, {}).decode(encode(SOUND)) == SOUND
    with pytest.raises(RecordError, match="not a serialized"):
        ExampleDecoder(DTYPES, DTYPES).decode(b"\n")


@pytest.mark.parametrize("values", [SOUND, NO_OBJECTS], ids=["objects", "no objects"])
def test_every_cut_and_every_changed_byte_gives_nothing_or_what_the_long_way_gives(
    values: dict[str, Values],
) -> None:
    decoder = ExampleDecoder(DTYPES, DTYPES)
    data = encode(values, DTYPES)
    spoiled = [data[:at] for at in range(len(data))]
    for at in range(len(data)):
        spoiled += [
            data[:at] + bytes((value,)) + data[at + 1 :] for value in (0, 10, 127, 128, 255)
        ]
        spoiled += [data[:at] + bytes((data[at] ^ bit,)) + data[at + 1 :] for bit in (1, 8, 64)]
    for one in spoiled:
        assert agrees(decoder, one), one


@given(st.binary(max_size=60))
@example(b"")
@example(b"\n")
@example(b"\n\x00")
def test_other_bytes_give_nothing_or_what_the_long_way_gives(data: bytes) -> None:
    assert agrees(ExampleDecoder({"x": "int64"}, {"x"}), data)


@pytest.mark.parametrize(
    "values",
    [
        {**SOUND, "more": [1]},
        {name: one for name, one in SOUND.items() if name != "label"},
        {**SOUND, "label": [0.5]},
        {**SOUND, "label": []},
    ],
    ids=["one more", "one less", "of another kind", "no value of no type"],
)
def test_what_is_not_the_schema_s_is_left_to_the_long_way(values: dict[str, Values]) -> None:
    assert ExampleDecoder(DTYPES, DTYPES).find(encode(values)) is None


def test_nan_is_found() -> None:
    found = ExampleDecoder({"x": "float32"}, {"x"}).find(encode({"x": [math.nan]}))
    assert found is not None
    assert math.isnan(found["x"][0])  # type: ignore[arg-type]
