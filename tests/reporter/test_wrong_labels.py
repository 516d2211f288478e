"""Labels that a model's predictions contradict are found, listed, and replaced by `--relabel`."""

import csv
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import shardprep
from shardprep import reader
from shardprep.reporter.findings.labels import wrong_labels
from tests.reporter.pages import checked, packed
from tests.support.builders import write
from tests.support.command import error_of, ran, run
from tests.support.planted import file, photo

CLASSES = ("=fox", "cat", "dog")
WRONG = {4: 2, 7: 0, 20: 1}
"""Number of an image with a wrong label → its right class."""
AS_CLEANLAB = {"filter_by": "confident_learning", "return_indices_ranked_by": "self_confidence",
               "n_jobs": 1}  # fmt: skip


@pytest.mark.parametrize("num_classes", [2, 3, 7])
def test_the_labels_found_and_their_order_are_those_of_cleanlab(num_classes: int) -> None:
    """With rare and missing classes, certain predictions, and records without a prediction."""
    cleanlab = pytest.importorskip("cleanlab.filter")
    total = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        probabilities = rng.dirichlet(np.full(num_classes, rng.choice([0.1, 0.5, 2])), 150)
        likely = np.where(rng.random(150) < 0.6, probabilities.argmax(axis=1), 0)
        given = np.minimum(likely, num_classes - 1 - seed % 2)
        given[0] = 1
        names = [str(i) for i in range(num_classes)]
        contents: Any = SimpleNamespace(schema=SimpleNamespace(labels=names))
        contents.label = np.repeat(given, 2)
        predicted = np.full((300, num_classes), np.nan)
        predicted[::2] = probabilities
        found = wrong_labels(contents, predicted)
        expected = cleanlab.find_label_issues(given, probabilities, **AS_CLEANLAB)
        assert [one.number for one in found] == [2 * i for i in expected.tolist()]
        assert [one.given for one in found] == [names[i] for i in given[expected]]
        total += len(found)
    assert total > 40


def members() -> dict[str, bytes]:
    """Return 30 images in folders of classes, `WRONG` in the wrong one, and unlabelled images."""
    found = {f"{CLASSES[i % 3]}/{i}.png": file(photo(i), "PNG") for i in range(30)}
    found |= {f"test/{i}.png": file(photo(50 + i), "PNG") for i in range(4)}
    return found | {"x/cat/7.png": file(photo(60), "PNG")}  # its end is the key of another image


def predictions(path: Path, *more: str) -> Path:
    """Write a table with a row for each key of `CLASSES` except that of image 29, and more rows."""
    rows = ["key,dog,=fox,cat"]
    for i in range(29):
        shares = [0.05] * 3
        shares[WRONG.get(i, i % 3)] = 0.9 - i / 1000
        shares[(WRONG.get(i, i % 3) + 1) % 3] += i / 1000
        rows.append(f"{CLASSES[i % 3]}/{i}.png,{shares[2]},{shares[0]},{shares[1]}")
    return write(path, "\n".join([*rows, *more]).encode())


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wrong")
    packed(folder, members(), size="32x32", name="pets")
    return folder


def labels_of(path: Path) -> dict[str, str]:
    rows = reader.Dataset(path, "train", as_supervised=False)
    names = (path / "label.labels.txt").read_text().splitlines()
    return {row["image/filename"]: names[int(row["label"])] for row in rows}


def test_wrong_labels_are_found_shown_and_replaced(folder: Path, tmp_path: Path) -> None:
    again = "cat/1.png,1,0,0"
    more = ("no.png,0.2,0.3,0.5", "test/0.png,0.2,0.3,0.5", "x/cat/7.png,3,1,nan", again)
    table = predictions(tmp_path / "oof.csv", *more)
    data = folder / "out/pets/1.0.0"
    done = ran("report", data, "--predictions", "csv:oof.csv", "-o", "p.html", cwd=tmp_path)
    used = (
        "redictions of 29 of 31 labelled images are used; rows left out: 1 without an image in the "
        "report, 1 repeating an image, 1 without probabilities that sum to 1, 1 of images without "
        "a label"
    )
    assert f"p{used}\n" in done.stderr
    assert "wrong-labels: 3 images with a label that is probably wrong: 1 " in done.stdout
    of_table, of_frame = (
        shardprep.report(data, predictions=one) for one in (f"csv:{table}", pd.read_csv(table))
    )
    assert of_frame.facts() == of_table.facts()
    page = (tmp_path / "p.html").read_bytes()
    shown = checked(page).text.partition("probably wrong")[2].partition("Quality")[0]
    assert f"P{used}." in shown
    section = page.partition(b'id="wrong-labels"')[2].partition(b"</section>")[0]
    assert section.count(b"<img ") == len(WRONG)
    assert "cat → dog · 0.05" in shown
    assert b"label is probably wrong" not in page, "it is found"
    assert str(table.parent) not in page.decode()

    listed = run("report", data, "--predictions", "csv:oof.csv", "--list", "wrong-labels",
                 cwd=tmp_path)  # fmt: skip
    rows = list(csv.reader(io.StringIO(listed.stdout)))
    assert rows[0] == ["key", "label", "given", "score"]
    keys = {i: f"{CLASSES[i % 3]}/{i}.png" for i in WRONG}
    right = {keys[i]: CLASSES[label] for i, label in WRONG.items()}
    assert {key.lstrip("'"): label.lstrip("'") for key, label, *_ in rows[1:]} == right
    assert [row[3] for row in rows[1:]] == sorted(row[3] for row in rows[1:])

    (tmp_path / "wrong-labels.csv").write_text(listed.stdout)
    made: dict[str, Any] = {"cwd": tmp_path}
    build = ("build", folder / "any.zip", "--size", "32x32", "--name", "pets", "--out", "new")
    done = ran(*build, "--relabel", "csv:wrong-labels.csv", **made)
    assert "--relabel: 3 rows of wrong-labels.csv, 3 labels changed" in done.stdout + done.stderr
    fixed = labels_of(tmp_path / "new/pets/1.0.0")
    assert fixed == labels_of(data) | right
    anew = ("report", "new/pets", "--predictions", "csv:oof.csv")
    assert run(*anew, "--list", "wrong-labels", **made).stdout == "key,label,given,score\n"
    run(*anew, "--no-pixels", "-o", "q.html", **made)
    assert b"label is probably wrong" in (tmp_path / "q.html").read_bytes(), "looked for"

    ran(*build, "--exclude-list", "wrong-labels.csv", "--version", "1.0.1", **made)
    assert labels_of(tmp_path / "new/pets/1.0.1").keys() == fixed.keys() - right.keys()


@pytest.mark.parametrize(
    ("rule", "table", "line"),
    [
        ("folder", "", "--predictions: 'folder' names no table"),
        ("csv:no.csv", "", "no.csv: no such label table"),
        ("csv:t.csv", "key,cat,dog\ncat/1.png,0.4,0.6\n", "t.csv: has no column '=fox'; use"),
        ("csv:t.csv:key:a,b", "key,a,b\ncat/1.png,0.4,0.6\n", "2 columns of t.csv for 3 classes"),
        ("csv:t.csv:key:*", "key,a,b,c\ncat/1.png,4,-6,1\n", "no prediction is valid for 31"),
        ("csv:t.csv:key:a,b,c", "key,a,b,c\n", "31 labelled images; use keys such"),
    ],
)  # fmt: skip
def test_predictions_that_cannot_be_used_are_an_error_of_one_line(
    folder: Path, tmp_path: Path, rule: str, table: str, line: str
) -> None:
    (tmp_path / "t.csv").write_text(table)
    done = run("report", folder / "out", "--predictions", rule, "--list", "wrong-labels",
               cwd=tmp_path)  # fmt: skip
    assert line in error_of(done, done.returncode)


def test_the_list_and_the_option_name_what_they_need(folder: Path, tmp_path: Path) -> None:
    done = run("report", folder / "out", "--list", "wrong-labels", cwd=tmp_path)
    assert "'wrong-labels' needs predictions of a model; add --predictions" in error_of(done, 2)
    path = packed(tmp_path, {"a.png": file(photo(1), "PNG")}, size="32x32", labels="none")
    done = run("report", path, "--predictions", "csv:t.csv", cwd=tmp_path)
    assert "does not have one class for each image" in error_of(done, 2)
