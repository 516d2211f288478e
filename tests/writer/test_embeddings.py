"""Vectors of a model name pairs of images, and the pixels decide whether they are near copies."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardprep
from shardprep.catalog.tables.metadata_files import read_embeddings
from shardprep.errors import BuildError, RecipeError, ShardprepError
from shardprep.image.near_candidates import neighbours
from shardprep.recipe.recipe import make_recipe
from shardprep.writer.plan import near_copies
from tests.support.builders import Quiet, build, build_part, handing_over, in_process, zip_bytes
from tests.support.command import error_of, run
from tests.support.planted import file, photo

KEYS = ["b.png", "a.png", "c/a.png", "d.png"]
KEYWORDS: dict[str, Any] = {"labels": "none", "size": "96x96", "split": "train=0.5,test=0.5"}
NUMBER = 8
USED = "embeddings of 16 of 16 images are used, of 16 rows"


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(near_copies, "run_chunks", handing_over(in_process))
    monkeypatch.chdir(tmp_path)


def read(data: str | np.ndarray[Any, Any], keys: list[str]) -> tuple[Any, str, str]:
    """Return what is read of a CSV in text, or of an array in a .npy."""
    kind = "csv" if isinstance(data, str) else "npy"
    np.save("e.npy", data)
    Path("e.csv").write_text(str(data))
    flags = {"source": ".", "dedup": "near", "embeddings": f"{kind}:e.{kind}"}
    return read_embeddings(make_recipe(flags, "test"), keys)


def table(vectors: dict[str, Any]) -> str:
    lines = [",".join([key, *map(str, vector.tolist())]) for key, vector in vectors.items()]
    return "\n".join(["key,x,y,z", *lines, ""])


def test_csv_in_any_order_and_npy_in_order_of_keys_give_the_same_vectors() -> None:
    values = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32) * 1e30
    rows = dict(zip(KEYS, values, strict=True))
    vectors, sha256, used = read(table(rows), KEYS)
    assert sha256 == hashlib.sha256(Path("e.csv").read_bytes()).hexdigest()
    assert used == "embeddings of 4 of 4 images are used, of 4 rows"
    expected = values / np.linalg.norm(values.astype(float), axis=1, keepdims=True) * 2047
    assert vectors == pytest.approx(expected, abs=1)
    for other in (table({key: rows[key] for key in reversed(KEYS)}),
                  np.stack([rows[key] for key in sorted(KEYS)]),
                  np.stack([rows[key] for key in sorted(KEYS)]).astype(np.float64)):  # fmt: skip
        assert (read(other, KEYS)[0] == vectors).all()


def test_rows_without_an_image_and_images_without_a_row_are_counted() -> None:
    text = 'key;x;y\n\n\'=1.png;1;2\nno.png;5;1\n"b.png";-3;0\nb.png;7;7\n'
    vectors, _, used = read(text, ["a.png", "b.png", "=1.png"])
    assert vectors.tolist() == [[0, 0], [-2047, 0], [915, 1831]]
    assert used == "embeddings of 2 of 3 images are used, of 4 rows"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("key,x,y\na.png,1,2\n\nb.png,1,wide\n", r"line 4: could not convert string 'wide'"),
        ("key,x,y\na.png,1,2\nb.png,1\n", r"line 3: line 1 names 3 columns but 2"),
        ("key,x,y\na.png,1,2,3\n", r"line 2: line 1 names 3 columns but 4"),
        (
            "key,x,y\na.png,1,2\nb.png,nan,1\n",
            "the vector of b.png is all 0, or has a value that is not a number",
        ),
        ("key,x,y\na.png,0,0\n", "the vector of a.png is all 0"),
        ("a.png,1,2.5\nb.png,2,1\n", "line 1 does not name the columns"),
        ("key\na.png\n", "line 1 does not name the columns"),
        ("key,x\nno.png,1\n", "0 of 4 images are used, of 1 rows; a key looks like b.png"),
        ("key,x\n", "0 of 4 images are used, of 0 rows"),
        (np.ones((5, 3)), "5 rows for 4 images, sorted by key"),
        (np.ones(4), r"the shape is \(4,\), the type float64"),
        (np.array([[None]]), "allow_pickle"),
    ],
    ids=str,
)
def test_a_table_that_cannot_be_used_is_an_error_that_says_where(data: Any, message: str) -> None:
    with pytest.raises(ShardprepError, match=rf"^e\.(csv|npy).*{message}"):
        read(data, KEYS)


def test_neighbours_are_those_of_exact_numbers() -> None:
    """Among equal vectors the first is taken, and images of one group are not neighbours."""
    rng = np.random.default_rng(1)
    values = 1 + 0.6 * rng.normal(size=(300, 700))
    values[100:140] = values[7]
    vectors, groups = read(values, [f"{i:03d}" for i in range(300)])[0], rng.integers(0, 200, 300)
    exact = vectors.astype(np.int64) @ vectors.T.astype(np.int64)
    assert exact.max() < 1 << 24, "float32 is exact"
    expected = set()
    for i, row in enumerate(exact.tolist()):
        others = [j for j in range(300) if groups[i] != groups[j] and row[j] >= 0.7 * 2047**2]
        nearest = sorted(others, key=lambda j: (-row[j], j))[:4]
        expected |= {(min(i, j), max(i, j)) for j in nearest}
    assert [(one, other) for one, other in neighbours(vectors, groups).tolist()] == sorted(expected)


@pytest.fixture(name="source")
def _source(tmp_path: Path) -> Path:
    """Photos o0.jpg …, and of each a mirrored crop to 40% of the area, p0.jpg ….

    The vectors of a photo and its crop are near, and those of photos 0 and 1.
    """
    files, vectors = dict[str, bytes](), dict[str, Any]()
    for i in range(NUMBER):
        pixels, vector = photo(i, 150, 150), np.random.default_rng(max(i, 1)).normal(size=3)
        left, top = np.random.default_rng(i).integers(0, 56, 2).tolist()
        part = pixels[top : top + 95, left : left + 95][:, ::-1]
        files |= {f"o{i}.jpg": file(pixels, quality=92), f"p{i}.jpg": file(part, quality=92)}
        vectors |= {f"o{i}.jpg": vector, f"p{i}.jpg": vector + 0.01 * i}
    (tmp_path / "e.csv").write_text(table(vectors))
    np.save(tmp_path / "e.npy", np.stack([vectors[key] for key in sorted(vectors)]))
    (tmp_path / "photos.zip").write_bytes(zip_bytes(files))
    return tmp_path / "photos.zip"


def groups_of(path: Path) -> int:
    """Return how many groups a report finds; each is a photo and its own crop."""
    report = shardprep.report(path, embeddings="csv:e.csv", progress=False)
    groups = [sorted(report.contents.keys_of(one.numbers)) for one in report.copies]
    assert all(one == [f"o{one[0][1:]}", f"p{one[0][1:]}"] for one in groups)
    return len(groups)


def test_a_build_finds_crops_that_only_vectors_name(source: Path, tmp_path: Path) -> None:
    keywords = {**KEYWORDS, "group": "near"}
    plain, told = build(source, tmp_path / "plain", **keywords), Quiet()
    assert plain.manifest.leaks is not None
    assert plain.manifest.leaks.num_groups <= 1
    assert '"embeddings"' not in plain.manifest.text()
    made = build(source, tmp_path / "out", embeddings="csv:e.csv", watcher=told, **keywords)
    leaks, data = made.manifest.leaks, Path("e.csv").read_bytes()
    assert leaks is not None
    assert leaks.num_groups >= NUMBER - 1
    assert leaks.embeddings == hashlib.sha256(data).hexdigest()
    assert leaks.embeddings in leaks.details
    assert USED in told.lines
    assert made.manifest.fingerprint.inputs["e.csv"] == leaks.embeddings
    assert groups_of(made.path) == leaks.num_groups
    checked = shardprep.verify(made.path, leaks=True).leaks
    assert checked is not None
    assert checked.is_clean
    left = build(source, tmp_path / "left", embeddings="npy:e.npy", dedup="near", **KEYWORDS)
    assert left.manifest.totals.num_written == 2 * NUMBER - leaks.num_groups
    keywords |= {"embeddings": "csv:e.csv", "shards": 2}
    build_part(source, tmp_path / "parts", "1/2", **keywords)
    Path("e.csv").write_bytes(data + b"more.jpg,1,2,3\n")
    with pytest.raises(BuildError, match=r"begun with other e\.csv"):
        build_part(source, tmp_path / "parts", "2/2", **keywords)


def test_a_report_finds_them_and_keeps_no_pairs_of_vectors(source: Path, tmp_path: Path) -> None:
    path = build(source, tmp_path / "out", **KEYWORDS).path
    before = shardprep.report(path, progress=False)
    assert groups_of(path) >= NUMBER - 1
    done = run("report", path, "--embeddings", "csv:e.csv", "--out", "r.html", cwd=tmp_path)
    assert f"{USED}\n" in done.stderr
    assert all(text in Path("r.html").read_text() for text in (USED, "--dedup near --embeddings"))
    assert len(shardprep.report(path, progress=False).copies) == len(before.copies) <= 1


def test_the_option_says_what_it_needs(source: Path, tmp_path: Path) -> None:
    made = ("build", source, "--labels", "none", "--group", "near", "--embeddings")
    for arguments, line in (
        ((*made[:4], "--embeddings", "csv:e.csv"), "--embeddings: needs --group near or --dedup"),
        ((*made, "e.csv"), "--embeddings: 'e.csv' must be csv:FILE or npy:FILE"),
        ((*made, "csv:no.csv"), "no.csv: no such file"),
        ((*made, f"csv:{tmp_path}"), f"{tmp_path}: is not a file"),
    ):
        done = run(*arguments, cwd=tmp_path)
        assert line in error_of(done, done.returncode)
    path = build(source, tmp_path / "out", **KEYWORDS).path
    with pytest.raises(RecipeError, match="needs the pixels; leave out --no-pixels"):
        shardprep.report(path, embeddings="csv:e.csv", no_pixels=True)
