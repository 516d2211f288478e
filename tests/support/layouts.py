"""Real Kaggle layouts in small: an archive of that shape, the flags for it, and what must come out.

`python -m tests.support.layouts` writes the table of docs/kaggle.md; `test_layouts` builds every
one and compares the table.
"""

from __future__ import annotations

import io
import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from tests.support.builders import encoded, tar_bytes, write, write_folder, zip_bytes
from tests.support.dicom import dicom

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PAGE = Path(__file__).parents[2] / "docs" / "kaggle.md"
START, END = "<!-- layouts -->\n", "<!-- end of layouts -->\n"

Members = dict[str, bytes]
_FORMS = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "tif": "TIFF", "gif": "GIF"}
_SHOWN_CLASSES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One data set that works with flags alone."""

    row: int
    name: str
    special: str
    """Its peculiarity, for the table."""
    members: Callable[[], Members]
    """Return the members of the source."""
    source: str = ""
    """Its name, by default a zip called as the data set; with a final "/" a folder."""
    beside: Callable[[], Members] = dict
    """Files beside the source that the flags name."""
    flags: str = ""
    """As typed in a shell after `shardprep build SOURCE`."""
    kind: str = "class"
    meaning: str = ""
    """Meaning of a number or a text."""
    splits: Mapping[str, int]
    """Records of each split."""
    unlabelled: tuple[str, ...] = ()
    """Splits without a single target."""
    classes: tuple[str, ...] = ()
    """All of them, in label order."""
    objects: Mapping[str, int] = field(default_factory=dict)
    """Class of objects or masks → number of objects, 0 where masks do not tell it unread."""
    num_masks: int = 0
    """Mask files of all images."""
    stored: str = ""
    """Annotations that are stored beside images and targets: boxes, masks."""
    targets: Mapping[str, object]
    """Key → class name, names, number or text; None for no target."""
    features: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Key → further features of its record."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    rejected: Mapping[str, int] = field(default_factory=dict)
    rows_without_image: int = 0
    missing: str = ""
    """Parts of the data set that are not stored."""
    needs: str = ""
    """A module without which the source cannot be read."""

    @property
    def id(self) -> str:
        """Return the name of its test."""
        return f"{self.row:02d}-{self.name.split(' (')[0].replace(' ', '-')}"

    @property
    def result(self) -> str:
        """Return target, records and annotations, for the table."""
        parts = [self._target()]
        for split, number in self.splits.items():
            alone = split in self.unlabelled and self.kind != "none"
            parts.append(f"{split} {number}" + (" without target" if alone else ""))
        if self.rejected:
            parts.append(f"{sum(self.rejected.values())} rejected")
        if "no label" in self.skipped:
            parts.append(f"{self.skipped['no label']} skipped for want of a label")
        if lost := sum(self.skipped.get(f"no {what}", 0) for what in ("annotation", "mask")):
            parts.append(f"{lost} skipped for want of an annotation")
        return "; ".join(parts) + (f". Not stored: {self.missing}" if self.missing else "")

    def _target(self) -> str:
        if self.stored:
            names = ", ".join(self.objects)
            target = "" if self.kind == "none" else f", and {self._target_alone()}"
            return f"{self.stored} of {names}{target}"
        return self._target_alone()

    def _target_alone(self) -> str:
        if self.kind == "none":
            return "images alone"
        if not self.classes:
            return f"a {'number' if self.kind == 'regression' else 'text'}: {self.meaning}"
        shown = ", ".join(self.classes[:_SHOWN_CLASSES])
        more = ", …" if len(self.classes) > _SHOWN_CLASSES else ""
        number = "one" if self.kind == "class" else "any"
        return f"{number} of {len(self.classes)} classes ({shown}{more})"


@dataclass(frozen=True, slots=True)
class Outside:
    """One data set for which shardprep is not the tool, or not alone."""

    row: int
    name: str
    special: str
    instead: str


def images(*names: str, mode: str = "RGB") -> Members:
    """Return an image under each name, of the format that its suffix says, no two alike."""
    members = {}
    for name in names:
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        noise = Image.fromarray(rng.integers(0, 256, (10, 12, 3), np.uint8))
        if mode == "I;16":
            noise = Image.fromarray(rng.integers(0, 1 << 12, (10, 12), np.uint16))
        elif mode != "RGB":
            noise = noise.convert(mode)
        suffix = name.rpartition(".")[2].lower()
        is_dicom = suffix in ("dcm", "dicom")
        data = dicom(np.asarray(noise)) if is_dicom else encoded(noise, _FORMS[suffix])
        members[name] = data
    return members


def numbered(pattern: str, *numbers: int) -> Members:
    """Return an image for each number in a name."""
    return images(*(pattern.format(number) for number in numbers))


def text(*lines: str, encoding: str = "utf-8") -> bytes:
    """Return the lines of a file."""
    return "".join(f"{line}\n" for line in lines).encode(encoding)


def rows_of(header: str, row: str, *cells: object) -> bytes:
    """Return a CSV with a row for each cell, or for each tuple of them."""
    return text(header, *(row.format(*(c if isinstance(c, tuple) else (c,))) for c in cells))


def sevenzip_bytes(members: Mapping[str, bytes]) -> bytes:
    """Return a 7z with the members."""
    import py7zr

    out = io.BytesIO()
    with py7zr.SevenZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(data, name)
    return out.getvalue()


def parts_of(name: str, data: bytes, number: int) -> Members:
    """Return the parts of a split archive: name.001, name.002 and so on."""
    size = -(-len(data) // number)
    return {f"{name}.{i + 1:03d}": data[i * size : (i + 1) * size] for i in range(number)}


def write_source(layout: Layout, folder: Path) -> str:
    """Write the source of a layout and the files beside it; return what to call it."""
    members = layout.members()
    write_folder(folder, layout.beside())
    source = layout.source or f"{layout.name}.zip"
    if source.endswith("/"):
        write_folder(folder / source, members)
    else:
        write(folder / source, zip_bytes(members))
    return source.rstrip("/")


SAMPLE = "sample_submission.csv"


def _dogs_vs_cats() -> Members:
    return {
        SAMPLE: rows_of("id,label", "{},0.5", 1, 2, 3),
        "train.zip": zip_bytes(
            {**numbered("train/cat.{}.jpg", *range(6)), **numbered("train/dog.{}.jpg", *range(6))}
        ),
        "test.zip": zip_bytes(numbered("test/{}.jpg", 1, 2, 3)),
    }


def _pet_images() -> Members:
    cats, dogs = (numbered(f"PetImages/{name}/{{}}.jpg", *range(20)) for name in ("Cat", "Dog"))
    whole = dogs["PetImages/Dog/7.jpg"]
    return {
        "readme[1].txt": b"hello",
        "CDLA-Permissive-2.0.pdf": b"%PDF-1.4",
        **cats,
        **dogs,
        "PetImages/Cat/3.jpg": cats["PetImages/Cat/3.jpg"] + b"trailing bytes",
        "PetImages/Cat/666.jpg": b"",
        "PetImages/Cat/Thumbs.db": b"\xd0\xcf\x11\xe0",
        "PetImages/Dog/11702.jpg": whole[:-30],
        "PetImages/Dog/Thumbs.db": b"\xd0\xcf\x11\xe0",
    }


def _histopathologic_cancer() -> Members:
    ids = [f"{i:02x}c6e9b7" for i in range(6)]
    return {
        SAMPLE: rows_of("id,label", "{},0", "aa", "bb"),
        **images(*(f"train/{name}.tif" for name in ids), "test/aa.tif", "test/bb.tif"),
        "train_labels.csv": text("id,label", *(f"{name},{i % 2}" for i, name in enumerate(ids))),
    }


def _aerial_cactus() -> Members:
    ids = [f"{i:04x}d3a8f2.jpg" for i in range(6)]
    return {
        SAMPLE: rows_of("id,has_cactus", "{},0.5", "09034a34.jpg"),
        "test.zip": zip_bytes(images("test/09034a34.jpg")),
        "train.csv": text("id,has_cactus", *(f"{name},{i // 4}" for i, name in enumerate(ids))),
        "train.zip": zip_bytes(images(*(f"train/{name}" for name in ids))),
    }


def _dog_breed() -> Members:
    breeds = ("boston_bull", "dingo", "pekinese")
    return {
        "labels.csv": rows_of("id,breed", "{:032x},{}", *((i, breeds[i % 3]) for i in range(9))),
        SAMPLE: text("id,boston_bull,dingo,pekinese", f"{99:032x},0.3,0.3,0.3"),
        **numbered("train/{:032x}.jpg", *range(9)),
        **numbered("test/{:032x}.jpg", 99),
    }


def _plant_seedlings() -> Members:
    names = ("Black-grass", "Shepherds Purse", "Small-flowered Cranesbill")
    return {
        SAMPLE: rows_of("file,species", "{}.png,Sugar beet", "0021e90e4", "003d61042"),
        **images("test/0021e90e4.png", "test/003d61042.png"),
        **images(*(f"train/{name}/{i:09x}.png" for name in names for i in range(3))),
    }


def _cifar10() -> Members:
    names = ("frog", "truck", "truck", "deer", "frog", "deer")
    return {
        "sampleSubmission.csv": rows_of("id,label", "{},cat", *range(1, 5)),
        "test.7z": sevenzip_bytes(numbered("test/{}.png", *range(1, 5))),
        "train.7z": sevenzip_bytes(numbered("train/{}.png", *range(1, 7))),
        "trainLabels.csv": rows_of("id,label", "{},{}", *enumerate(names, 1)),
    }


def _planet_amazon() -> Members:
    tags = ("haze primary", "agriculture clear primary water", "clear primary", "haze water")
    jpg, tif = numbered("train-jpg/train_{}.jpg", *range(4)), "train-tif-v2/train_0.tif"
    table = rows_of("image_name,tags", "train_{},{}", *enumerate(tags))
    sample = rows_of("image_name,tags", "test_{},primary clear", 0, 1)
    test = numbered("test-jpg/test_{}.jpg", 0, 1)
    return {
        f"{SAMPLE}.zip": zip_bytes({SAMPLE: sample}),
        "test-jpg.tar.7z": sevenzip_bytes({"test-jpg.tar": tar_bytes(test)}),
        "train-jpg.tar.7z": sevenzip_bytes({"train-jpg.tar": tar_bytes(jpg)}),
        "train-tif-v2.tar.7z": sevenzip_bytes(
            {"train-tif-v2.tar": tar_bytes(images(tif, mode="RGBA"))}
        ),
        "train_v2.csv.zip": zip_bytes(
            {"train_v2.csv": table, "__MACOSX/._train_v2.csv": b"\0\5\x16\7"}
        ),
    }


def _eyes(pattern: str, *patients: int) -> Members:
    sides = ("left", "right")
    return images(*(pattern.format(f"{patient}_{side}") for patient in patients for side in sides))


def _diabetic_retinopathy() -> Members:
    table = text("image,level", *(f"{p}_{s},{p % 2}" for p in range(10, 18) for s in _SIDES))
    return {
        **parts_of("train.zip", zip_bytes(_eyes("train/{}.jpeg", *range(10, 18))), 5),
        **parts_of("test.zip", zip_bytes(_eyes("test/{}.jpeg", 1, 2)), 7),
        "trainLabels.csv.zip": zip_bytes({"trainLabels.csv": table}),
        "sampleSubmission.csv.zip": zip_bytes(
            {"sampleSubmission.csv": rows_of("image,level", "{},0", "1_left", "1_right")}
        ),
    }


_SIDES = ("left", "right")


def _diabetic_retinopathy_solution() -> Members:
    usage = {1: "Private", 2: "Public"}
    rows = [f"{p}_{s},{p % 2},{usage[p]}" for p in usage for s in _SIDES]
    return {"retinopathy_solution.csv": text("image,level,Usage", *rows)}


def _aptos2019() -> Members:
    return {
        SAMPLE: rows_of("id_code,diagnosis", "{:012x},0", 90, 91),
        "test.csv": rows_of("id_code", "{:012x}", 90, 91),
        **numbered("test_images/{:012x}.png", 90, 91),
        "train.csv": rows_of("id_code,diagnosis", "{:012x},{}", *((i, i % 5) for i in range(10))),
        **numbered("train_images/{:012x}.png", *range(10)),
    }


def _siim_isic() -> Members:
    patients = [("IP_0", "male", "45.0"), ("IP_1", "", ""), ("IP_2", "female", "50.0")]
    patients.append(("IP_3", "male", "70.0"))
    rows = [
        f"ISIC_{i:07d},{','.join(patients[i // 2])},torso,unknown,benign,{i % 2}" for i in range(8)
    ]
    columns = "image_name,patient_id,sex,age_approx,site,diagnosis,benign_malignant,target"
    return {
        **images(*(f"jpeg/train/ISIC_{i:07d}.jpg" for i in range(8)), "jpeg/test/ISIC_0052060.jpg"),
        **images(*(f"train/ISIC_{i:07d}.dcm" for i in range(8)), "test/ISIC_0052060.dcm"),
        "test.csv": text("image_name,patient_id,sex,age_approx", "ISIC_0052060,IP_9,male,70.0"),
        "tfrecords/train00-2071.tfrec": b"\x10\0\0\0\0\0\0\0",
        "train.csv": text(columns, *rows),
    }


_RANZCR = (
    "ETT - Abnormal", "ETT - Borderline", "ETT - Normal", "NGT - Abnormal", "NGT - Borderline",
    "NGT - Incompletely Imaged", "NGT - Normal", "CVC - Abnormal", "CVC - Borderline",
    "CVC - Normal", "Swan Ganz Catheter Present",
)  # fmt: skip
_UID = "1.2.826.0.1.3680043.8.498.{:08d}"


def _ranzcr_clip() -> Members:
    found = [(i // 2 % 2, 9 + i % 2) for i in range(16)]
    rows = [
        f"{_UID.format(i)},{','.join(str(int(j in found[i])) for j in range(11))},p{i // 2}"
        for i in range(16)
    ]
    return {
        **images(
            *(f"train/{_UID.format(i)}.jpg" for i in range(16)), f"test/{_UID.format(99)}.jpg"
        ),
        SAMPLE: text(f"StudyInstanceUID,{','.join(_RANZCR)}", _UID.format(99) + ",0" * 11),
        "train.csv": text(f"StudyInstanceUID,{','.join(_RANZCR)},PatientID", *rows),
        "train_annotations.csv": text(
            "StudyInstanceUID,label,data",
            f'{_UID.format(1)},CVC - Normal,"[[1487, 1279], [1477, 1168]]"',
            f'{_UID.format(1)},ETT - Borderline,"[[1328, 7], [1347, 101]]"',
        ),
        "train_tfrecords/00-1881.tfrec": b"\x10\0\0\0\0\0\0\0",
    }


def _plant_pathology_2020() -> Members:
    columns = "image_id,healthy,multiple_diseases,rust,scab"
    hot = ("1,0,0,0", "0,1,0,0", "0,0,1,0", "0,0,0,1")
    return {
        **numbered("images/Train_{}.jpg", *range(8)),
        **numbered("images/Test_{}.jpg", *range(4)),
        SAMPLE: rows_of(columns, "Test_{},0.25,0.25,0.25,0.25", *range(4)),
        "test.csv": rows_of("image_id", "Test_{}", *range(4)),
        "train.csv": rows_of(columns, "Train_{},{}", *((i, hot[i % 4]) for i in range(8))),
    }


def _plant_pathology_2021() -> Members:
    cells = ("healthy", "scab frog_eye_leaf_spot", "rust frog_eye_leaf_spot", "rust scab", "rust")
    return {
        SAMPLE: rows_of("image,labels", "{}.jpg,healthy", "85f8cb619c66b863"),
        **images("test_images/85f8cb619c66b863.jpg"),
        "train.csv": rows_of("image,labels", "{:016x}.jpg,{}", *enumerate(cells * 2)),
        **numbered("train_images/{:016x}.jpg", *range(10)),
    }


def _imet_2020() -> Members:
    cells = ("448 2429", "2429", "7 448", "7")
    return {
        "labels.csv": text(
            "attribute_id,attribute_name", "7,country::france", "448,culture::aachen",
            "2429,tags::men", '2430,"medium::oil, canvas"',
        ),
        **numbered("train/{:032x}.png", *range(4)),
        "train.csv": rows_of("id,attribute_ids", "{:032x},{}", *enumerate(cells)),
    }  # fmt: skip


def _cassava() -> Members:
    same = images("train_images/1000015157.jpg")
    return {
        "label_num_to_disease_map.json": text(
            '{"0": "Cassava Bacterial Blight (CBB)", "1": "Cassava Green Mottle (CGM)",',
            ' "4": "Healthy"}',
        ),
        SAMPLE: text("image_id,label", "2216849948.jpg,4"),
        **images("test_images/2216849948.jpg"),
        "train.csv": rows_of(
            "image_id,label", "{}.jpg,{}",
            (1000015157, 0), (1000201771, 4), (100042118, 1), (1000723321, 1), (1000812911, 0),
            (1000910826, 1), (1001320321, 4), (1001723730, 0),
        ),
        **same,
        **numbered("train_images/{}.jpg", 1000201771, 100042118, 1000723321),
        **numbered("train_images/{}.jpg", 1000910826, 1001320321, 1001723730),
        "train_images/1000812911.jpg": same["train_images/1000015157.jpg"],
        "train_tfrecords/ld_train00-1338.tfrec": b"\x10\0\0\0\0\0\0\0",
    }  # fmt: skip


def _herbarium_2022() -> Members:
    return {
        SAMPLE: rows_of("Id,Predicted", "{},42", 0, 1),
        **numbered("test_images/000/test-{:06d}.jpg", 0, 1),
        "test_metadata.json": b"[]",
        **numbered("train_images/000/03/00003__{:03d}.jpg", *range(1, 4)),
        **numbered("train_images/155/04/15504__{:03d}.jpg", *range(1, 4)),
        "train_metadata.json": b'{"annotations": [], "images": []}',
    }


def _herbarium_2021() -> Members:
    return {
        **numbered("test/images/000/{}.jpg", 0, 1),
        "test/metadata.json": b"{}",
        **numbered("train/images/000/03/{}.jpg", 1814367, 1814368),
        **numbered("train/images/604/92/{}.jpg", 1000, 1001),
        "train/metadata.json": b"{}",
    }


def _iwildcam_2019() -> Members:
    rows = [f"{19 * (i % 2)},2011,{i:08x}.jpg,{i:08x},{100 + i // 2},5998cfa4" for i in range(8)]
    columns = "category_id,date_captured,file_name,id,location,seq_id"
    return {
        SAMPLE: rows_of("Id,Predicted", "{:08x},0", 90, 91),
        "test.csv": rows_of(columns.partition(",")[2], "2012,{0:08x}.jpg,{0:08x},33,6f", 90, 91),
        "test_images.zip": zip_bytes(numbered("{:08x}.jpg", 90, 91)),
        "train.csv": text(columns, *rows),
        "train_images.zip": zip_bytes(numbered("{:08x}.jpg", *range(8))),
    }


def _inaturalist_2019() -> Members:
    train = {
        **numbered("train_val2019/Plants/400/{:032x}.jpg", *range(4)),
        **numbered("train_val2019/Birds/1003/{:032x}.jpg", *range(4, 8)),
    }
    return {
        "kaggle_sample_submission.csv": rows_of("id,predicted", "{},0", 268243),
        "test2019.json": b'{"images": []}',
        "test2019.tar.gz": tar_bytes(numbered("test2019/{:032x}.jpg", 90, 91), "gz"),
        "train2019.json": b'{"annotations": []}',
        "train_val2019.tar.gz": tar_bytes(train, "gz"),
        "val2019.json": b'{"annotations": []}',
    }


def _hotel_id() -> Members:
    return {
        SAMPLE: text("image,hotel_id", "99e91ad5f2870678.jpg,36363"),
        **images("test_images/99e91ad5f2870678.jpg"),
        "train.csv": text(
            "image,chain,hotel_id,timestamp",
            "aa.jpg,0,36363,2018-10-21 06:05:55",
            "bb.jpg,0,53586,2018-10-21 06:05:55",
            "aa.jpg,87,53586,2016-07-21 05:09:46",
            "cc.jpg,87,36363,2016-07-21 05:09:46",
        ),
        **images(*(f"train_images/{name}.jpg" for name in ("0/aa", "0/bb", "87/aa", "87/cc"))),
    }


def _paddy_disease() -> Members:
    rows = [f"{100330 + i}.jpg,{('blast', 'normal')[i // 3]},ADT45,{45 + i}" for i in range(6)]
    return {
        SAMPLE: rows_of("image_id,label", "{}.jpg,", 200001, 200002),
        **numbered("test_images/{}.jpg", 200001, 200002),
        "train.csv": text("image_id,label,variety,age", *rows),
        **numbered("train_images/blast/{}.jpg", 100330, 100331, 100332),
        **numbered("train_images/normal/{}.jpg", 100333, 100334, 100335),
    }


_INCHI = "InChI=1S/C13H20OS/c1-9(2)8-15-13-6-5-10(3)7-12(13)11(4)14/h5-7,9,11,14H,8H2,1-4H3"


def _bms_molecular() -> Members:
    return {
        "extra_approved_InChIs.csv": text("InChI", f'"{_INCHI}"'),
        SAMPLE: rows_of("image_id,InChI", "{},InChI=1S/H2O/h1H2", "00000d2a601c"),
        **images("test/0/0/0/00000d2a601c.png"),
        **images("train/0/0/0/000011a64c74.png", "train/d/3/f/d3f123456789.png"),
        "train_labels.csv": text(
            "image_id,InChI", f'000011a64c74,"{_INCHI}"', "d3f123456789,InChI=1S/H2O/h1H2"
        ),
    }


def _google_landmark() -> Members:
    ids = ["17660ef415d37059", "92b6290d571448f6", "cd41bf948edc0340", "fb09f1e98c6d2f70"]
    places = [f"{name[0]}/{name[1]}/{name[2]}/{name}.jpg" for name in ids]
    return {
        SAMPLE: text("id,landmarks", "00084cdf8f600d00,138982 1.0"),
        **images("test/0/0/0/00084cdf8f600d00.jpg"),
        **images(*(f"train/{place}" for place in places)),
        "train.csv": rows_of(
            "id,landmark_id", "{},{}", *zip(ids, (1, 203092, 1, 203092), strict=True)
        ),
        "train_label_to_category.csv": text(
            "landmark_id,category", "1,Château d'If", "203092,Happy Valley", encoding="latin-1"
        ),
    }


def _alaska2() -> Members:
    folders = ("Cover", "JMiPOD", "JUNIWARD", "UERD")
    return {
        **images(*(f"{folder}/{i:05d}.jpg" for folder in folders for i in range(1, 5))),
        SAMPLE: rows_of("Id,Label", "{}.jpg,0.5", "0001", "0002"),
        **images("Test/0001.jpg", "Test/0002.jpg"),
    }


def _global_wheat() -> Members:
    row = '{},12,10,"[{}]",{}'
    rows = [
        ("b6ab77fd7", "8.0, 2.0, 4.0, 3.0", "usask_1"),
        ("b6ab77fd7", "6.0, 5.0, 3.0, 4.0", "usask_1"),
        ("00333207f", "7.0, 6.0, 5.0, 4.0", "arvalis_1"),
    ]
    return {
        SAMPLE: text("image_id,PredictionString", "aac893a91,1.0 0 0 50 50"),
        **images("test/aac893a91.jpg"),
        "train.csv": rows_of("image_id,width,height,bbox,source", row, *rows),
        **images("train/b6ab77fd7.jpg", "train/00333207f.jpg", "train/f1794c924.jpg"),
    }


def _kuzushiji() -> Members:
    return {
        SAMPLE: text("image_id,labels", "test_0,U+003F 1 1"),
        "test_images.zip": zip_bytes(images("test_0.jpg")),
        "train.csv": text(
            "image_id,labels",
            "100241706_00004_2,U+306F 7 3 4 2 U+304C 6 5 3 3",
            "brsk001-010,U+5FA1 8 6 3 4",
            "hnsd006-001,",
        ),
        "train_images.zip": zip_bytes(
            images("100241706_00004_2.jpg", "brsk001-010.jpg", "hnsd006-001.jpg")
        ),
        "unicode_translation.csv": text("Unicode,char", "U+306F,は", "U+304C,が", "U+5FA1,御"),
    }


def _airbus() -> Members:
    train = numbered("train_v2/{:09x}.jpg", *range(1, 5))
    return {
        "sample_submission_v2.csv": text("ImageId,EncodedPixels", "00002bd58.jpg,"),
        **images("test_v2/00002bd58.jpg"),
        "train_ship_segmentations_v2.csv": text(
            "ImageId,EncodedPixels", "000000001.jpg,", "000000002.jpg,2 4 12 4",
            "000000002.jpg,73 5 83 5", "6384c3e78.jpg,", "000000003.jpg,", "000000004.jpg,",
        ),
        **train,
        "train_v2/6384c3e78.jpg": train["train_v2/000000001.jpg"][:200],
    }  # fmt: skip


def _tgs_salt() -> Members:
    ids = ("34e51dba6a", "4875705fb0", "782ae9b7e3")
    data = {
        "depths.csv": text("id,z", "34e51dba6a,843", "4875705fb0,794", "782ae9b7e3,50", "dd,922"),
        "test/images/dd.png": images("dd.png")["dd.png"],
        "train.csv": text(
            "id,rle_mask", "34e51dba6a,6 2 104 6", "4875705fb0,1 10201", "782ae9b7e3,"
        ),
        **images(*(f"train/images/{name}.png" for name in ids)),
        **images(*(f"train/masks/{name}.png" for name in ids), mode="1"),
    }
    return {"competition_data.zip": zip_bytes(data), SAMPLE: text("id,rle_mask", "dd,1 1")}


def _carvana() -> Members:
    views = [
        f"{car}_{view:02d}" for car in ("00087a6bd4dc", "fff9b3a5373f") for view in range(1, 5)
    ]
    cars = [f"{car}_{view:02d}" for car in ("0d53224da2b7", "0cdf5b5d0ce1") for view in range(1, 5)]
    views += cars
    masks = rows_of("img,rle_mask", "{0}.jpg,879386 40 881253 141", *views)
    return {
        "metadata.csv.zip": zip_bytes(
            {"metadata.csv": text("id,year,make", "0004d4463b50,2014,a")}
        ),
        "test.zip": zip_bytes(images("test/0004d4463b50_01.jpg")),
        "train.zip": zip_bytes(images(*(f"train/{view}.jpg" for view in views))),
        "train_masks.csv.zip": zip_bytes({"train_masks.csv": masks}),
        "train_masks.zip": zip_bytes(
            images(*(f"train_masks/{view}_mask.gif" for view in views), mode="1")
        ),
    }


def _data_science_bowl() -> Members:
    nuclei = {
        **images("00ae65c1/images/00ae65c1.png", "0a7d30b2/images/0a7d30b2.png", mode="RGBA"),
        **images("00ae65c1/masks/07a9bf1d.png", "00ae65c1/masks/0e548d0a.png", mode="1"),
        **images("0a7d30b2/masks/1b44d22d.png", mode="1"),
    }
    return {
        "stage1_test.zip": zip_bytes(images("0114f484/images/0114f484.png", mode="RGBA")),
        "stage1_train.zip": zip_bytes(nuclei),
        "stage1_train_labels.csv.zip": zip_bytes(
            {"stage1_train_labels.csv": text("ImageId,EncodedPixels", "00ae65c1,6908 1")}
        ),
    }


def _uw_madison() -> Members:
    scans = [
        f"train/case{case}/case{case}_day20/scans/slice_{i:04d}_266_266_1.50_1.50.png"
        for case in (2, 7, 15, 123)
        for i in (1, 2)
    ]
    return {
        SAMPLE: text("id,class,predicted"),
        "train.csv": text(
            "id,class,segmentation", "case123_day20_slice_0001,large_bowel,",
            "case123_day20_slice_0001,stomach,28094 3 28358 7",
        ),
        **images(*scans, mode="I;16"),
    }  # fmt: skip


def _human_protein_atlas() -> Members:
    colours = ("red", "green", "blue", "yellow")
    names = [f"train/{i:08x}-bbac-11e8_{colour}.png" for i in range(4) for colour in colours]
    cells = ("16 0", "0", "7 16", "7")
    return {
        SAMPLE: text("Id,Predicted", "00000090-bbac-11e8,0"),
        **images(*(f"test/00000090-bbac-11e8_{colour}.png" for colour in colours), mode="L"),
        **images(*names, mode="L"),
        "train.csv": rows_of("Id,Target", "{:08x}-bbac-11e8,{}", *enumerate(cells)),
    }


def _pawpularity() -> Members:
    return {
        SAMPLE: text("Id, Pawpularity", "4128bae2, 68.44"),
        "test.csv": text("Id, Eyes, Face", "4128bae2, 1, 0"),
        **images("test/4128bae2.jpg"),
        "train.csv": text(
            "Id, Eyes, Face, Pawpularity", "0007de18, 1, 1, 63", "0009c66b, 0, 1, 42",
            "0013fd99, 1, 0, 28",
        ),
        **images("train/0007de18.jpg", "train/0009c66b.jpg", "train/0013fd99.jpg"),
    }  # fmt: skip


def _utkface() -> Members:
    return images(
        "UTKFace/100_0_0_20170112213500903.jpg.chip.jpg",
        "UTKFace/26_1_3_20170104230801793.jpg.chip.jpg",
        "UTKFace/1_0_2_20161219203227383.jpg.chip.jpg",
        "UTKFace/61_1_20170109142408075.jpg.chip.jpg",
        "UTKFace/39_1_20170116174525125.jpg.chip.jpg",
    )


def _celeba() -> Members:
    signs = ("1,-1,-1", "-1,-1,1", "1,-1,1", "-1,-1,-1")
    return {
        **numbered("img_align_celeba/img_align_celeba/{:06d}.jpg", *range(1, 5)),
        "list_attr_celeba.csv": rows_of(
            "image_id,5_o_Clock_Shadow,Bald,Smiling", "{:06d}.jpg,{}", *enumerate(signs, 1)
        ),
        "list_bbox_celeba.csv": rows_of("image_id,x_1,y_1", "{:06d}.jpg,95,71", *range(1, 5)),
        "list_eval_partition.csv": rows_of(
            "image_id,partition", "{:06d}.jpg,{}", (1, 0), (2, 0), (3, 1), (4, 2)
        ),
    }


def _state_farm() -> Members:
    rows = [f"p{2 + i // 4:03d},c{i % 2},img_{i}.jpg" for i in range(16)]
    return {
        "driver_imgs_list.csv": text("subject,classname,img", *rows),
        **numbered("imgs/test/img_{}.jpg", 90, 91),
        **images(*(f"imgs/train/c{i % 2}/img_{i}.jpg" for i in range(16))),
        SAMPLE: text("img,c0,c1", "img_90.jpg,0.1,0.1", "img_91.jpg,0.1,0.1"),
    }


def _nih_chest_xray() -> Members:
    header = (
        "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,"
        "View Position,OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],"
    )
    found = {
        "00000001_000": "Cardiomegaly", "00000001_001": "Cardiomegaly|Emphysema",
        "00000002_000": "No Finding", "00000003_000": "Emphysema|Hernia", "00000005_000": "Hernia",
    }  # fmt: skip
    rows = [
        f"{name}.png,{label},0,{name[4:8].lstrip('0')},057Y,M,PA,2682,2749,0.143,0.143,"
        for name, label in found.items()
    ]
    names = [f"{name}.png" for name in found]
    return {
        "BBox_List_2017.csv": text(
            "Image Index,Finding Label,Bbox [x,y,w,h],,,",
            "00000001_000.png,Cardiomegaly,1,2,3,4,,,",
        ),
        "Data_Entry_2017.csv": text(header, *rows),
        **images(*(f"images_001/images/{name}" for name in names[:3]), mode="L"),
        **images(*(f"images_002/images/{name}" for name in names[3:]), mode="RGBA"),
        "test_list.txt": text(*names[3:]),
        "train_val_list.txt": text(*names[:3]),
    }


def _chest_xray() -> Members:
    once = images(
        "train/NORMAL/IM-0115-0001.jpeg", "train/NORMAL/IM-0117-0001.jpeg",
        "train/PNEUMONIA/person1_bacteria_1.jpeg", "train/PNEUMONIA/person7_virus_9.jpeg",
        "val/NORMAL/NORMAL2-IM-1427-0001.jpeg", "val/PNEUMONIA/person1946_bacteria_4874.jpeg",
        "test/NORMAL/IM-0001-0001.jpeg", "test/PNEUMONIA/person100_bacteria_475.jpeg",
    )  # fmt: skip
    return {
        "chest_xray/__MACOSX/chest_xray/._train": b"\0\5\x16\7",
        "chest_xray/__MACOSX/chest_xray/train/._IM-0115-0001.jpeg": b"\0\5\x16\7",
        **{f"chest_xray/chest_xray/{name}": data for name, data in once.items()},
        "chest_xray/chest_xray/.DS_Store": b"\0\0\0\1Bud1",
        **{f"chest_xray/{name}": data for name, data in once.items()},
    }


def _ham10000() -> Members:
    names = [f"ISIC_{24306 + i:07d}.jpg" for i in range(16)]
    parts = {f"part_{1 + i // 8}/{name}": name for i, name in enumerate(names)}
    found = {place: images(name)[name] for place, name in parts.items()}
    rows = [
        f"HAM_{i // 2:07d},ISIC_{24306 + i:07d},{('nv', 'mel')[i // 2 % 2]},histo,80.0,male,scalp"
        for i in range(16)
    ]
    return {
        "HAM10000_metadata.csv": text("lesion_id,image_id,dx,dx_type,age,sex,localization", *rows),
        **{f"HAM10000_images_{place}": data for place, data in found.items()},
        **{f"ham10000_images_{place}": data for place, data in found.items()},
        "hmnist_8_8_L.csv": text("pixel0000,pixel0001,label", "169,171,2"),
    }


def _plant_village() -> Members:
    kinds = ("Orange___Haunglongbing_(Citrus_greening)", "Pepper,_bell___healthy")
    pictures = [
        f"{kind}/{i}ae___FREC {i}.{('JPG', 'jpg')[i % 2]}" for kind in kinds for i in range(4)
    ]
    looks = ("color", "grayscale", "segmented")
    return images(*(f"plantvillage dataset/{look}/{name}" for look in looks for name in pictures))


def _intel_scenes() -> Members:
    scenes = ("buildings", "glacier")
    return {
        **numbered("seg_pred/seg_pred/{}.jpg", 5, 24),
        **images(*(f"seg_test/seg_test/{name}/2005{i}.jpg" for name in scenes for i in (1, 2))),
        **images(*(f"seg_train/seg_train/{name}/{i}.jpg" for name in scenes for i in range(3))),
    }


def _asl_alphabet() -> Members:
    names = ("A", "B", "nothing")
    return {
        **images(*(f"asl_alphabet_test/asl_alphabet_test/{name}_test.jpg" for name in names)),
        **images(
            *(
                f"asl_alphabet_train/asl_alphabet_train/{name}/{name}{i}.jpg"
                for name in names
                for i in (1, 2, 3)
            )
        ),
    }


def _iwildcam_2020() -> Members:
    numbers = range(8)
    document = {
        "images": [
            {"id": f"{i:04x}", "file_name": f"{i:04x}.jpg", "location": 500 + i // 2}
            for i in numbers
        ],
        "annotations": [
            {"id": f"a{i}", "image_id": f"{i:04x}", "category_id": 96 * (i % 2), "count": 1}
            for i in numbers
        ],
        "categories": [{"id": 0, "name": "empty"}, {"id": 96, "name": "tragelaphus"}],
    }
    return {
        "iwildcam2020_train_annotations.json": json.dumps(document).encode(),
        "iwildcam2020_test_information.json": b'{"images": [], "categories": []}',
        **numbered("train/{:04x}.jpg", *numbers),
        **numbered("test/{:04x}.jpg", 90),
    }


def _rsna_pneumonia() -> Members:
    rows = ["0004cfab,,,,,0", "00436515,7,3,4,5,1", "00436515,8,6,3,3,1", "00704310,6,2,5,6,1"]
    names = ("0004cfab", "00436515", "00704310")
    return {
        "stage_2_train_labels.csv": text("patientId,x,y,width,height,Target", *rows),
        **images(*(f"stage_2_train_images/{name}.dcm" for name in names), mode="L"),
        **images("stage_2_test_images/0000a175.dcm", mode="L"),
    }


def _vinbigdata() -> Members:
    columns = "image_id,class_name,class_id,rad_id,x_min,y_min,x_max,y_max"
    rows = [
        "50a41819,No finding,14,R11,,,,", "21a10246,Cardiomegaly,3,R9,2,3,9,8",
        "21a10246,Cardiomegaly,3,R10,2,3,8,8", "9a508579,Aortic enlargement,0,R9,4,1,7,5",
    ]  # fmt: skip
    names = ("50a41819", "21a10246", "9a508579")
    return {
        "train.csv": text(columns, *rows),
        **images(*(f"train/{name}.dicom" for name in names), mode="I;16"),
        **images("test/002a34c5.dicom", mode="I;16"),
    }


def _siim_covid19() -> Members:
    first = "{'x': 7.5, 'y': 2.0, 'width': 4.0, 'height': 5.0}"
    boxes = f"[{first}, {{'x': 1.0, 'y': 6, 'width': 5, 'height': 3}}]"
    rows = [
        f'000a312787f2_image,"{boxes}",opacity 1 7.5 2 11.5 7',
        "0012ff7358bc_image,,none 1 0 0 1 1",
    ]
    return {
        "train_image_level.csv": text("id,boxes,label", *rows),
        **images("train/5776db/81456c/000a312787f2.dcm", mode="I;16"),
        **images("train/ff0879/d8a644/0012ff7358bc.dcm", mode="I;16"),
        **images("test/00188a/671292/00188a671292.dcm", mode="I;16"),
    }


def _rsna_breast() -> Members:
    rows = [f"{i // 2},{10006 + i // 2},{462822612 + i},{'LR'[i % 2]},{i // 4}" for i in range(8)]
    keys = [f"train_images/{10006 + i // 2}/{462822612 + i}.dcm" for i in range(8)]
    return {
        "train.csv": text("site_id,patient_id,image_id,laterality,cancer", *rows),
        **images(*keys, mode="I;16"),
        **images("test_images/10008/736471439.dcm", mode="I;16"),
    }


def _rsna_miccai() -> Members:
    cases = {"00000": 1, "00002": 1, "00003": 0, "00005": 0}
    series = [f"train/{case}/{kind}" for case in cases for kind in ("FLAIR", "T1w")]
    series += ["test/00001/FLAIR", "test/00001/T1w"]
    return {
        "train_labels.csv": text("BraTS21ID,MGMT_value", *(f"{k},{v}" for k, v in cases.items())),
        **images(*(f"{one}/Image-{i}.dcm" for one in series for i in (1, 10)), mode="I;16"),
    }


def _severstal() -> Members:
    cells = {("a.jpg", 1): "2 4 12 4", ("b.jpg", 3): "41 3 51 3"}
    rows = [
        f"{name}_{number},{cells.get((name, number), '')}"
        for name in ("a.jpg", "b.jpg", "c.jpg")
        for number in range(1, 5)
    ]
    return {
        SAMPLE: text("ImageId_ClassId,EncodedPixels", "t.jpg_1,1 1"),
        "train.csv": text("ImageId_ClassId,EncodedPixels", *rows),
        **images(*(f"train_images/{name}.jpg" for name in "abc")),
        **images("test_images/t.jpg"),
    }


def _siim_acr() -> Members:
    rows = ["1.2.276.1, 2 4 6 4 6 4", "1.2.276.2, -1", "1.2.276.3, 41 3 7 3", "1.2.276.3, 73 3 7 3"]
    return {
        "stage_2_train.csv": text("ImageId, EncodedPixels", *rows),
        **images(*(f"train/1.2.9{i}/1.2.8{i}/1.2.276.{i}.dcm" for i in (1, 2, 3)), mode="L"),
        **images("test/1.2.99/1.2.89/1.2.276.9.dcm", mode="L"),
    }


def _hubmap() -> Members:
    slides = ("0486052bb", "095bf7a1f", "1e2425f28", "2f6ecfcdf")
    tiles = [f"{slide}_{i:04d}.png" for slide in slides for i in range(2)]
    return {
        **images(*(f"train/{name}" for name in tiles)),
        **images(*(f"masks/{name}" for name in tiles), mode="1"),
    }


def _gtsrb() -> Members:
    header = "Width,Height,Roi.X1,Roi.Y1,Roi.X2,Roi.Y2,ClassId,Path"
    train = [f"Train/{k}/{k:05d}_00000_{i:05d}.png" for k in (0, 2, 10) for i in range(2)]
    found = {**images(*train), **numbered("Test/{:05d}.png", 0, 1)}
    lowered = {name[0].lower() + name[1:]: data for name, data in found.items()}
    return {
        **numbered("Meta/{}.png", 0, 2, 10),
        "Meta.csv": rows_of("Path,ClassId,ShapeId", "Meta/{0}.png,{0},0", 0, 2, 10),
        "Test.csv": rows_of(header, "53,54,6,5,48,49,{},Test/{:05d}.png", (10, 0), (2, 1)),
        "Train.csv": text(header, *(f"27,26,5,5,22,20,{p.split('/')[1]},{p}" for p in train)),
        **found,
        **lowered,
        **numbered("meta/{}.png", 0, 2, 10),
    }


def _animals10() -> Members:
    return {
        **images("raw-img/cane/OIP-a.jpeg", "raw-img/cane/e834.png", "raw-img/cane/OIP-b.jpg"),
        **images("raw-img/ragno/OIP-a.jpeg", "raw-img/ragno/OIP-c.jpeg"),
        "translate.py": b'translate = {"cane": "dog", "ragno": "spider"}\n',
    }


def _brain_mri() -> Members:
    once = images("yes/Y1.jpg", "yes/Y10.JPG", "no/1 no.jpeg", "no/No11.jpg", "no/no 2.png")
    return {
        **{f"brain_tumor_dataset\\{n.replace('/', chr(92))}": d for n, d in once.items()},
        **{name.replace("/", "\\"): data for name, data in once.items()},
    }


def _imagenet() -> Members:
    data = "ILSVRC/Data/CLS-LOC"
    names = [f"{data}/train/{s}/{s}_{i}.JPEG" for s in ("n01440764", "n02105855") for i in range(4)]
    found = images(*names, f"{data}/test/ILSVRC2012_test_00000001.JPEG")
    found |= images(f"{data}/train/n02105855/n02105855_2933.JPEG", mode="CMYK")
    png = images("n02105855_1.png")["n02105855_1.png"]
    return {
        "ILSVRC/Annotations/CLS-LOC/train/n01440764/n01440764_0.xml": b"<annotation/>",
        "ILSVRC/ImageSets/CLS-LOC/train_cls.txt": text("n01440764/n01440764_0 1"),
        "LOC_synset_mapping.txt": text("n01440764 tench, Tinca tinca"),
        "LOC_val_solution.csv": text(
            "ImageId,PredictionString", "ILSVRC2012_val_1,n01440764 1 2 3"
        ),
        **found,
        f"{data}/train/n02105855/n02105855_1.JPEG": png,
        **images(f"{data}/val/ILSVRC2012_val_00000001.JPEG"),
    }


LAYOUTS = (
    Layout(
        row=1,
        name="dogs-vs-cats",
        special="zips in a zip; labels in the file names",
        members=_dogs_vs_cats,
        splits={"train": 12, "test": 3},
        unlabelled=("test",),
        classes=("cat", "dog"),
        targets={
            "train.zip/train/cat.0.jpg": "cat",
            "train.zip/train/dog.5.jpg": "dog",
            "test.zip/test/1.jpg": None,
        },
        skipped={"not an image": 1},
    ),
    Layout(
        row=2,
        name="PetImages",
        special="class folders; broken JPEGs, `Thumbs.db`, trailing bytes",
        source="kagglecatsanddogs_5340.zip",
        members=_pet_images,
        splits={"train": 40},
        classes=("Cat", "Dog"),
        targets={"PetImages/Cat/3.jpg": "Cat", "PetImages/Dog/0.jpg": "Dog"},
        rejected={"not_an_image": 1, "truncated": 1},
        skipped={"junk": 2, "not an image": 2},
    ),
    Layout(
        row=3,
        name="histopathologic-cancer-detection",
        special="TIFF; ids without extension",
        members=_histopathologic_cancer,
        flags="--labels csv:train_labels.csv:id:label",
        splits={"train": 6, "test": 2},
        unlabelled=("test",),
        classes=("0", "1"),
        targets={"train/00c6e9b7.tif": "0", "train/01c6e9b7.tif": "1", "test/aa.tif": None},
        skipped={"not an image": 2},
    ),
    Layout(
        row=4,
        name="aerial-cactus-identification",
        special="zips in a zip; ids with extension",
        members=_aerial_cactus,
        splits={"train": 6, "test": 1},
        unlabelled=("test",),
        classes=("0", "1"),
        targets={
            "train.zip/train/0000d3a8f2.jpg": "0",
            "train.zip/train/0005d3a8f2.jpg": "1",
            "test.zip/test/09034a34.jpg": None,
        },
        skipped={"not an image": 2},
    ),
    Layout(
        row=5,
        name="dog-breed-identification",
        special="120 class names in a CSV; the sample submission has a column for each",
        members=_dog_breed,
        flags="--labels csv:labels.csv:id:breed",
        splits={"train": 9, "test": 1},
        unlabelled=("test",),
        classes=("boston_bull", "dingo", "pekinese"),
        targets={f"train/{0:032x}.jpg": "boston_bull", f"train/{8:032x}.jpg": "pekinese"},
        skipped={"not an image": 2},
    ),
    Layout(
        row=6,
        name="plant-seedlings-classification",
        special="class folders, names with spaces and hyphens",
        members=_plant_seedlings,
        splits={"train": 9, "test": 2},
        unlabelled=("test",),
        classes=("Black-grass", "Shepherds Purse", "Small-flowered Cranesbill"),
        targets={
            "train/Shepherds Purse/000000000.png": "Shepherds Purse",
            "test/0021e90e4.png": None,
        },
        skipped={"not an image": 1},
    ),
    Layout(
        row=7,
        name="cifar-10",
        special="7z in a zip; test images have the ids of training images",
        members=_cifar10,
        flags="--labels csv:trainLabels.csv:id:label",
        splits={"train": 6, "test": 4},
        unlabelled=("test",),
        classes=("deer", "frog", "truck"),
        targets={
            "train.7z/train/1.png": "frog",
            "train.7z/train/4.png": "deer",
            "test.7z/test/1.png": None,
        },
        skipped={"not an image": 2},
        needs="py7zr",
    ),
    Layout(
        row=8,
        name="planet-understanding-the-amazon-from-space",
        special="`.tar.7z`; zipped CSV; tags in one cell; every image as JPEG and as TIFF",
        source="planet-understanding-the-amazon-from-space/",
        members=_planet_amazon,
        flags="--labels csv:train_v2.csv:image_name:tags --separator ' ' --include '*.jpg' "
        "--split roots:train=train-jpg,test=test-jpg",
        kind="multilabel",
        splits={"train": 4, "test": 2},
        unlabelled=("test",),
        classes=("agriculture", "clear", "haze", "primary", "water"),
        targets={
            "train-jpg.tar.7z/train-jpg.tar/train-jpg/train_0.jpg": ("haze", "primary"),
            "train-jpg.tar.7z/train-jpg.tar/train-jpg/train_1.jpg": (
                "agriculture", "clear", "primary", "water",
            ),
            "test-jpg.tar.7z/test-jpg.tar/test-jpg/test_0.jpg": None,
        },
        skipped={"junk": 1, "not an image": 2, "not matched by --include": 1},
        needs="py7zr",
    ),
    Layout(
        row=9,
        name="diabetic-retinopathy-detection",
        special="split zips `.zip.001` …; zipped CSVs; two eyes of a patient belong together",
        source="diabetic-retinopathy-detection/",
        members=_diabetic_retinopathy,
        flags=r"--labels csv:trainLabels.csv:image:level --group 'regex:^(\d+)_' "
        "--split train=0.75,validation=0.25",
        splits={"train": 12, "validation": 4, "test": 4},
        unlabelled=("test",),
        classes=("0", "1"),
        targets={"train.zip/train/10_left.jpeg": "0", "train.zip/train/17_right.jpeg": "1"},
        skipped={"not an image": 2},
    ),
    Layout(
        row=9,
        name="diabetic-retinopathy-detection (with its solution)",
        special="test labels came later, in a file with a `Usage` column",
        source="diabetic-retinopathy-detection/",
        members=_diabetic_retinopathy,
        beside=_diabetic_retinopathy_solution,
        flags="--labels csv:trainLabels.csv,retinopathy_solution.csv:image:level "
        "--split column:Usage:Public=validation,Private=test",
        splits={"train": 16, "validation": 2, "test": 2},
        classes=("0", "1"),
        targets={"train.zip/train/17_right.jpeg": "1", "test.zip/test/1_left.jpeg": "1"},
        skipped={"not an image": 2},
    ),
    Layout(
        row=10,
        name="aptos2019-blindness-detection",
        special="folders `train_images` and `test_images`; grades 0 to 4",
        members=_aptos2019,
        splits={"train": 10, "test": 2},
        unlabelled=("test",),
        classes=("0", "1", "2", "3", "4"),
        targets={f"train_images/{7:012x}.png": "2", f"test_images/{90:012x}.png": None},
        skipped={"not an image": 3},
    ),
    Layout(
        row=11,
        name="siim-isic-melanoma-classification",
        special="the same ids as DICOM, as JPEG and as TFRecord; patients; a list of duplicates",
        members=_siim_isic,
        beside=lambda: {
            "2020_Challenge_duplicates.csv": text(
                "ISIC_id,ISIC_id_paired", "ISIC_0000007,ISIC_0000006"
            ),
        },
        flags="--root jpeg --labels csv:train.csv:image_name:target --group patient_id "
        "--exclude-list 2020_Challenge_duplicates.csv --columns sex,age_approx "
        "--split train=0.75,validation=0.25",
        splits={"train": 5, "validation": 2, "test": 1},
        unlabelled=("test",),
        classes=("0", "1"),
        targets={
            "jpeg/train/ISIC_0000000.jpg": "0",
            "jpeg/train/ISIC_0000001.jpg": "1",
            "jpeg/test/ISIC_0052060.jpg": None,
        },
        features={
            "jpeg/train/ISIC_0000000.jpg": {"sex": b"male", "age_approx": 45.0},
            "jpeg/test/ISIC_0052060.jpg": {"sex": b""},
        },
        skipped={"not an image": 3, "not below --root": 9, "on the exclude list": 1},
        rows_without_image=1,
    ),
    Layout(
        row=11,
        name="siim-isic-melanoma-classification (as DICOM)",
        special="the same, of the DICOM files",
        members=_siim_isic,
        flags="--include '*.dcm' --labels csv:train.csv:image_name:target --group patient_id "
        "--split train=0.75,validation=0.25",
        splits={"train": 6, "validation": 2, "test": 1},
        unlabelled=("test",),
        classes=("0", "1"),
        targets={"train/ISIC_0000000.dcm": "0", "test/ISIC_0052060.dcm": None},
        skipped={"not an image": 3, "not matched by --include": 9},
    ),
    Layout(
        row=12,
        name="ranzcr-clip-catheter-line-classification",
        special="11 label columns, their names with spaces; ids with dots; patients",
        members=_ranzcr_clip,
        flags=f"--labels 'csv:train.csv:StudyInstanceUID:{','.join(_RANZCR)}' "
        "--group PatientID --split train=0.75,validation=0.25",
        kind="multilabel",
        splits={"train": 12, "validation": 4, "test": 1},
        unlabelled=("test",),
        classes=tuple(sorted(_RANZCR)),
        targets={
            f"train/{_UID.format(0)}.jpg": ("CVC - Normal", "ETT - Abnormal"),
            f"train/{_UID.format(3)}.jpg": (
                "ETT - Borderline",
                "Swan Ganz Catheter Present",
            ),
            f"test/{_UID.format(99)}.jpg": None,
        },
        skipped={"not an image": 4},
    ),
    Layout(
        row=13,
        name="plant-pathology-2020-fgvc7",
        special="training and test images in one folder: the CSV that lists an image tells",
        members=_plant_pathology_2020,
        flags="--labels csv:train.csv,test.csv:image_id:healthy,multiple_diseases,rust,scab "
        "--target class --split tables",
        splits={"train": 8, "test": 4},
        unlabelled=("test",),
        classes=("healthy", "multiple_diseases", "rust", "scab"),
        targets={"images/Train_1.jpg": "multiple_diseases", "images/Test_0.jpg": None},
        skipped={"not an image": 3},
    ),
    Layout(
        row=14,
        name="plant-pathology-2021-fgvc8",
        special="several labels in one cell, separated by spaces",
        members=_plant_pathology_2021,
        flags="--separator ' '",
        kind="multilabel",
        splits={"train": 10, "test": 1},
        unlabelled=("test",),
        classes=("frog_eye_leaf_spot", "healthy", "rust", "scab"),
        targets={
            f"train_images/{0:016x}.jpg": ("healthy",),
            f"train_images/{1:016x}.jpg": ("frog_eye_leaf_spot", "scab"),
            "test_images/85f8cb619c66b863.jpg": None,
        },
        skipped={"not an image": 2},
    ),
    Layout(
        row=15,
        name="imet-2020-fgvc7",
        special="several numbers in one cell; their names in another CSV",
        members=_imet_2020,
        flags="--labels csv:train.csv:id:attribute_ids --separator ' ' --class-map labels.csv",
        kind="multilabel",
        splits={"train": 4},
        classes=("country::france", "culture::aachen", "tags::men"),
        targets={
            f"train/{0:032x}.png": ("culture::aachen", "tags::men"),
            f"train/{2:032x}.png": ("country::france", "culture::aachen"),
        },
        skipped={"not an image": 2},
    ),
    Layout(
        row=16,
        name="cassava-leaf-disease-classification",
        special="class names in a JSON file; TFRecords beside the images; duplicate images",
        members=_cassava,
        flags="--class-map label_num_to_disease_map.json --dedup",
        splits={"train": 7, "test": 1},
        unlabelled=("test",),
        classes=("Cassava Bacterial Blight (CBB)", "Cassava Green Mottle (CGM)", "Healthy"),
        targets={
            "train_images/1000015157.jpg": "Cassava Bacterial Blight (CBB)",
            "train_images/1000201771.jpg": "Healthy",
        },
        skipped={"not an image": 4, "a copy of another": 1},
        rows_without_image=1,
    ),
    Layout(
        row=17,
        name="herbarium-2022-fgvc9",
        special="COCO JSON, but every file name starts with its class",
        members=_herbarium_2022,
        flags=r"--labels 'regex:/(?P<label>\d+)__\d+\.jpg$'",
        splits={"train": 6, "test": 2},
        unlabelled=("test",),
        classes=("00003", "15504"),
        targets={
            "train_images/155/04/15504__003.jpg": "15504",
            "test_images/000/test-000000.jpg": None,
        },
        skipped={"not an image": 3},
    ),
    Layout(
        row=17,
        name="herbarium-2021-fgvc8",
        special="COCO JSON, but two folders together are the class",
        members=_herbarium_2021,
        flags=r"--labels 'regex:train/images/(?P<label>\d+/\d+)/'",
        splits={"train": 4, "test": 2},
        unlabelled=("test",),
        classes=("000/03", "604/92"),
        targets={"train/images/604/92/1000.jpg": "604/92", "test/images/000/0.jpg": None},
        skipped={"not an image": 2},
    ),
    Layout(
        row=18,
        name="iwildcam-2019-fgvc6",
        special="inner zips without a folder; camera locations; classes far apart",
        members=_iwildcam_2019,
        flags="--labels csv:train.csv:file_name:category_id --group location "
        "--split train=0.75,validation=0.25",
        splits={"train": 6, "validation": 2, "test": 2},
        unlabelled=("test",),
        classes=("0", "19"),
        targets={
            f"train_images.zip/{1:08x}.jpg": "19",
            f"test_images.zip/{90:08x}.jpg": None,
        },
        skipped={"not an image": 3},
    ),
    Layout(
        row=19,
        name="iwildcam-2020-fgvc7",
        special="labels in COCO JSON; camera locations",
        members=_iwildcam_2020,
        flags="--labels csv:iwildcam2020_train_annotations.json:file_name:category "
        "--group location --split train=0.75,validation=0.25",
        splits={"train": 6, "validation": 2, "test": 1},
        unlabelled=("test",),
        classes=("empty", "tragelaphus"),
        targets={"train/0000.jpg": "empty", "train/0003.jpg": "tragelaphus"},
        skipped={"not an image": 2},
    ),
    Layout(
        row=20,
        name="inaturalist-2019-fgvc6",
        special="`.tar.gz` in a zip; COCO JSON, but the folders are the classes",
        members=_inaturalist_2019,
        flags="--labels folder --split train=0.75,validation=0.25",
        splits={"train": 6, "validation": 2, "test": 2},
        unlabelled=("test",),
        classes=("400", "1003"),
        targets={
            f"train_val2019.tar.gz/train_val2019/Plants/400/{0:032x}.jpg": "400",
            f"test2019.tar.gz/test2019/{90:032x}.jpg": None,
        },
        skipped={"not an image": 4},
    ),
    Layout(
        row=21,
        name="hotel-id-2021-fgvc8",
        special="the path of an image takes two columns",
        members=_hotel_id,
        flags="--labels 'csv:train.csv:{chain}/{image}:hotel_id'",
        splits={"train": 4, "test": 1},
        unlabelled=("test",),
        classes=("36363", "53586"),
        targets={
            "train_images/0/aa.jpg": "36363",
            "train_images/87/aa.jpg": "53586",
            "test_images/99e91ad5f2870678.jpg": None,
        },
        skipped={"not an image": 2},
    ),
    Layout(
        row=22,
        name="paddy-disease-classification",
        special="folders and CSV agree; further columns worth keeping",
        members=_paddy_disease,
        flags="--labels csv:train.csv:image_id:label --columns variety,age",
        splits={"train": 6, "test": 2},
        unlabelled=("test",),
        classes=("blast", "normal"),
        targets={
            "train_images/blast/100330.jpg": "blast",
            "train_images/normal/100335.jpg": "normal",
        },
        features={"train_images/blast/100330.jpg": {"variety": b"ADT45", "age": 45}},
        skipped={"not an image": 2},
    ),
    Layout(
        row=23,
        name="bms-molecular-translation",
        special="images three folders deep; the target is a text",
        members=_bms_molecular,
        flags="--labels csv:train_labels.csv:image_id:InChI --target text",
        kind="text",
        meaning="the InChI",
        splits={"train": 2, "test": 1},
        unlabelled=("test",),
        targets={
            "train/0/0/0/000011a64c74.png": _INCHI,
            "train/d/3/f/d3f123456789.png": "InChI=1S/H2O/h1H2",
            "test/0/0/0/00000d2a601c.png": None,
        },
        skipped={"not an image": 3},
    ),
    Layout(
        row=24,
        name="landmark-recognition-2020",
        special="folders from the first letters of the id; sparse numbers; names in Latin-1",
        members=_google_landmark,
        flags="--labels 'csv:train.csv:train/{id[0]}/{id[1]}/{id[2]}/{id}:landmark_id' "
        "--class-map train_label_to_category.csv",
        splits={"train": 4, "test": 1},
        unlabelled=("test",),
        classes=("Château d'If", "Happy Valley"),
        targets={
            "train/1/7/6/17660ef415d37059.jpg": "Château d'If",
            "train/f/b/0/fb09f1e98c6d2f70.jpg": "Happy Valley",
        },
        skipped={"not an image": 3},
    ),
    Layout(
        row=25,
        name="alaska2-image-steganalysis",
        special="the same file names in every class folder; any change of a pixel destroys "
        "what is to be found",
        members=_alaska2,
        flags=r"--labels folder --format keep --group 'regex:(\d+)\.jpg$' "
        "--split train=0.75,validation=0.25",
        splits={"train": 12, "validation": 4, "test": 2},
        unlabelled=("test",),
        classes=("Cover", "JMiPOD", "JUNIWARD", "UERD"),
        targets={
            "Cover/00001.jpg": "Cover",
            "JMiPOD/00001.jpg": "JMiPOD",
            "UERD/00004.jpg": "UERD",
            "Test/0001.jpg": None,
        },
        skipped={"not an image": 1},
    ),
    Layout(
        row=26,
        name="global-wheat-detection",
        special="boxes, a row each; images without a box have no row",
        members=_global_wheat,
        flags="--boxes csv:train.csv:image_id:bbox --classes wheat --unlisted background",
        kind="none",
        splits={"train": 3, "test": 1},
        unlabelled=("train", "test"),
        objects={"wheat": 3},
        stored="boxes",
        targets={"train/f1794c924.jpg": None},
        skipped={"not an image": 1},
    ),
    Layout(
        row=27,
        name="kuzushiji-recognition",
        special="inner zips without a folder; all characters and boxes of a page in one cell",
        members=_kuzushiji,
        flags="--boxes csv:train.csv:image_id:labels --class-map unicode_translation.csv",
        kind="none",
        splits={"train": 3, "test": 1},
        unlabelled=("train", "test"),
        objects={"が": 1, "は": 1, "御": 1},
        stored="boxes",
        targets={"train_images.zip/hnsd006-001.jpg": None},
        skipped={"not an image": 2},
    ),
    Layout(
        row=28,
        name="rsna-pneumonia-detection-challenge",
        special="DICOM; boxes in four columns; patients without any have empty cells",
        members=_rsna_pneumonia,
        flags="--boxes csv:stage_2_train_labels.csv:patientId:x,y,width,height --classes opacity "
        "--split roots:train=stage_2_train_images,test=stage_2_test_images",
        kind="none",
        splits={"train": 3, "test": 1},
        unlabelled=("train", "test"),
        objects={"opacity": 3},
        stored="boxes",
        targets={"stage_2_train_images/0004cfab.dcm": None},
    ),
    Layout(
        row=29,
        name="vinbigdata-chest-xray-abnormalities-detection",
        special="DICOM; boxes of several doctors; `No finding` has none",
        members=_vinbigdata,
        flags="--boxes csv:train.csv:image_id:x_min,y_min,x_max,y_max:class_name",
        kind="none",
        splits={"train": 3, "test": 1},
        unlabelled=("train", "test"),
        objects={"Aortic enlargement": 1, "Cardiomegaly": 2},
        stored="boxes",
        targets={"train/50a41819.dicom": None},
    ),
    Layout(
        row=30,
        name="siim-covid19-detection",
        special="DICOM in folders of studies and series; boxes as the text of dicts; ids that "
        "end in `_image`",
        members=_siim_covid19,
        flags="--boxes 'csv:train_image_level.csv:{id[0:12]}:boxes' --classes opacity",
        kind="none",
        splits={"train": 2, "test": 1},
        unlabelled=("train", "test"),
        objects={"opacity": 2},
        stored="boxes",
        targets={"train/ff0879/d8a644/0012ff7358bc.dcm": None},
    ),
    Layout(
        row=31,
        name="rsna-breast-cancer-detection",
        special="DICOM; the path of an image takes two columns; patients",
        members=_rsna_breast,
        flags="--labels 'csv:train.csv:{patient_id}/{image_id}:cancer' --group patient_id "
        "--split train=0.75,validation=0.25",
        splits={"train": 6, "validation": 2, "test": 1},
        unlabelled=("test",),
        classes=("0", "1"),
        targets={"train_images/10006/462822612.dcm": "0"},
        skipped={"not an image": 1},
    ),
    Layout(
        row=32,
        name="rsna-miccai-brain-tumor-radiogenomic-classification",
        special="DICOM; a folder of slices for each series of a case, and a label for the case",
        members=_rsna_miccai,
        flags="--include '*/FLAIR/*' --labels 'regex:train/(?P<label>\\d+)/' "
        "--class-map train_labels.csv --classes 0,1 --group folder:2 "
        "--split train=0.75,validation=0.25",
        splits={"train": 6, "validation": 2, "test": 2},
        unlabelled=("test",),
        classes=("0", "1"),
        targets={"train/00002/FLAIR/Image-1.dcm": "1", "test/00001/FLAIR/Image-1.dcm": None},
        skipped={"not an image": 1, "not matched by --include": 10},
        missing="the order of the slices: each is an image of its own",
    ),
    Layout(
        row=33,
        name="airbus-ship-detection",
        special="a mask for each ship; one image is cut short",
        members=_airbus,
        beside=lambda: {"corrupt.txt": text("6384c3e78.jpg")},
        flags="--masks rle:train_ship_segmentations_v2.csv:ImageId:EncodedPixels --instances "
        "--classes ship --exclude-list corrupt.txt",
        kind="none",
        splits={"train": 4, "test": 1},
        unlabelled=("train", "test"),
        objects={"ship": 2},
        stored="boxes and masks",
        targets={"train_v2/000000001.jpg": None},
        skipped={"not an image": 1, "on the exclude list": 1},
        rows_without_image=1,
    ),
    Layout(
        row=34,
        name="severstal-steel-defect-detection",
        special="run lengths; image and class in one id, `x.jpg_3`",
        members=_severstal,
        flags="--masks rle:train.csv:ImageId_ClassId:EncodedPixels",
        kind="none",
        splits={"train": 3, "test": 1},
        unlabelled=("train", "test"),
        objects={"1": 1, "3": 1},
        stored="masks",
        targets={"train_images/c.jpg": None},
        skipped={"not an image": 1},
    ),
    Layout(
        row=35,
        name="siim-acr-pneumothorax-segmentation",
        special="DICOM; run lengths relative to the run before; `-1` for none; a space in the "
        "header",
        members=_siim_acr,
        flags="--masks rle:stage_2_train.csv:ImageId:EncodedPixels --classes pneumothorax",
        kind="none",
        splits={"train": 3, "test": 1},
        unlabelled=("train", "test"),
        objects={"pneumothorax": 3},
        stored="masks",
        targets={"train/1.2.92/1.2.82/1.2.276.2.dcm": None},
    ),
    Layout(
        row=36,
        name="tgs-salt-identification-challenge",
        special="masks as images and as run lengths; depths in another CSV",
        members=_tgs_salt,
        flags="--labels csv:depths.csv:id:z --target regression --masks 'masks/{stem}.png'",
        kind="regression",
        meaning="the depth",
        splits={"train": 3, "test": 1},
        objects={"object": 3},
        num_masks=3,
        stored="masks",
        targets={
            "competition_data.zip/train/images/34e51dba6a.png": 843.0,
            "competition_data.zip/test/images/dd.png": 922.0,
        },
        skipped={"not an image": 3},
    ),
    Layout(
        row=37,
        name="carvana-image-masking-challenge",
        special="masks as GIF and as run lengths; 16 views of every car",
        members=_carvana,
        flags="--masks '{stem}_mask.gif' --group 'regex:^([0-9a-f]+)_' "
        "--split train=0.75,validation=0.25",
        kind="none",
        splits={"train": 12, "validation": 4, "test": 1},
        unlabelled=("train", "validation", "test"),
        objects={"object": 16},
        num_masks=16,
        stored="masks",
        targets={"train.zip/train/fff9b3a5373f_01.jpg": None},
        skipped={"not an image": 2},
    ),
    Layout(
        row=38,
        name="data-science-bowl-2018",
        special="a folder for each image, with a mask for each nucleus; RGBA",
        members=_data_science_bowl,
        flags="--masks '{id}/masks/*.png' --instances --classes nucleus "
        "--split roots:train=stage1_train,test=stage1_test",
        kind="none",
        splits={"train": 2, "test": 1},
        unlabelled=("train", "test"),
        objects={"nucleus": 3},
        num_masks=3,
        stored="boxes and masks",
        targets={"stage1_train.zip/00ae65c1/images/00ae65c1.png": None},
        skipped={"not an image": 1},
    ),
    Layout(
        row=39,
        name="uw-madison-gi-tract-image-segmentation",
        special="16-bit grey PNG; days of a case belong together; a mask for each organ",
        members=_uw_madison,
        flags=r"--labels none --group 'regex:(case\d+)_' --split train=0.75,validation=0.25",
        kind="none",
        splits={"train": 6, "validation": 2},
        unlabelled=("train", "validation"),
        targets={
            "train/case123/case123_day20/scans/slice_0001_266_266_1.50_1.50.png": None,
        },
        skipped={"not an image": 2},
        missing="the masks; more than 8 bits",
    ),
    Layout(
        row=40,
        name="human-protein-atlas-image-classification",
        special="four grey PNGs for each id, a channel each",
        members=_human_protein_atlas,
        flags="--include '*_green.png' --labels 'csv:train.csv:{Id}_green:Target' --separator ' '",
        kind="multilabel",
        splits={"train": 4, "test": 1},
        unlabelled=("test",),
        classes=("0", "7", "16"),
        targets={
            "train/00000000-bbac-11e8_green.png": ("0", "16"),
            "test/00000090-bbac-11e8_green.png": None,
        },
        skipped={"not an image": 2, "not matched by --include": 15},
        missing="the other three channels",
    ),
    Layout(
        row=41,
        name="hubmap-kidney-segmentation (as tiles)",
        special="a mask for each tile; tiles of one slide belong together",
        members=_hubmap,
        flags="--masks 'masks/{name}' --group 'regex:^([0-9a-f]+)_' --split "
        "train=0.5,validation=0.5",
        kind="none",
        splits={"train": 4, "validation": 4},
        unlabelled=("train", "validation"),
        objects={"object": 8},
        num_masks=8,
        stored="masks",
        targets={"train/0486052bb_0000.png": None},
    ),
    Layout(
        row=45,
        name="petfinder-pawpularity-score",
        special="the target is a number; a space after every comma",
        members=_pawpularity,
        flags="--labels csv:train.csv:Id:Pawpularity --target regression",
        kind="regression",
        meaning="the score",
        splits={"train": 3, "test": 1},
        unlabelled=("test",),
        targets={
            "train/0007de18.jpg": 63.0,
            "train/0013fd99.jpg": 28.0,
            "test/4128bae2.jpg": None,
        },
        skipped={"not an image": 3},
    ),
    Layout(
        row=46,
        name="UTKFace",
        special="age, gender and race in the file name; two names lack one",
        members=_utkface,
        flags=r"--labels 'regex:(?P<label>\d+)_[01]_[0-4]_\d+' --target regression",
        kind="regression",
        meaning="the age",
        splits={"train": 3},
        targets={
            "UTKFace/100_0_0_20170112213500903.jpg.chip.jpg": 100.0,
            "UTKFace/1_0_2_20161219203227383.jpg.chip.jpg": 1.0,
        },
        skipped={"no label": 2},
    ),
    Layout(
        row=47,
        name="celeba-dataset",
        special="a folder in a folder; 40 columns of 1 and −1; the split in a second CSV",
        members=_celeba,
        flags="--labels 'csv:list_attr_celeba.csv:image_id:*' --join list_eval_partition.csv "
        "--split column:partition:0=train,1=validation,2=test",
        kind="multilabel",
        splits={"train": 2, "validation": 1, "test": 1},
        classes=("5_o_Clock_Shadow", "Bald", "Smiling"),
        targets={
            "img_align_celeba/img_align_celeba/000001.jpg": ("5_o_Clock_Shadow",),
            "img_align_celeba/img_align_celeba/000003.jpg": ("5_o_Clock_Shadow", "Smiling"),
            "img_align_celeba/img_align_celeba/000004.jpg": (),
        },
        skipped={"not an image": 3},
    ),
    Layout(
        row=48,
        name="state-farm-distracted-driver-detection",
        special="class folders; the drivers, in a CSV, must not be parted",
        members=_state_farm,
        flags="--labels folder --join driver_imgs_list.csv --group subject "
        "--split train=0.75,validation=0.25",
        splits={"train": 12, "validation": 4, "test": 2},
        unlabelled=("test",),
        classes=("c0", "c1"),
        targets={"imgs/train/c0/img_0.jpg": "c0", "imgs/train/c1/img_15.jpg": "c1"},
        skipped={"not an image": 2},
    ),
    Layout(
        row=49,
        name="nih-chest-xrays",
        special="images in many folders; labels separated by bars; splits in two lists; "
        "grey and RGBA",
        members=_nih_chest_xray,
        flags="--labels 'csv:Data_Entry_2017.csv:Image Index:Finding Labels' --separator '|' "
        "--split list:train=train_val_list.txt,test=test_list.txt --group 'Patient ID'",
        kind="multilabel",
        splits={"train": 3, "test": 2},
        classes=("Cardiomegaly", "Emphysema", "Hernia", "No Finding"),
        targets={
            "images_001/images/00000001_001.png": ("Cardiomegaly", "Emphysema"),
            "images_001/images/00000002_000.png": ("No Finding",),
            "images_002/images/00000005_000.png": ("Hernia",),
        },
        skipped={"not an image": 4},
    ),
    Layout(
        row=50,
        name="chest-xray-pneumonia",
        special="three splits as folders; everything twice; `__MACOSX`",
        members=_chest_xray,
        flags="--root chest_xray/chest_xray",
        splits={"train": 4, "validation": 2, "test": 2},
        classes=("NORMAL", "PNEUMONIA"),
        targets={
            "chest_xray/chest_xray/train/NORMAL/IM-0115-0001.jpeg": "NORMAL",
            "chest_xray/chest_xray/val/PNEUMONIA/person1946_bacteria_4874.jpeg": "PNEUMONIA",
        },
        skipped={"junk": 3, "not below --root": 8},
    ),
    Layout(
        row=51,
        name="skin-cancer-mnist-ham10000",
        special="images in two folders, and again in two others; several images of a lesion",
        members=_ham10000,
        flags="--labels csv:HAM10000_metadata.csv:image_id:dx --group lesion_id --dedup "
        "--split train=0.75,validation=0.25",
        splits={"train": 12, "validation": 4},
        classes=("mel", "nv"),
        targets={
            "HAM10000_images_part_1/ISIC_0024306.jpg": "nv",
            "HAM10000_images_part_2/ISIC_0024321.jpg": "mel",
        },
        skipped={"not an image": 2, "a copy of another": 16},
    ),
    Layout(
        row=52,
        name="plantvillage-dataset",
        special="every image in colour, grey and cut out; `.JPG` and `.jpg`; a typing error in a "
        "class name",
        members=_plant_village,
        flags="--root 'plantvillage dataset/color' --split train=0.75,validation=0.25 --class-map "
        "'Orange___Haunglongbing_(Citrus_greening)=Orange___Huanglongbing_(Citrus_greening)'",
        splits={"train": 6, "validation": 2},
        classes=("Orange___Huanglongbing_(Citrus_greening)", "Pepper,_bell___healthy"),
        targets={
            "plantvillage dataset/color/Orange___Haunglongbing_(Citrus_greening)/0ae___FREC 0.JPG":
                "Orange___Huanglongbing_(Citrus_greening)",
            "plantvillage dataset/color/Pepper,_bell___healthy/1ae___FREC 1.jpg":
                "Pepper,_bell___healthy",
        },
        skipped={"not below --root": 16},
    ),
    Layout(
        row=53,
        name="intel-image-classification",
        special="a folder in a folder; `seg_pred` is not labelled",
        members=_intel_scenes,
        flags="--labels 'regex:seg_t[a-z]+/(?P<label>[a-z]+)/' "
        "--split roots:train=seg_train,validation=seg_test,test=seg_pred",
        splits={"train": 6, "validation": 4, "test": 2},
        unlabelled=("test",),
        classes=("buildings", "glacier"),
        targets={
            "seg_train/seg_train/glacier/0.jpg": "glacier",
            "seg_test/seg_test/buildings/20051.jpg": "buildings",
            "seg_pred/seg_pred/5.jpg": None,
        },
    ),
    Layout(
        row=54,
        name="asl-alphabet",
        special="folders are the classes of training images, names those of test images",
        members=_asl_alphabet,
        flags=r"--labels 'regex:/(?P<label>[A-Za-z]+)(_test\.jpg|/[^/]+)$' "
        "--split roots:train=asl_alphabet_train,test=asl_alphabet_test",
        splits={"train": 9, "test": 3},
        classes=("A", "B", "nothing"),
        targets={
            "asl_alphabet_train/asl_alphabet_train/A/A1.jpg": "A",
            "asl_alphabet_test/asl_alphabet_test/nothing_test.jpg": "nothing",
        },
    ),
    Layout(
        row=55,
        name="gtsrb-german-traffic-sign",
        special="paths in a column; dots in column names; every folder twice, `Train` and `train`",
        members=_gtsrb,
        flags="--labels csv:Train.csv,Test.csv:Path:ClassId --split tables --exclude 'Meta/*' "
        "--columns Roi.X1,Roi.Y1,Roi.X2,Roi.Y2",
        splits={"train": 6, "test": 2},
        classes=("0", "2", "10"),
        targets={
            "Train/10/00010_00000_00000.png": "10",
            "Train/2/00002_00000_00001.png": "2",
            "Test/00000.png": "10",
        },
        features={"Test/00000.png": {"Roi.X1": 6, "Roi.Y2": 49}},
        skipped={"not an image": 3, "matched by --exclude": 6, "no label": 8},
    ),
    Layout(
        row=56,
        name="animals10",
        special="class folders in Italian; `.jpeg`, `.jpg` and `.png`",
        members=_animals10,
        flags="--class-map cane=dog,ragno=spider",
        splits={"train": 5},
        classes=("dog", "spider"),
        targets={"raw-img/cane/e834.png": "dog", "raw-img/ragno/OIP-a.jpeg": "spider"},
        skipped={"not an image": 1},
    ),
    Layout(
        row=57,
        name="brain-mri-images-for-brain-tumor-detection",
        special="everything twice, one folder deeper; packed on Windows; mixed extensions",
        members=_brain_mri,
        flags="--root brain_tumor_dataset",
        splits={"train": 5},
        classes=("no", "yes"),
        targets={
            "brain_tumor_dataset/yes/Y10.JPG": "yes",
            "brain_tumor_dataset/no/1 no.jpeg": "no",
        },
        skipped={"not below --root": 5},
    ),
    Layout(
        row=58,
        name="imagenet-object-localization-challenge",
        special="deep folders of synsets; a PNG named `.JPEG`; CMYK",
        members=_imagenet,
        flags="--labels folder --exclude 'val/*' --split train=0.75,validation=0.25",
        splits={"train": 7, "validation": 2, "test": 1},
        unlabelled=("test",),
        classes=("n01440764", "n02105855"),
        targets={
            "ILSVRC/Data/CLS-LOC/train/n01440764/n01440764_0.JPEG": "n01440764",
            "ILSVRC/Data/CLS-LOC/train/n02105855/n02105855_1.JPEG": "n02105855",
            "ILSVRC/Data/CLS-LOC/train/n02105855/n02105855_2933.JPEG": "n02105855",
        },
        skipped={"not an image": 4, "matched by --exclude": 1},
        missing="the official validation images: their labels stand inside longer cells",
    ),
)  # fmt: skip

_PIXELS = "Write the pixels to PNG files first."

OUTSIDE = (
    Outside(42, "bengaliai-cv19", "pixels in Parquet", _PIXELS),
    Outside(43, "fer2013", "pixels as text in a CSV", _PIXELS),
    Outside(44, "statoil-iceberg-classifier-challenge", "radar values in JSON", "No images."),
)  # fmt: skip


def table_text() -> str:
    """Return the tables of the page."""
    working = [
        [
            str(layout.row),
            layout.name,
            layout.special,
            f"`{layout.flags}`" if layout.flags else "none",
            layout.result,
        ]
        for layout in LAYOUTS
    ]
    outside = [[str(one.row), one.name, one.special, one.instead] for one in OUTSIDE]
    return (
        _table(("row", "data set", "what is special", "flags", "result"), working)
        + "\nNot with flags alone:\n\n"
        + _table(("row", "data set", "what is special", "what to do"), outside)
    )


def _table(header: tuple[str, ...], rows: list[list[str]]) -> str:
    escaped = [" | ".join(cell.replace("|", r"\|") for cell in row) for row in (header, *rows)]
    lines = [f"| {row} |\n" for row in escaped]
    lines.insert(1, "|---" * len(header) + "|\n")
    return "".join(lines)


def page_text(page: str) -> str:
    """Return a page with the table between its two markers made anew."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{table_text()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_text(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
