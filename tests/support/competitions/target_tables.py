"""Label tables of several targets, in small, with a reading of them by the `csv` module.

Each has the columns and oddities of the real set, a row without an image, an empty cell, and a row
that is there twice.
"""

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.builders import png
from tests.support.competitions.twin import Values, f32, table

Rows = list[list[Any]]


@dataclass(frozen=True, slots=True)
class TargetTable:
    """The images and the label table of a competition."""

    keys: list[str]
    table: tuple[str, Rows]
    flags: Mapping[str, Any]
    expected: Callable[[dict[str, list[dict[str, str]]]], Values]
    """Reads the rows of each image independently."""
    others: Mapping[str, Rows] = field(default_factory=dict)
    unlabelled: tuple[str, ...] = ()
    rows_without_image: int = 1
    proposal: str = ""
    """The flags that `auto` proposes."""

    def members(self) -> dict[str, bytes]:
        tables = {self.table[0]: self.table[1], **self.others}
        files = {name: table(rows) for name, rows in tables.items()}
        return files | {key: png(8, 8, i) for i, key in enumerate(self.keys)}

    def rows_of_images(self) -> dict[str, list[dict[str, str]]]:
        """Return the rows of each image, matched by the end of its path without the suffix."""
        header, *rows = list(csv.reader(io.StringIO(table(self.table[1]).decode())))
        by_image: dict[str, list[dict[str, str]]] = {key: [] for key in self.keys}
        stems = {key.rpartition("/")[2].rpartition(".")[0]: key for key in self.keys}
        column = header.index(self.flags["labels"].split(":")[2])
        for row in rows:
            stem = row[column].rpartition("/")[2].rpartition(".")[0] or row[column]
            if stem in stems:
                by_image[stems[stem]].append(dict(zip(header, row, strict=True)))
        return by_image


BIOMASS = ("Dry_Clover_g", "Dry_Dead_g", "Dry_Green_g", "Dry_Total_g", "GDM_g")
PLANTS = ("X4_mean", "X11_mean", "X18_mean", "X26_mean", "X50_mean", "X3112_mean")
VOTES = tuple(f"{name}_vote" for name in ("seizure", "lpd", "gpd", "lrda", "grda", "other"))
GRAPHEME = ("grapheme_root", "vowel_diacritic", "consonant_diacritic")
N = 24


def _biomass() -> TargetTable:
    rows: Rows = [["sample_id", "image_path", "Sampling_Date", "State", "Species", "Pre_GSHH_NDVI",
                   "Height_Ave_cm", "target_name", "target"]]  # fmt: skip
    for i in range(N + 1):  # the last has no image
        for j, name in enumerate(reversed(BIOMASS)):
            value = "" if (i, name) == (3, "Dry_Dead_g") else f"{i * 1.7 + j / 3:.4f}"
            state = ("Tas", "NSW", "WA", "Vic")[i % 4]
            rows.append([f"ID{i}__{name}", f"train/ID{i}.jpg", f"2015/9/{i // 3}", state,
                         "Ryegrass_Clover", 0.62, 4.6667, name, value])  # fmt: skip
    rows.append(rows[7])

    def expected(by_image: dict[str, list[dict[str, str]]]) -> Values:
        values = {}
        for key, own in by_image.items():
            cells = {row["target_name"]: row["target"] for row in own}
            values[key] = {"targets": [f32(cells[name]) for name in BIOMASS]}
        return values

    return TargetTable(
        [f"train/ID{i}.jpg" for i in range(N)], ("train.csv", rows),
        {"labels": "csv:train.csv:image_path:target", "pivot": "target_name", "group": "State",
         "split": "validation=0.25"},
        expected,
        {"test.csv": [["sample_id", "image_path", "target_name"],
                      ["ID9__GDM_g", "test/ID9.jpg", "GDM_g"]],
         "sample_submission.csv": [["sample_id", "target"], ["ID9__GDM_g", 0.0]]},
        proposal="--labels csv:train.csv:image_path:target --pivot target_name",
        rows_without_image=5,
    )  # fmt: skip


def _plants() -> TargetTable:
    further = ("WORLDCLIM_BIO1_annual", "WORLDCLIM_BIO12_annual")
    spread = [name.replace("mean", "sd") for name in PLANTS]
    rows: Rows = [["id", *further, *PLANTS, *spread]]
    for i in range(N + 1):
        means = [f"{i * 0.37 + j:.3f}" for j in range(6)]
        means[2] = "" if i == 5 else means[2]
        rows.append([500 + i, i / 7, i / 11, *means, *(f"{i / 9:.3f}" for _ in spread)])
    rows.append(rows[1])

    def expected(by_image: dict[str, list[dict[str, str]]]) -> Values:
        pick = {key: [f32(own[0][name]) for name in PLANTS] for key, own in by_image.items()}
        return {key: {"targets": numbers} for key, numbers in pick.items()}

    return TargetTable(
        [f"train_images/{500 + i}.jpeg" for i in range(N)], ("train.csv", rows),
        {"labels": f"csv:train.csv:id:{','.join(PLANTS)}"}, expected,
        {"sample_submission.csv": [["id", *PLANTS], [9, 1, 2, 3, 4, 5, 6]]},
        proposal=f"--labels csv:train.csv:id:{','.join(PLANTS)}",
    )  # fmt: skip


def _brain() -> TargetTable:
    rows: Rows = [["eeg_id", "patient_id", "expert_consensus", *VOTES]]
    for i in range(N + 1):
        votes = [(i * (j + 2)) % 5 for j in range(6)] if i != 4 else [0] * 6
        cells = ["" if (i, j) == (6, 1) else votes[j] for j in range(6)]
        rows.append([1000 + i, i // 3, "Seizure", *cells])
    rows.append(rows[2])

    def expected(by_image: dict[str, list[dict[str, str]]]) -> Values:
        values = {}
        for key, own in by_image.items():
            votes = [own[0][name] for name in VOTES]
            total = sum(int(vote or 0) for vote in votes)
            if total and "" not in votes:
                values[key] = {"targets": [f32(str(int(vote) / total)) for vote in votes]}
        return values

    return TargetTable(
        [f"spectrograms/{1000 + i}.png" for i in range(N)], ("train.csv", rows),
        {"labels": f"csv:train.csv:eeg_id:{','.join(VOTES)}", "target": "soft"}, expected,
        unlabelled=("spectrograms/1000.png", "spectrograms/1004.png", "spectrograms/1005.png",
                    "spectrograms/1006.png", "spectrograms/1010.png", "spectrograms/1015.png",
                    "spectrograms/1020.png"),
        proposal=f"--labels csv:train.csv:eeg_id:{','.join(VOTES)} --target soft",
    )  # fmt: skip


def _graphemes() -> TargetTable:
    rows: Rows = [["image_id", *GRAPHEME, "grapheme"]]
    for i in range(N + 1):  # root 11 is the class of a row without an image
        rows.append(
            [f"Train_{i}", 11 if i == N else i % 9, "" if i == 4 else i % 3, i % 2 * 5, f"g{i}"]
        )
    rows.append(rows[2])
    known: dict[str, list[int]] = {
        GRAPHEME[0]: [*range(9), 11], GRAPHEME[1]: [0, 1, 2], GRAPHEME[2]: [0, 5]
    }  # fmt: skip

    def expected(by_image: dict[str, list[dict[str, str]]]) -> Values:
        def label(name: str, cell: str) -> list[int]:
            return [known[name].index(int(cell)) if cell else -1]

        return {
            key: {f"label/{name}": label(name, own[0][name]) for name in GRAPHEME}
            for key, own in by_image.items()
        }

    return TargetTable(
        [f"images/Train_{i}.png" for i in range(N)], ("train.csv", rows),
        {"labels": f"csv:train.csv:image_id:{','.join(GRAPHEME)}", "target": "classes",
         "split": "validation=0.25"},
        expected, proposal=f"--labels csv:train.csv:image_id:{','.join(GRAPHEME)} --target classes",
    )  # fmt: skip


def _poses() -> TargetTable:
    rows: Rows = [["dataset", "image", "rotation_matrix", "translation_vector"]]
    for i in range(N + 1):
        turn = ";".join("nan" if i == 2 else f"{i / 3 + k:.5f}" for k in range(9))
        rows.append(["heritage", f"img{i}.png", turn, f"{i / 7};0.5;-1e-3"])
    rows.append(rows[5])

    def expected(by_image: dict[str, list[dict[str, str]]]) -> Values:
        def numbers(row: dict[str, str]) -> list[float]:
            return [f32(one) for name in rows[0][2:] for one in row[name].split(";")]

        return {key: {"targets": numbers(own[0])} for key, own in by_image.items()}

    labels = "csv:train_labels.csv:image:rotation_matrix,translation_vector"
    keys = [f"train/heritage/img{i}.png" for i in range(N)]
    return TargetTable(keys, ("train_labels.csv", rows), {"labels": labels}, expected)


def _faces() -> TargetTable:
    rows: Rows = [["file", "age", "gender", "race"]]
    for i in range(N + 1):
        age = "" if i == 7 else i * 2.5
        rows.append(
            [f"{i}.jpg", age, "fm"[i % 2], "" if i == 7 else ("asian", "black", "white")[i % 3]]
        )
    rows.append(rows[3])

    def expected(by_image: dict[str, list[dict[str, str]]]) -> Values:
        races = ["", "asian", "black", "white"]
        return {
            key: {
                "targets": [f32(own[0]["age"])],
                "label/gender": ["fm".index(own[0]["gender"])],
                "label/race": [races.index(own[0]["race"]) - 1],
            }
            for key, own in by_image.items()
        }

    flags = {"labels": "csv:faces.csv:file:age,gender,race"}
    return TargetTable([f"faces/{i}.jpg" for i in range(N)], ("faces.csv", rows), flags, expected)


def _captions() -> TargetTable:
    rows: Rows = [["image", "caption"]]
    for i in range(N + 1):
        texts = [f"A dog , number {i} , runs {k} times ." for k in range(2 if i == 5 else 5)]
        rows += [[f"{i}_x.jpg", text] for text in texts]
    rows += [rows[3], ["6_x.jpg", ""]]

    def expected(by_image: dict[str, list[dict[str, str]]]) -> Values:
        return {
            key: {"texts": [row["caption"].encode() for row in own if row["caption"]]}
            for key, own in by_image.items()
        }

    return TargetTable(
        [f"Images/{i}_x.jpg" for i in range(N)], ("captions.csv", rows),
        {"labels": "csv:captions.csv:image:caption", "target": "texts"}, expected,
        proposal="--labels csv:captions.csv:image:caption --target texts", rows_without_image=5,
    )  # fmt: skip


TWINS = {
    "biomass": _biomass(), "plants": _plants(), "brain": _brain(), "graphemes": _graphemes(),
    "poses": _poses(), "faces": _faces(), "captions": _captions(),
}  # fmt: skip
