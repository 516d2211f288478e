"""An untrusted dataset controls neither file paths nor time nor memory."""

import hashlib
import json
import os
import re
import resource
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from shardprep.dataset.describe import read_facts
from shardprep.dataset.fetch import fetch_dataset
from shardprep.dataset.item_table import COLUMNS
from shardprep.dataset.local_files import LocalFiles
from shardprep.dataset.locate import locate
from shardprep.dataset.manifest import load_manifest, parse_manifest
from shardprep.dataset.open_dataset import open_dataset
from shardprep.errors import DatasetError, ShardprepError
from shardprep.reader import Dataset
from shardprep.storage.url import ObjectUrl
from shardprep.verifier.dataset import verify_dataset
from shardprep.writer.finalize import finalize_dataset
from shardprep.writer.workspace.states import find_workspace
from tests.dataset.resigned import FIRST, MANIFESTS, changed, resigned
from tests.support.builders import Quiet, animals, build, build_part, tree, write, zip_bytes
from tests.support.examples import DAMAGES, Damage, damaged, fuzzed, in_time, texts
from tests.support.object_store import Bucket

NUM_RANDOM = (50, 50, 30, 20, 10)
"""Cases of values, damage, tables, unfinished builds and fetches in a run of the suite."""
SHARD = "pets-train.tfrecord-00000-of-00002"
_ODD = re.compile("[\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.fixture(name="whole", scope="module")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small intact dataset; tests must not change it."""
    folder = tmp_path_factory.mktemp("whole")
    source = write(folder / "pets.zip", zip_bytes(animals(6)))
    return build(source, folder / "out", shards=2, size="8x8", format="png").path


@pytest.fixture(name="folder")
def _folder(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return shutil.copytree(whole, tmp_path / "out" / "pets" / "1.0.0")


def manifest_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "manifest.json").read_bytes()))


def lines(error: ShardprepError) -> str:
    """Return the text of an error; it must be one line without control characters."""
    line = str(error)
    assert not _ODD.search(line)
    assert len(line) < 2000
    return line


def refusal(work: Callable[[], object]) -> str:
    with pytest.raises(ShardprepError) as caught:
        work()
    return lines(caught.value)


def verify(folder: Path) -> Any:
    return verify_dataset(LocalFiles.at(folder), decode=False, num_workers=1, watcher=Quiet())


def load(folder: Path) -> Any:
    from shardprep.reader import load

    return load(folder, "train", batch_size=2, shuffle=False)


# --- manifests ----------------------------------------------------------------------------------


def test_these_tests_sign_a_manifest_as_a_build_does(folder: Path) -> None:
    assert resigned(manifest_of(folder)) == (folder / "manifest.json").read_bytes()


@pytest.mark.parametrize("lie", MANIFESTS)
def test_a_false_manifest_is_refused_by_every_reader_in_one_line(folder: Path, lie: str) -> None:
    document = changed(manifest_of(folder), *MANIFESTS[lie])
    (folder / "manifest.json").write_bytes(resigned(document))
    before = tree(folder.parents[2])
    for work in (load_manifest, read_facts_of, Dataset, load):
        assert "manifest.json" in refusal(partial(work, folder))
    assert "manifest" in {problem.kind for problem in verify(folder).problems}
    assert tree(folder.parents[2]) == before


def read_facts_of(folder: Path) -> object:
    return read_facts(open_dataset(folder))


@pytest.mark.thorough
def test_no_manifest_makes_fetch_write_outside(whole: Path, bucket: Bucket, tmp_path: Path) -> None:
    """The reader of object storage neither: it names its copies after values of the manifest."""
    for name, data in tree(whole).items():
        bucket.put(f"out/pets/1.0.0/{name}", data)
    remote, home = f"{bucket.url}/out/pets/1.0.0", tmp_path / "home" / "user"
    home.mkdir(parents=True)
    for lie, how in MANIFESTS.items():
        document = changed(manifest_of(whole), *how)
        bucket.put("out/pets/1.0.0/manifest.json", resigned(document))
        found = locate(ObjectUrl.parse(remote))
        to = home / "tfrecords"
        assert refusal(partial(fetch_dataset, found, to, num_threads=2, watcher=Quiet())), lie
        assert refusal(lambda: Dataset(remote)), lie
        assert not any(home.iterdir()), lie
    cached = {path.parent.parent.name for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert cached == {"documents"}
    assert {path.name for path in tmp_path.iterdir()} == {"home", "cache"}


@pytest.mark.thorough
def test_a_document_in_a_store_that_is_absurdly_large_is_not_fetched(
    whole: Path, bucket: Bucket, tmp_path: Path
) -> None:
    for name in ("manifest.json", "schema.json"):
        bucket.put(f"pets/1.0.0/{name}", (whole / name).read_bytes())
    for name in ("schema.json", "manifest.json"):
        bucket.put(f"pets/1.0.0/{name}", bytes((64 << 20) + 1))
        line = refusal(lambda: Dataset(f"{bucket.url}/pets"))
        assert f"{name}: has 67,108,865 bytes, more than the allowed 67,108,864" in line
    cache = (path for path in (tmp_path / "cache").rglob("*") if path.is_file())
    assert sum(path.stat().st_size for path in cache) < 100_000


def test_a_flipped_bit_in_any_byte_of_a_manifest_is_refused(whole: Path) -> None:
    data = bytearray((whole / "manifest.json").read_bytes())
    assert is_manifest(bytes(data))
    for bit in range(0, 8 * len(data), 9):  # another bit in each byte
        data[bit // 8] ^= 1 << bit % 8
        assert not is_manifest(bytes(data)), f"bit {bit}"
        data[bit // 8] ^= 1 << bit % 8


def is_manifest(data: bytes) -> bool:
    try:
        parse_manifest(data, "it")
    except DatasetError:
        return False
    return True


@pytest.mark.parametrize("more", [-1, 1])
@pytest.mark.parametrize("reader", [Dataset, load])
def test_an_index_with_another_number_of_records_is_refused(
    folder: Path, reader: Callable[[Path], object], more: int
) -> None:
    """A manifest that adds up, and says one record less, or more, than there are."""
    document = manifest_of(folder)
    for path in (f"{FIRST}.num_records", "splits.train.num_records", "totals.num_written"):
        document = changed(document, path, lambda count: count + more)
    document = changed(document, "totals.num_inputs", lambda count: count + more)
    (folder / "manifest.json").write_bytes(resigned(document))
    load_manifest(folder)
    line = refusal(lambda: [len(reader(folder))])  # type: ignore[arg-type]
    assert f"{SHARD}.idx" in line


@pytest.mark.parametrize(
    "text",
    ["0 1\n", "", "x" * 200, "0 9223372036854775807\n" * 3, "0 -5\n0 -5\n0 -5\n", "0 0 " * 99],
)
def test_a_malformed_index_is_refused(folder: Path, text: str) -> None:
    (folder / "index" / f"{SHARD}.idx").write_text(text)
    for reader in (Dataset, load):
        assert f"{SHARD}.idx" in refusal(partial(reader, folder))


# --- what is no file, or has no end -------------------------------------------------------------

DOCUMENTS = ["manifest.json", "schema.json", "items.parquet", f"index/{SHARD}.idx", SHARD]
TFDS = ["dataset_info.json", "features.json", "label.labels.txt"]
_FOREIGN: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a folder": lambda path: path.mkdir(),
    "a link": lambda path: path.symlink_to(write(path.parents[3] / "secret", b"secret")),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", _FOREIGN)
@pytest.mark.parametrize("name", [*DOCUMENTS, *TFDS])
def test_a_file_that_is_not_regular_is_named_and_never_read(
    folder: Path, name: str, kind: str
) -> None:
    (folder / name).unlink()
    _FOREIGN[kind](folder / name)
    expected = "missing" if kind == "a folder" and name == SHARD else "unreadable"
    assert (expected, name) in {(p.kind, p.file) for p in verify(folder).problems}
    if name == "items.parquet":
        assert name in refusal(lambda: read_facts_of(folder))
    elif name not in TFDS:
        for reader in (Dataset, load):
            line = refusal(partial(reader, folder))
            assert name in line
            assert "not a regular file" in line


@pytest.mark.parametrize("name", ["manifest.json", "schema.json", *TFDS[:2]])
def test_endless_nesting_is_a_one_line_error(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"[" * 200_000)
    assert name in {problem.file for problem in verify(folder).problems}
    if name not in TFDS:
        assert name in refusal(lambda: read_facts_of(folder))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", [SHARD, "manifest.json", "schema.json", f"index/{SHARD}.idx"])
def test_a_file_of_terabytes_is_not_read(folder: Path, name: str) -> None:
    os.truncate(folder / name, 1 << 42)
    kind = "size" if name == SHARD else "unreadable"
    assert (kind, name) in {(p.kind, p.file) for p in verify(folder).problems}
    for reader in (Dataset, load):
        assert "4,398,046,511,104 bytes" in refusal(partial(reader, folder))


# --- item tables --------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_table_of_many_more_rows_than_it_can_hold_is_refused(folder: Path) -> None:
    rows = {name: [None] * 200_000 for name in COLUMNS.names} | {"status": ["skipped"] * 200_000}
    table = pa.Table.from_pydict(rows, schema=COLUMNS)
    with pq.ParquetWriter(folder / "items.parquet", COLUMNS, compression="zstd") as writer:
        writer.write_table(table)
    assert "200,000 rows" in refusal(lambda: read_facts_of(folder))


def test_a_table_without_a_key_or_a_hash_is_named(folder: Path) -> None:
    table = pq.read_table(folder / "items.parquet").to_pydict()
    for column in ("key", "original_sha256", "original_height", "offset", "status"):
        changed_table = {**table, column: [None] * len(table["key"])}
        with pq.ParquetWriter(folder / "items.parquet", COLUMNS) as writer:
            writer.write_table(pa.Table.from_pydict(changed_table, schema=COLUMNS))
        assert "items.parquet" in {problem.file for problem in verify(folder).problems}
        read_facts_of(folder)


# --- unfinished builds --------------------------------------------------------------------------


@pytest.fixture(name="begun", scope="module")
def _begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All parts of a build that is not finished, never changed."""
    folder = tmp_path_factory.mktemp("begun")
    source = write(folder / "pets.zip", zip_bytes(animals(6)))
    for part in ("1/2", "2/2"):
        build_part(source, folder / "out", part, shards=2, size="8x8", format="png")
    return folder / "out" / "pets" / "1.0.0.incomplete"


@pytest.fixture(name="parts")
def _parts(begun: Path, tmp_path: Path) -> Path:
    """A copy of them, to be changed."""
    return shutil.copytree(begun, tmp_path / "out" / "pets" / "1.0.0.incomplete")


OUTLINES: dict[str, tuple[str, Any]] = {
    "a shard that leaves the folder": ("shards.0.name", "../../../outside"),
    "a shard of another place": ("shards.0.name", lambda name: name.replace("00000", "00001", 1)),
    "a name that leaves the folder": ("name", "../../x"),
    "a version that leaves the folder": ("version", "../1.0.0"),
    "a split that leaves the folder": ("shards.0.split", "../x"),
    "no parts at all": ("num_parts", 0),
    "images without pixels": ("spec.size", [0, 0]),
    "a share above all": ("max_rejected", 1e9),
    "no seed": ("fingerprint.options", {}),
    "shards that are a number": ("shards", 7),
}


@pytest.mark.parametrize("lie", OUTLINES)
def test_a_false_outline_is_refused_in_one_line(parts: Path, lie: str) -> None:
    path = parts / ".parts" / "outline.json"
    path.write_text(json.dumps(changed(json.loads(path.read_bytes()), *OUTLINES[lie])))
    before = tree(parts.parents[2])
    assert "outline.json: is damaged" in refusal(lambda: finish(parts))
    assert tree(parts.parents[2]) == before


def finish(parts: Path) -> object:
    return finalize_dataset(find_workspace(str(parts.parents[1])), num_threads=1)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", [".build.json", ".parts/outline.json", f".parts/{SHARD}.parquet"])
def test_a_pipe_in_an_unfinished_build_does_not_block(parts: Path, name: str) -> None:
    (parts / name).unlink()
    os.mkfifo(parts / name)
    with pytest.raises((OSError, ShardprepError), match="a pipe, not a regular file"):
        finish(parts)


@pytest.mark.parametrize("facts", ["7", "[]", "{}", '{"seal": 7}', '{"seal": {"num_records": -1}}'])
def test_a_false_receipt_means_that_the_shard_is_written_again(parts: Path, facts: str) -> None:
    path = parts / ".parts" / f"{SHARD}.parquet"
    table = pq.read_table(path).replace_schema_metadata({b"shardprep": facts.encode()})
    pq.write_table(table, path)
    assert f"missing or incomplete: {SHARD}" in refusal(lambda: finish(parts))


# --- everything, at random ----------------------------------------------------------------------

_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 1, 2**31, 2**63, 2**64, 10**30]),
    st.floats(),
    texts(max_size=20),
    st.sampled_from(["", "..", "../x", "/x", "a\0b", "\x1b[2J", "x" * 5000, "0" * 64, "1.0.0"]),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(texts(max_size=5), st.integers(), max_size=3),
)


def paths_of(value: Any, above: str = "") -> list[str]:
    """Return the place of every value inside a document."""
    if not isinstance(value, (dict, list)):
        return []
    keys = list(value) if isinstance(value, dict) else range(len(value))
    found = []
    for key in keys:
        if isinstance(key, int) or not ("." in key or key.isdecimal()):
            found += [f"{above}{key}", *paths_of(value[key], f"{above}{key}.")]
    return found


def judged(folder: Path) -> None:
    """Read a folder in every way; errors must be one printable line."""
    for work in (read_facts_of, verify, Dataset, opened):
        try:
            found = work(folder)
            if isinstance(found, Dataset) and len(found) < 100:
                list(found)
        except ShardprepError as error:
            lines(error)


def opened(folder: Path) -> object:
    """Open as `reader.load` does, up to where TensorFlow begins."""
    from shardprep.reader.config import Request
    from shardprep.reader.records.subset import open_request

    return open_request(Request(folder, batch_size=2))


def with_other_values(document: dict[str, Any], data: st.DataObject) -> dict[str, Any]:
    """Return a document in which one or two values are any others."""
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(paths_of(document)))
        document = changed(document, path, data.draw(_VALUES))
    return document


@in_time
@fuzzed(NUM_RANDOM[0])
@given(data=st.data())
def test_any_value_anywhere_in_a_document_is_right_or_one_line(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(["manifest.json", "schema.json", "features.json"]))
    document = with_other_values(json.loads((whole / name).read_bytes()), data)
    text = (
        resigned(document)
        if name == "manifest.json"
        else json.dumps(document).encode("utf-8", "replace")
    )
    try_out(whole, tmp_path_factory, {name: text})


@in_time
@fuzzed(NUM_RANDOM[1])
@given(st.sampled_from([*DOCUMENTS, *TFDS]), DAMAGES)
def test_damage_at_random_is_right_or_one_line(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, name: str, damages: list[Damage]
) -> None:
    good = (whole / name).read_bytes()
    try_out(whole, tmp_path_factory, {name: damaged(good, good, damages)})


@in_time
@fuzzed(NUM_RANDOM[2])
@given(st.data())
def test_any_cell_of_the_table_is_right_or_one_line(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    rows = pq.read_table(whole / "items.parquet").to_pydict()
    column = data.draw(st.sampled_from(COLUMNS.names))
    kind = COLUMNS.field(column).type
    value: st.SearchStrategy[Any] = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
    if pa.types.is_string(kind) or pa.types.is_dictionary(kind):
        value = st.one_of(
            st.none(), texts(max_size=20), st.sampled_from(["written", "rejected", "skipped"])
        )
    elif pa.types.is_floating(kind):
        value = st.one_of(st.none(), st.floats())
    elif pa.types.is_list(kind):
        value = st.one_of(st.none(), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3))
    rows[column] = [data.draw(value) for _ in rows[column]]
    sink = pa.BufferOutputStream()
    try:
        with pq.ParquetWriter(sink, COLUMNS) as writer:
            writer.write_table(pa.Table.from_pydict(rows, schema=COLUMNS))
    except UnicodeEncodeError:
        return
    try_out(whole, tmp_path_factory, {"items.parquet": sink.getvalue().to_pybytes()})


@in_time
@fuzzed(NUM_RANDOM[3])
@given(data=st.data(), damages=DAMAGES)
def test_an_unfinished_build_with_any_values_is_finished_or_one_line(
    begun: Path,
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    damages: list[Damage],
) -> None:
    parts = tmp_path_factory.mktemp("fuzz") / "out" / "pets" / "1.0.0.incomplete"
    shutil.copytree(begun, parts)
    documents = [".build.json", ".parts/outline.json"]
    tables = [f".parts/{SHARD}.parquet", ".parts/skipped.parquet"]
    path = parts / data.draw(st.sampled_from([*documents, *tables]))
    if path.suffix == ".json":
        document = with_other_values(json.loads(path.read_bytes()), data)
        path.write_bytes(json.dumps(document).encode("utf-8", "replace"))
    else:
        good = path.read_bytes()
        path.write_bytes(damaged(good, good, damages))
    root = parts.parents[2]
    try:
        finish(parts)
    except ShardprepError as error:
        lines(error)
    assert {one.name for one in root.iterdir()} == {"out"}
    assert {one.name for one in (root / "out").iterdir()} == {"pets"}
    shutil.rmtree(root)


@in_time
@fuzzed(NUM_RANDOM[4], suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), damages=DAMAGES)
def test_a_fetch_of_any_documents_is_right_or_one_line(
    whole: Path, bucket: Bucket, tmp_path: Path, data: st.DataObject, damages: list[Damage]
) -> None:
    key = f"d{data.draw(st.integers(0, 2**62))}/pets/1.0.0"
    name = data.draw(st.sampled_from([*DOCUMENTS, *TFDS]))
    files = tree(whole)
    bad = damaged(files[name], files[name], damages)
    if name == "manifest.json":
        bad = resigned(with_other_values(manifest_of(whole), data))
    for path, content in {**files, name: bad}.items():
        bucket.put(f"{key}/{path}", content)
    home = tmp_path / "home"
    try:
        remote = locate(ObjectUrl.parse(f"{bucket.url}/{key}"))
        found = fetch_dataset(remote, home / "sets", num_threads=2, watcher=Quiet())
        assert found.path == home / "sets" / "pets" / "1.0.0"
    except ShardprepError as error:
        lines(error)
    assert {path.name for path in tmp_path.iterdir()} <= {"home", "cache"}
    if home.exists():
        assert {path.name for path in home.iterdir()} == {"sets"}
        shutil.rmtree(home)


def try_out(whole: Path, tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    """Read a copy of the dataset with other files, unchanged and with new hashes."""
    root = tmp_path_factory.mktemp("fuzz")
    folder = root / "out" / "pets" / "1.0.0"
    shutil.copytree(whole, folder)
    try:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        before = tree(root)
        judged(folder)
        if not files.keys() & {"manifest.json"}:
            sign_anew(folder)
            before = tree(root)
            judged(folder)
        assert tree(root) == before
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < _memory() + (500 << 10)
    finally:
        shutil.rmtree(root)


def sign_anew(folder: Path) -> None:
    """Write the hashes of the present files into the manifest."""
    document = manifest_of(folder)
    for name in document["files"]:
        document["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "manifest.json").write_bytes(resigned(document))


@cache
def _memory() -> int:
    """Return the peak memory of the process after the first case, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_a_version_folder_in_other_digits_is_not_found(folder: Path) -> None:
    folder.rename(folder.with_name("١.٠.٠"))
    with pytest.raises(DatasetError, match="holds no dataset"):
        locate(folder.parent)
