"""`ExampleDecoder.find` returns the features that `decode` returns, or None."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardprep.dataset.example import ExampleDecoder, Values, decode, encode
from shardprep.errors import RecordError
from tests.support.examples import texts

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
    """Return whether `find` returns None or the features of `decode`."""
    found = decoder.find(data)
    try:
        return found is None or same(found, decode(data))
    except RecordError:
        return False


def comparable(values: Any) -> list[Any]:
    return [repr(one) if isinstance(one, float) else one for one in values]


@given(schemas_and_values(), st.data())
def test_wanted_features_of_an_encoded_example_are_found(
    made: tuple[dict[str, str], dict[str, Values]], data: st.DataObject
) -> None:
    dtypes, values = made
    payload = encode(values, dtypes)
    decoder, found = ExampleDecoder(dtypes, dtypes), ExampleDecoder(dtypes, dtypes).find(payload)
    assert agrees(decoder, payload)
    if dtypes and all(len(name.encode()) < 128 for name in dtypes):
        assert found is not None
    untyped = encode(values)  # as earlier versions encoded empty lists
    assert agrees(decoder, untyped)
    assert same(decoder.decode(untyped), decode(untyped))
    wanted = data.draw(st.sets(st.sampled_from(sorted(dtypes)))) if dtypes else set()
    some = ExampleDecoder(dtypes, wanted).find(payload)
    if some is not None:
        assert same(some, {name: decode(payload)[name] for name in wanted})


@given(schemas_and_values(), st.randoms(use_true_random=False))
def test_an_example_of_tensorflow_is_not_misread(
    made: tuple[dict[str, str], dict[str, Values]], random: Any
) -> None:
    """TensorFlow writes features in any order."""
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
    "image": [bytes(130)],
    "image/filename": [b"train/cat.1.jpg"],
    "image/height": [224],
    "label": [-1],
    "objects/bbox": [0.0, 0.25, 0.5, 1.0] * 2,
    "objects/label": [1, 300],
    "objects/mask": [b"a mask", bytes(128)],
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


def test_an_example_that_is_not_found_is_decoded_slowly() -> None:
    more = {**SOUND, "more": [1]}
    assert ExampleDecoder(DTYPES, DTYPES).decode(encode(more)) == more
    assert ExampleDecoder({}, {}).decode(encode(SOUND)) == SOUND
    with pytest.raises(RecordError, match="not a serialized"):
        ExampleDecoder(DTYPES, DTYPES).decode(b"\n")


@pytest.mark.parametrize("values", [SOUND, NO_OBJECTS], ids=["objects", "no objects"])
def test_a_damaged_example_gives_the_result_of_the_slow_decoder_or_none(
    values: dict[str, Values],
) -> None:
    decoder = ExampleDecoder(DTYPES, DTYPES)
    data = encode(values, DTYPES)
    spoiled = [data[:at] for at in range(len(data))]
    for at in range(len(data)):
        spoiled += [data[:at] + bytes((value,)) + data[at + 1 :] for value in (0, 10, 128)]
        spoiled += [data[:at] + bytes((data[at] ^ bit,)) + data[at + 1 :] for bit in (1, 64)]
    for one in spoiled:
        assert agrees(decoder, one), one


@given(st.binary(max_size=60))
@example(b"")
@example(b"\n")
@example(b"\n\x00")
def test_arbitrary_bytes_give_the_result_of_the_slow_decoder_or_none(data: bytes) -> None:
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
def test_an_example_of_another_schema_is_not_found(values: dict[str, Values]) -> None:
    assert ExampleDecoder(DTYPES, DTYPES).find(encode(values)) is None
