"""TensorFlow reads framed records and the reverse; damaged records are errors."""

import io
import struct
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.dataset.tfrecord import FRAME_BYTES, Record, are_sound, frame, read_records, unframe
from shardprep.errors import RecordError
from tests.support.builders import write

FRAMED = {
    b"": "000000000000000029039807d8ea82a2",
    b"a": "01000000000000000175de4161786ee428",
    b"shardprep": "090000000000000037f971397368617264707265702ec06685",
    b"\xff\xff\xff": "0300000000000000b099490effffffd7ea84a0",
}
"""Payload → its record, in hex, as TensorFlow 2.21 wrote it."""

PAYLOADS = (b"", b"one", b"\x00" * 9, bytes(range(20)))
FILE = b"".join(map(frame, PAYLOADS))
STARTS = (0, *accumulate(len(frame(payload)) for payload in PAYLOADS))
"""Offsets of the records of FILE, and its size."""


def records(data: bytes) -> list[Record]:
    return list(read_records(io.BytesIO(data), "some-shard"))


def read_until_error(data: bytes) -> tuple[list[bytes], RecordError | None]:
    """Return the payloads before an error, and the error or None."""
    payloads = []
    try:
        for record in read_records(io.BytesIO(data), "some-shard"):
            payloads.append(record.payload)  # noqa: PERF401 - those before the error are kept
    except RecordError as error:
        return payloads, error
    return payloads, None


def crc32c(data: bytes) -> int:
    """Castagnoli's CRC, bit by bit: slow, and independent of the library in use."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@pytest.mark.parametrize(("payload", "framed"), FRAMED.items())
def test_a_payload_is_framed_and_unframed_as_by_tensorflow(payload: bytes, framed: str) -> None:
    data = bytes.fromhex(framed)
    assert frame(payload) == data
    assert records(data) == [(0, len(data), payload)]
    assert unframe(data, "shard", 0) == payload


@given(st.binary(max_size=200))
def test_both_checksums_are_masked_crc32c(payload: bytes) -> None:
    assert crc32c(b"123456789") == 0xE3069283, "the published check value"
    length = struct.pack("<Q", len(payload))
    assert frame(payload) == length + masked(length) + payload + masked(payload)


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_records_are_read_in_order_with_their_places(payloads: list[bytes]) -> None:
    data = b"".join(map(frame, payloads))
    found = records(data)
    assert [record.payload for record in found] == payloads
    assert [data[r.offset : r.offset + r.length] for r in found] == list(map(frame, payloads))


def test_tensorflow_reads_framed_records_and_the_reverse(tmp_path: Path) -> None:
    import tensorflow as tf

    payloads = [*PAYLOADS, bytes(100_000)]
    path = write(tmp_path / "framed", b"".join(map(frame, payloads)))
    assert list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator()) == payloads
    path = tmp_path / "shard"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in payloads:
            writer.write(payload)
    with path.open("rb") as file:
        found = list(read_records(file, path.name))
    assert [record.payload for record in found] == payloads
    assert [record.length for record in found] == [len(p) + FRAME_BYTES for p in payloads]
    assert found[-1].offset + found[-1].length == path.stat().st_size


def test_records_are_read_one_at_a_time_from_the_position_of_the_stream() -> None:
    stream = io.BytesIO(FILE)
    stream.seek(STARTS[1])
    first = next(read_records(stream, "some-shard"))
    assert (first.offset, first.payload) == (0, PAYLOADS[1])
    assert stream.tell() == STARTS[2]


def test_every_flipped_bit_is_found_at_the_record_it_is_in() -> None:
    for start, end in pairwise(STARTS):
        before = list(PAYLOADS[: STARTS.index(start)])
        for bit in range(start * 8, end * 8):
            data = bytearray(FILE)
            data[bit // 8] ^= 1 << bit % 8
            payloads, error = read_until_error(bytes(data))
            assert error is not None, f"bit {bit}"
            assert (payloads, error.offset) == (before, start), f"bit {bit}"


def test_a_cut_is_found_at_its_record_unless_it_is_between_records() -> None:
    for number, start in enumerate(STARTS):
        assert read_until_error(FILE[:start]) == ([*PAYLOADS[:number]], None)
    for start, end in pairwise(STARTS):
        for cut in range(start + 1, end):
            payloads, error = read_until_error(FILE[:cut])
            assert error is not None, f"cut at {cut}"
            assert (len(payloads), error.offset) == (STARTS.index(start), start), f"cut at {cut}"


@pytest.mark.parametrize("garbage", [b"\n", b"\x00" * 12, b"\x00" * 16, b"x" * 100])
def test_bytes_behind_the_last_record_are_found(garbage: bytes) -> None:
    payloads, error = read_until_error(FILE + garbage)
    assert error is not None
    assert (payloads, error.offset) == (list(PAYLOADS), len(FILE))


@pytest.mark.parametrize("length", [2**20, 2**40, 2**62, 2**64 - 1])
def test_a_length_beyond_the_file_is_an_error_even_under_a_true_checksum(
    tmp_path: Path, length: int
) -> None:
    header = struct.pack("<Q", length)
    path = write(tmp_path / "shard", frame(b"one") + header + masked(header) + b"rest")
    with path.open("rb") as file, pytest.raises(RecordError) as caught:
        list(read_records(file, path.name))
    assert caught.value.offset == len(frame(b"one"))


@pytest.mark.parametrize(
    ("damaged", "what"),
    [
        (FILE[:5], "cut inside a record header (5 of 12 bytes)"),
        (FILE[: STARTS[2] - 1], "cut inside a record (6 of 7 bytes)"),
        (b"\x01" + FILE[1:], "length CRC is"),
        (FILE.replace(b"one", b"One"), "data CRC is"),
    ],
)
def test_an_error_has_file_offset_reason_and_hint(damaged: bytes, what: str) -> None:
    with pytest.raises(RecordError) as caught:
        records(damaged)
    line = str(caught.value)
    assert line.startswith(f"some-shard: offset {caught.value.offset}: {what}")
    assert line.endswith("; copy this file again, or build the dataset again")
    assert "\n" not in line


def test_every_change_of_a_single_record_is_an_error() -> None:
    """Cut, grown, or with any bit turned."""
    whole = frame(b"payload")
    changed = [whole[:size] for size in range(len(whole))] + [whole + b"\0", whole + whole]
    for at in range(len(whole)):
        changed += [
            whole[:at] + bytes((whole[at] ^ 1 << bit,)) + whole[at + 1 :] for bit in range(8)
        ]
    for one in changed:
        with pytest.raises(RecordError, match=r"^shard: offset 1,234: ") as caught:
            unframe(one, "shard", 1234)
        assert caught.value.offset == 1234


def which_are_sound(block: bytes, lengths: list[int]) -> list[bool]:
    found = are_sound(np.frombuffer(block, np.uint8), np.array(lengths, np.int64))
    return [bool(one) for one in found]


def test_only_the_changed_record_of_a_block_is_not_sound() -> None:
    """Any bit of it."""
    lengths = [len(frame(payload)) for payload in PAYLOADS]
    assert which_are_sound(FILE, lengths) == [True] * len(PAYLOADS)
    assert which_are_sound(b"", []) == []
    for at in range(len(FILE)):
        damaged = next(i for i, end in enumerate(accumulate(lengths)) if at < end)
        for bit in range(8):
            changed = FILE[:at] + bytes((FILE[at] ^ 1 << bit,)) + FILE[at + 1 :]
            expected = [number != damaged for number in range(len(lengths))]
            assert which_are_sound(changed, lengths) == expected


@given(st.lists(st.integers(0, 60), max_size=4))
def test_records_of_a_block_are_sound_before_the_one_of_another_length(lengths: list[int]) -> None:
    block = FILE + bytes(200)
    starts = [0, *accumulate(lengths)]
    expected = [is_framed(block[start:end]) for start, end in pairwise(starts)]
    assert which_are_sound(block, lengths) == expected


def is_framed(data: bytes) -> bool:
    try:
        unframe(data, "shard", 0)
    except RecordError:
        return False
    return True
