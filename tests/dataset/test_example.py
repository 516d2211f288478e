"""Examples agree with TensorFlow's protobuf both ways; other bytes are an error."""

import struct
from array import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardprep.dataset.example import Values, decode, encode, with_values
from shardprep.errors import RecordError
from tests.support.examples import texts

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False)
FEATURES = st.dictionaries(
    texts(max_size=12),
    st.one_of(
        st.lists(st.binary(max_size=40), max_size=4),
        st.lists(INT64, max_size=4),
        st.lists(FLOAT32, max_size=4),
    ),
    max_size=5,
)

ONE_OF_EACH: dict[str, Values] = {
    "image": [b"\xff\xd8 pixels \x00", b""],
    "label": [0, 1, -1, 127, 128, 2**63 - 1, -(2**63)],
    "box": [0.0, -0.5, 1e-30, 3.0e38, float("inf")],
    "größe/高さ": [480],
    "nothing": [],
}

DTYPES = {"a": "int64", "": "bytes"}
"""Of a few features, so that some empty ones have a type."""


def field(number: int, kind: int, data: bytes) -> bytes:
    """Return a field of a message on the wire; under 128 bytes."""
    length = bytes((len(data),)) if kind == 2 else b""
    return bytes((number << 3 | kind,)) + length + data


def message(number: int, *fields: bytes) -> bytes:
    return field(number, 2, b"".join(fields))


def entry(name: bytes, *feature: bytes) -> bytes:
    """Return a map entry of Features."""
    return message(1, message(1, name), message(2, *feature))


def an_example(*entries: bytes) -> bytes:
    return message(1, *entries)


def x(*feature: bytes) -> bytes:
    """Return an example with the feature "x"."""
    return an_example(entry(b"x", *feature))


BYTES_AB = message(1, message(1, b"ab"))
INTS_1_2 = message(3, message(1, b"\x01\x02"))
UNKNOWN = field(9, 0, b"\x07") + field(10, 1, bytes(8)) + message(11, b"?") + field(12, 5, bytes(4))
HALF = struct.pack("<f", 0.5)

WIRE = {
    "empty": (b"", {}),
    "no features": (message(1), {}),
    "packed ints": (x(INTS_1_2), {"x": [1, 2]}),
    "unpacked ints": (x(message(3, field(1, 0, b"\x01"), field(1, 0, b"\x02"))), {"x": [1, 2]}),
    "packed and unpacked ints": (
        x(message(3, field(1, 0, b"\x01"), message(1, b"\x02\x03"))),
        {"x": [1, 2, 3]},
    ),
    "a number written longer than need be": (
        x(message(3, message(1, b"\x81\x80\x00"))),
        {"x": [1]},
    ),
    "a negative number": (x(message(3, message(1, b"\xff" * 9 + b"\x01"))), {"x": [-1]}),
    "packed floats": (x(message(2, message(1, HALF, HALF))), {"x": [0.5] * 2}),
    "unpacked floats": (x(message(2, field(1, 5, HALF), field(1, 5, HALF))), {"x": [0.5] * 2}),
    "empty lists": (
        an_example(
            entry(b"a", message(1)),
            entry(b"b", message(2)),
            entry(b"c", message(3)),
            entry(b"d", message(3, message(1))),
        ),
        {"a": [], "b": [], "c": [], "d": []},
    ),
    "no kind": (x(), {"x": []}),
    "no value": (an_example(message(1, message(1, b"x"))), {"x": []}),
    "no name": (an_example(message(1, message(2, BYTES_AB))), {"": [b"ab"]}),
    "value before name": (
        an_example(message(1, message(2, BYTES_AB), message(1, b"x"))),
        {"x": [b"ab"]},
    ),
    "a repeated name": (an_example(entry(b"x", INTS_1_2), entry(b"x", BYTES_AB)), {"x": [b"ab"]}),
    "features in two parts": (
        x(BYTES_AB) + an_example(entry(b"y", INTS_1_2)),
        {"x": [b"ab"], "y": [1, 2]},
    ),
    "two kinds": (x(BYTES_AB, INTS_1_2), {"x": [1, 2]}),
    "one kind in two parts": (x(INTS_1_2, INTS_1_2), {"x": [1, 2, 1, 2]}),
    "unknown fields": (
        UNKNOWN + an_example(UNKNOWN, entry(b"x", UNKNOWN, message(1, UNKNOWN, message(1, b"ab")))),
        {"x": [b"ab"]},
    ),
    "a float list that holds an int": (x(message(2, field(1, 0, b"\x05"))), {"x": []}),
    "an int list that holds a float": (x(message(3, field(1, 5, HALF))), {"x": []}),
}
"""Oddity → bytes that protobuf accepts, and the features that they hold."""

NO_EXAMPLES = {
    "text": b"hello, world",
    "JPEG": b"\xff\xd8\xff\xe0\x00\x10JFIF",
    "zeros": bytes(32),
    "a length beyond the end": b"\x0a\x7f",
    "an endless number": b"\x0a" + b"\xff" * 20,
    "a name that is not UTF-8": an_example(entry(b"\xff\xfe", BYTES_AB)),
    "floats of three bytes": x(message(2, message(1, b"abc"))),
    "a cut int": x(message(3, message(1, b"\x80"))),
}


@pytest.fixture(scope="module")
def tf() -> Any:
    import tensorflow as tf

    return tf


def as_tensorflow_reads(tf: Any, data: bytes) -> dict[str, list[Any]]:
    features = tf.train.Example.FromString(data).features.feature
    kinds = {name: feature.WhichOneof("kind") for name, feature in features.items()}
    return {
        name: list(getattr(features[name], kind).value) if kind else []
        for name, kind in kinds.items()
    }


def as_tensorflow_writes(tf: Any, features: dict[str, Values]) -> bytes:
    proto = tf.train.Example()
    for name, values in features.items():
        feature = proto.features.feature[name]
        if not values:
            feature.int64_list.SetInParent()
        elif isinstance(values[0], bytes):
            feature.bytes_list.value.extend(values)
        elif isinstance(values[0], float):
            feature.float_list.value.extend(values)
        else:
            feature.int64_list.value.extend(values)
    return bytes(proto.SerializeToString())


def as_float32(features: dict[str, Values]) -> dict[str, Any]:
    """Round floats to float32."""
    return {
        name: [
            struct.unpack("<f", struct.pack("<f", v))[0] if isinstance(v, float) else v for v in vs
        ]
        for name, vs in features.items()
    }


@given(FEATURES)
@example(ONE_OF_EACH)
@example({"x": [0.1]})
def test_features_are_equal_for_tensorflow_and_in_the_order_of_their_names(
    tf: Any, features: dict[str, Values]
) -> None:
    data, expected = encode(features), as_float32(features)
    assert as_tensorflow_reads(tf, data) == decode(data) == expected
    assert decode(as_tensorflow_writes(tf, features)) == expected
    assert list(decode(data)) == sorted(features)
    assert encode(dict(reversed(features.items()))) == data


def test_an_empty_list_has_the_type_that_protobuf_gives_it(tf: Any) -> None:
    proto = tf.train.Example()
    proto.features.feature["a"].bytes_list.SetInParent()
    proto.features.feature["b"].float_list.SetInParent()
    proto.features.feature["c"].int64_list.SetInParent()
    dtypes = {"a": "bytes", "b": "float32", "c": "int64"}
    assert encode({"a": [], "b": [], "c": []}, dtypes) == proto.SerializeToString(
        deterministic=True
    )


def test_nan_is_decoded_as_nan() -> None:
    (value,) = decode(encode({"x": [float("nan")]}))["x"]
    assert value != value  # noqa: PLR0124 - only NaN differs from itself


@pytest.mark.parametrize("size", [0, 127, 128, 16_383, 16_384, 2_097_152])
def test_values_of_any_length_are_decoded(tf: Any, size: int) -> None:
    data = encode({"image": [bytes(size)]})
    assert decode(data) == as_tensorflow_reads(tf, data) == {"image": [bytes(size)]}


@pytest.mark.parametrize(("data", "expected"), WIRE.values(), ids=WIRE)
def test_any_wire_form_is_read_as_protobuf_reads_it_and_its_features_are_replaced(
    tf: Any, data: bytes, expected: dict[str, list[Any]]
) -> None:
    assert as_tensorflow_reads(tf, data) == decode(data) == expected
    for name in expected:
        assert decode(with_values(data, {name: [7]}, {})) == {**expected, name: [7]}


@pytest.mark.parametrize("read", [decode, lambda data: with_values(data, {"a": [1]}, {})])
@pytest.mark.parametrize("data", NO_EXAMPLES.values(), ids=NO_EXAMPLES)
def test_bytes_that_are_no_example_are_an_error_of_one_line(
    data: bytes, read: Callable[[bytes], object]
) -> None:
    with pytest.raises(RecordError, match=r"is not a serialized tf\.train\.Example") as caught:
        read(data)
    assert "\n" not in str(caught.value)


def test_every_cut_of_an_example_is_an_error() -> None:
    data = encode(ONE_OF_EACH)
    for size in range(1, len(data)):
        with pytest.raises(RecordError):
            decode(data[:size])


def decodes_or_reports(data: bytes) -> None:
    """Decode, and let nothing but a RecordError stop it."""
    try:
        features = decode(data)
    except RecordError as error:
        assert str(error)  # noqa: PT017 - either outcome is right
    else:
        assert all(isinstance(values, list) for values in features.values())


@given(st.binary(max_size=100), st.integers(0, 10_000))
def test_random_and_overwritten_bytes_decode_or_are_an_error(data: bytes, at: int) -> None:
    decodes_or_reports(data)
    decodes_or_reports(an_example(data))
    decodes_or_reports(x(data[:60]))
    whole = encode(ONE_OF_EACH)
    at %= len(whole)
    decodes_or_reports(whole[:at] + data[:4] + whole[at + len(data[:4]) :])


def test_every_overwritten_byte_decodes_or_is_an_error() -> None:
    data = encode({"a": [b"x"], "b": [300], "c": [0.5]})
    for at in range(len(data)):
        for value in (*range(44), *range(44, 128, 12), 127, 128, 255):
            decodes_or_reports(data[:at] + bytes((value,)) + data[at + 1 :])


@given(st.lists(FLOAT32, max_size=9), st.lists(st.integers(-1, 129), max_size=9))
def test_an_array_of_floats_and_small_numbers_are_the_bytes_of_any_others(
    floats: list[float], numbers: list[int]
) -> None:
    assert encode({"a": array("f", floats)}) == encode({"a": floats})
    one_by_one = b"".join(encode({"a": [number]})[-1 - (number > 127) :] for number in numbers)
    if min(numbers, default=-1) >= 0:
        assert encode({"a": numbers}).endswith(one_by_one)
    assert decode(encode({"a": numbers}))["a"] == numbers


@given(FEATURES, FEATURES)
def test_replaced_features_make_the_example_of_all_values(
    features: dict[str, Values], others: dict[str, Values]
) -> None:
    new = dict(zip(features, others.values(), strict=False))
    expected = encode({**features, **new}, DTYPES)
    data = encode(features, DTYPES)
    assert with_values(data, {**new, "no such feature": [1]}, DTYPES) == expected
