"""The options of a build, each declared once: name, type, default, help.

The flags and their help, the keys of `shardprep.toml`, the defaults of `shardprep.build`, the error
texts and the options of a dataset's fingerprint are derived from this module. It imports no heavy
modules, because `shardprep --help` imports it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from shardprep.errors import as_keywords
from shardprep.recipe.values import (
    read_colour,
    read_depth_range,
    read_names,
    read_num_bytes,
    read_ratios,
    read_share,
    read_size,
    read_window,
)
from shardprep.storage.store import DEFAULT_TIMEOUT_S, TIMEOUT_VARIABLE

if TYPE_CHECKING:
    from shardprep.dataset.schema import TargetKind
    from shardprep.image.annotation_types import Frame, RunOrder
    from shardprep.image.spec import DepthRange, Fit, Format, Truncated, Window

_T = TypeVar("_T")
_OUTPUT, _IMAGES, _LABELS, _SPLITS = "Output", "Stored images", "Labels", "Splits"
_OBJECTS = "Boxes, masks and keypoints"
_USED, _LIMITS, RUN = "Images to use", "Limits", "This run"
ARGUMENTS = "Arguments"
_BYTES = "a size such as 500MB, 2GB or 2GiB"
_MAX_BYTES = 2**63 - 1
MAX_SEED = 2**63 - 1
_MAX_WORKERS = 10_000


BOX_FORMATS = {
    "coco": "coco[:FILE,…]",
    "voc": "voc",
    "yolo": "yolo[:NAMES]",
    "csv": "csv:FILE:ID:BOX[:LABEL]",
    "column": "column:BOX[:LABEL]",
    "labelme": "labelme",
    "via": "via[:FILE,…]",
    "cvat": "cvat[:FILE,…]",
    "jsonl": "jsonl[:FILE,…]",
}
"""Name of a box format → syntax of its `--boxes` value, in the order of detection."""
OUTLINE_FORMATS = [name for name in BOX_FORMATS if name != "voc"]
"""Box formats that can also contain outlines."""


@dataclass(frozen=True, slots=True)
class Option:
    """Declaration of an option: everything except its name, type and default."""

    help: str
    panel: str = ""
    """Heading in `--help`; "" for the default group of options."""
    metavar: str = ""
    shown: str = ""
    """Default in words; "" to print the default value."""
    least: float = 0
    most: float = 0
    """`least` and `most` are the bounds of a number, both included."""
    read: Callable[[object], object] | None = None
    """Converts a value as users write it (see `values`), before its type is checked."""
    wanted: str = ""
    """Allowed values in words, for errors; "" to derive the words from the type."""
    is_repeated: bool = False
    flags: tuple[str, ...] = ()
    """Flags on the command line; () to derive the flag from the name."""
    shapes_bytes: bool = True
    """Whether the option can change the shards, so that the fingerprint contains it."""
    is_newer: bool = False
    """Whether fingerprints omit the default value, so that older fingerprints stay valid."""

    def numbers(self, kind: type) -> str:
        """Return the allowed numbers in words; `kind` is int or float."""
        number = "a number" if kind is float else "a whole number"
        return self.wanted or f"{number} from {self.least:,} to {self.most:,}"


def _option(default: _T, text: str, panel: str, metavar: str = "", **settings: Any) -> _T:
    declared: Any = field(
        default=default, metadata={"option": Option(text, panel, metavar, **settings)}
    )
    return declared  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """The options of a build, in the order of the manifest."""

    # fmt: off
    source: str = field(metadata={"option": Option(
        "Folder or archive (zip, tar, tar.gz/bz2/xz, 7z, also nested), or a file of arrays "
        "(Parquet, HDF5, .npy, .npz, IDX, TFRecord, CSV of pixels), local or in object storage "
        "(s3://, gs://, az://); or kaggle:COMPETITION, kaggle:OWNER/DATASET.",
        ARGUMENTS, shown="source of ./shardprep.toml", shapes_bytes=False)})
    out: str = _option("tfrecords",
        "Folder of datasets, local or in object storage (s3://, gs://, az://).", _OUTPUT, "DIR",
        shapes_bytes=False)
    name: str = _option("",
        "Dataset name: lower-case letters, digits and _.", _OUTPUT, "NAME",
        shown="made from the source's name", shapes_bytes=False)
    version: str = _option("1.0.0", "Dataset version.", _OUTPUT, "X.Y.Z", shapes_bytes=False)
    shards: int | None = _option(None,
        "Number of shards of the largest split. Other splits get shards of the same size.", _OUTPUT,
        "N", shown="by size, about 128 MiB each", least=1, most=99_999)
    size: tuple[int, int] | None = _option((224, 224),
        "Size of stored images in pixels: WIDTHxHEIGHT, N for a square, or none to keep the size "
        "of each image.", _IMAGES, "WxH", shown="224x224", read=read_size,
        wanted="WIDTHxHEIGHT, such as 224x224, or none")
    """Height and width of stored images in pixels; None if images keep their own size."""
    fit: Literal["auto", Fit] = _option("auto",
        "How images are fitted to that size: crop, pad, stretch, within (only shrinks), none, or "
        "auto (crop; pad if boxes, masks or keypoints are stored).", _IMAGES, "HOW", shown="auto")
    """"auto" until `Recipe.settled` replaces it, when it is known whether there are annotations."""
    format: Format = _option("jpeg",
        "Encoding of stored images: jpeg, png, raw (uint8) or keep. keep stores the original bytes "
        "of plain RGB JPEG and PNG files that already have that size.", _IMAGES, "FORMAT")
    quality: int = _option(90, "JPEG quality, 1 to 100.", _IMAGES, "N", least=1, most=100)
    background: tuple[int, int, int] = _option((255, 255, 255),
        "Colour behind transparent pixels and of the padding: white, black, grey, #RRGGBB or "
        "R,G,B.", _IMAGES, "COLOUR", shown="white", read=read_colour,
        wanted="white, black, grey, #RRGGBB or R,G,B")
    """Red, green and blue in 0..255."""
    depth_range: DepthRange = _option("full",
        "Values of black and white in grey images of more than 8 bits: full (the range of the "
        "type), auto (the smallest and largest value of each image or stack), or MIN,MAX, such as "
        "0,4095.",
        _IMAGES, "RANGE", read=read_depth_range, wanted="full, auto or MIN,MAX, such as 0,4095")
    window: Window = _option("auto",
        "Values of black and white in grey DICOM images: auto (the window in the file, otherwise "
        "nearly the smallest and largest value), full (the range of the type), or CENTER,WIDTH, "
        "such as 40,400, in Hounsfield units for a CT.",
        _IMAGES, "WINDOW", read=read_window, wanted="full, auto or CENTER,WIDTH, such as 40,400")
    depth: int = _option(8,
        "Bits of a stored value. 16 stores the images of stacks and the target images as grey PNG "
        "files of 16 bits.",
        _IMAGES, "BITS", least=8, most=16, wanted="8 or 16", is_newer=True)
    labels: str = _option("auto",
        "Rule that finds labels: auto, folder, folder:N (Nth above the image), prefix "
        "(cat.12.jpg), regex:PATTERN with (?P<label>…), csv:FILE, csv:FILE:ID:LABEL, column:NAME "
        "(another column of a file of arrays, or of the only table), text:PATTERN (text files such "
        "as {stem}.txt), or none. FILE can be several files, with commas, or a pattern of a file "
        "for each image, such as labels/{id}.json. ID can be a path such as {folder}/{id}.jpg. "
        "LABEL can be several columns, or *.", _LABELS, "RULE")
    target: Literal["auto", TargetKind] = _option("auto",
        "Kind of target: class, multilabel, regression, text, texts (several for an image), none "
        "or auto; of several columns also vector (numbers), soft (probabilities or votes) or "
        "classes (a class of each column).", _LABELS, "KIND",
        shown="detected from the labels")
    pivot: str = _option("",
        "Column of target names, in a table with a row for each image and target.", _LABELS,
        "COLUMN", is_newer=True)
    separator: str = _option("",
        "Separator of several classes or numbers in one cell.", _LABELS, "TEXT", shown="detected")
    classes: tuple[str, ...] = _option((),
        "Class names in label order.", _LABELS, "A,B,…",
        shown="all names that occur, in natural order",
        read=read_names)
    class_map: str = _option("",
        "New names for classes: a JSON or CSV file, or OLD=NEW,… The order of the classes does not "
        "change.", _LABELS, "MAP")
    relabel: str = _option("",
        "Table of new labels for the images it names, such as the corrected output of report "
        "--list wrong-labels. FILE, ID and LABEL are as in --labels.", _LABELS,
        "csv:FILE[:ID:LABEL]", is_newer=True)
    join: tuple[str, ...] = _option((),
        "Table whose columns are added, joined by a column of both tables. Can be repeated.",
        _LABELS, "FILE[:KEY]", is_repeated=True)
    columns: tuple[str, ...] = _option((),
        "Columns of the tables, or elements of DICOM headers such as dicom/PatientID, to store as "
        "features of each example.", _LABELS, "A,B,…",
        read=read_names)
    rows: str = _option("",
        "Store all rows of an image as lists, one for each column. FILE and ID are as in --labels; "
        "a path such as points.x is a value inside of JSON.", _LABELS, "csv:FILE:ID:A,B,…",
        is_newer=True)
    header: bool = _option(True,
        "Tables have column names in their first line; without them, columns are named 1, 2, 3 …",
        _LABELS, shown="header")
    null: tuple[str, ...] = _option(("nan", "NaN", "<NA>"),
        "Cells that count as empty.", _LABELS, "A,B,…", read=read_names)
    boxes: str = _option("",
        f"Boxes of objects: {', '.join(BOX_FORMATS.values())} (polygons), auto or none. BOX is "
        "a column, or four columns as in x,y,w,h; xywh(…), xyxy(…), yxyx(…) or center(…) sets how "
        "to read them. Eight columns are x and y of four corners.", _OBJECTS, "FORMAT",
        shown="detected, if labels, boxes and masks are not given")
    masks: str = _option("",
        "Masks: a pattern of their names, such as masks/{stem}_mask.png, {dir}annot/{name}, "
        "{id}/masks/*.png or masks/{class}/{name}, with parts of names as in {stem[:-4]} or "
        "{stem:(.+)_rgb}; rle:FILE:ID:RLE[:LABEL]; outlines to draw: "
        f"{', '.join(OUTLINE_FORMATS)}, as in --boxes; auto or none.", _OBJECTS, "PATTERN",
        shown="as for boxes")
    points: str = _option("",
        "Keypoints: coco[:FILE,…], yolo[:NAMES] or the same table as --boxes, of the objects of "
        "--boxes; labelme, of the objects of --boxes labelme or else of the images; "
        "csv:FILE[:ID[:X,Y[:NAME]]] or column[:X,Y[:NAME]], of the images; or none. X,Y are "
        "columns, also of several keypoints, as in x1,y1,x2,y2.",
        _OBJECTS, "FORMAT", shown="none; columns of a table are detected as boxes are",
        is_newer=True)
    target_image: str = _option("",
        "Target image of each image, resized like it: a pattern as for --masks, such as GT/{name}; "
        "for rows of arrays, model{folder:data(.+)}/{name}.",
        _OBJECTS, "PATTERN", is_newer=True)
    instances: bool = _option(False,
        "Store a mask for each object instead of one class mask for each image.", _OBJECTS)
    mask_values: str = _option("",
        "Meaning of mask values: 1=pet,2=background,255=ignore, or a file such as "
        "class_dict.csv, labelmap.txt or a YAML of names.", _OBJECTS, "MAP",
        shown="0 and 1 for masks of two values, otherwise class indices with 255 to ignore")
    unlisted: Literal["auto", "skip", "background", "train"] = _option("auto",
        "Images that no annotation lists: skip, background or auto; train takes images that are in "
        "no list of a split.", _OBJECTS,
        "HOW", shown="background in YOLO's format, otherwise skip; splits without any annotation "
        "are unlabelled")
    min_visible: float = _option(0.1,
        "Drop objects whose visible share in the stored image is smaller.", _OBJECTS, "SHARE",
        shown="10%", most=1, read=read_share, wanted="a share such as 10% or 0.1")
    max_dropped: float = _option(0.05,
        "Fail if a larger share of the objects is invalid and dropped.", _OBJECTS, "SHARE",
        shown="5%", most=1, read=read_share, wanted="a share such as 5% or 0.05",
        shapes_bytes=False)
    max_clipped: float = _option(0.1,
        "Fail if a larger share of the boxes crosses an edge of its image or has no area.",
        _OBJECTS, "SHARE", shown="10%", most=1, read=read_share,
        wanted="a share such as 10% or 0.1", shapes_bytes=False)
    annotated: Literal["auto", Frame] = _option("auto",
        "Orientation of the annotated images: upright (turned by EXIF), stored (not turned), or "
        "auto.",
        _OBJECTS, "HOW", shown="detected from the size in the annotations, otherwise upright")
    annotated_size: Literal["file", "image"] = _option("file",
        "Image size that pixel coordinates refer to: file (the size stated with the annotations; "
        "coordinates are scaled) or image (the real size).", _OBJECTS, "HOW",
        shown="file, if it states one", is_newer=True)
    crowds: Literal["ignore", "objects"] = _option("ignore",
        "Objects that COCO marks with iscrowd: ignore (training ignores them, as it ignores their "
        "pixels in class masks) or objects (they are stored as other objects; CVAT marks all "
        "masks).", _OBJECTS, "HOW", shown="ignore", is_newer=True)
    rle: Literal["auto", RunOrder] = _option("auto",
        "Order of run lengths: column (down each column), row (along each row), relative (down "
        "each column, from the end of the previous run), or auto.", _OBJECTS, "ORDER",
        shown="detected from the data")
    split: str = _option("",
        "Rule that splits: validation=0.1 takes a share of train, the same of every class; "
        "train=0.8,validation=0.1,test=0.1 divides train and all named splits as one set, and "
        "leaves other splits unchanged; column:NAME[:CELL=SPLIT,…]; list:SPLIT=FILE,…; "
        "roots:SPLIT=FOLDER,…; or tables (the CSV that lists the image).", _SPLITS, "RULE",
        shown="folders named train, val, test; otherwise train", read=read_ratios,
        wanted="a text or a table of ratios")
    group: str = _option("",
        "Keep images of one group in one split. The group is a column, folder:N, the first group "
        "of regex:PATTERN, near (near copies), or near,RULE for both.", _SPLITS, "RULE")
    dedup: bool | Literal["near"] = _option(False,
        "Leave out byte-for-byte copies; with near, near copies too, which are found by a pass "
        "over the pixels before the build.", _SPLITS, "[near]",
        wanted="true, false or near")
    items: str = _option("",
        "Table with a row for each image, instead of rules (CSV, Parquet, JSON lines; in Python a "
        "data frame). Columns: image (a path), label, labels, target/NAME, text, split, group, "
        "boxes, mask, target_image, sample and order.", _USED, "FILE", is_newer=True)
    images: tuple[str, ...] = _option((),
        "Images in a file of arrays: Parquet, HDF5, .npy, .npz, IDX, TFRecord, NIfTI, zarr or a "
        "CSV of pixels, or all pages or frames of a TIFF or DICOM file. FILE can be a glob; COLUMN "
        "is a column, array or feature; LAYOUT is a letter of NTHWC for each axis, T for the "
        "images of a stack, or WIDTHxHEIGHT. Can be repeated.", _USED, "FILE[:COLUMN[:LAYOUT]]",
        shown="array files are read if the source has no other images", is_repeated=True,
        is_newer=True)
    stack: str = _option("",
        "Store the images of a sample as one example. PATTERN names its files, such as "
        "train/{id}/*.dcm for a series, in natural order or by the position of DICOM slices, or "
        "{id}_{red,green,blue}.png for channels.", _USED, "PATTERN", is_newer=True)
    tile: tuple[int, int] | None = _option(None,
        "Cut images that are larger than this into tiles; boxes, masks and keypoints too. The "
        "tiles of an image stay in one split. --size is the size of a tile by default.", _USED,
        "WxH", read=read_size, wanted="WIDTHxHEIGHT, such as 512x512, or N", is_newer=True)
    overlap: tuple[int, int] = _option((0, 0),
        "Pixels that neighbouring tiles share.", _USED, "WxH", shown="0", read=read_size,
        wanted="WIDTHxHEIGHT, such as 64x64, or N", is_newer=True)
    root: str = _option("", "Use only images below this folder of the source.", _USED, "FOLDER")
    include: tuple[str, ...] = _option((),
        "Use only images that match, such as *.png. Can be repeated.", _USED, "GLOB",
        is_repeated=True)
    exclude: tuple[str, ...] = _option((),
        "Leave out images and annotation files that match, such as masks/*. Can be repeated.",
        _USED, "GLOB",
        is_repeated=True)
    exclude_list: str = _option("",
        "Leave out images that a file names: the column of ids of a .csv or .tsv, otherwise one "
        "name on each line.", _USED, "FILE")
    follow_links: bool = _option(False,
        "Follow links that lead out of the source folder; by default they are skipped.", _USED)
    zip_encoding: str = _option("",
        "Encoding of names in zips that are not UTF-8, such as cp932.", _USED, "NAME",
        shown="UTF-8 if the names are valid UTF-8, otherwise cp437")
    schema: str = _option("auto",
        "Features of each example: a shipped schema or a JSON file.", _OUTPUT, "NAME|FILE",
        shown="chosen to fit the labels")
    seed: int = _option(0,
        "Random seed for shuffling and splitting.", _SPLITS, "N",
        shown="0", most=MAX_SEED)
    max_pixels: int = _option(100_000_000,
        "Reject images with more pixels, before decoding.", _IMAGES, "N", least=1, most=10**12)
    timeout: float = _option(60.0,
        "Reject an image that takes longer to process; 0 means no limit.", _LIMITS, "SECONDS",
        shown="60", most=10**8, shapes_bytes=False)
    max_members: int = _option(10_000_000,
        "Maximum number of members in all archives of the source together.", _LIMITS, "N", least=1,
        most=10**9, shapes_bytes=False)
    max_member_size: int = _option(2_000_000_000,
        "Reject larger images, before reading them.", _LIMITS, "SIZE", shown="2GB", least=1,
        most=_MAX_BYTES, read=read_num_bytes, wanted=_BYTES)
    max_unpacked: int | None = _option(None,
        "Maximum unpacked size of all archives of the source together.", _LIMITS, "SIZE",
        shown="10GB plus 100 times the source", least=1, most=_MAX_BYTES, read=read_num_bytes,
        wanted=_BYTES, shapes_bytes=False)
    """Maximum in bytes; None for 10 GB plus 100 times the size of the source."""
    max_ratio: int = _option(1000,
        "Maximum ratio of unpacked to packed bytes, for data that unpacks to more than 64 MB.",
        _LIMITS, "N", least=1, most=10**9)
    max_depth: int = _option(8,
        "Maximum nesting of archives in archives.", _LIMITS, "N", least=1, most=64,
        shapes_bytes=False)
    min_side: int = _option(1,
        "Reject images with a shorter side.", _IMAGES, "PIXELS", least=1, most=65_500)
    max_aspect: float = _option(0.0,
        "Reject images with one side more than RATIO times the other; 0 means no limit.", _IMAGES,
        "RATIO", shown="0", most=10**6)
    truncated: Truncated = _option("reject",
        "Truncated image files: reject them, or recover the part that can be decoded.",
        _IMAGES, "HOW")
    max_rejected: float = _option(0.05,
        "Fail if a larger share of the images is rejected.", _LIMITS, "SHARE", shown="5%", most=1,
        read=read_share, wanted="a share such as 5% or 0.05", shapes_bytes=False)
    # fmt: on


BUILD_OPTIONS: dict[str, Option] = {
    declared.name: declared.metadata["option"] for declared in fields(BuildOptions)
}

DATASET = Option(
    "Folder of the dataset or a folder above it, local or in object storage (s3://, gs://, az://). "
    "Default: the dataset of ./shardprep.toml, otherwise the only dataset under ./tfrecords.",
    ARGUMENTS,
)

RUN_OPTIONS = {
    "save_rejected": Option("Copy rejected images to DIR, with a list of the reasons.", RUN, "DIR"),
    "workers": Option(
        "Number of worker processes.",
        RUN, "N", shown="usable cores", least=1, most=_MAX_WORKERS),
    "part": Option(
        "Write only part I of N of the shards, for example in an array job. Run shardprep finalize "
        "when all parts are done.",
        RUN, "I/N"),
    "reuse": Option(
        "Copy images that this dataset already has stored, and encode only the others. The result "
        "is the same as without this option.",
        RUN, "DATASET"),
    "refresh": Option("Download again, even if the archive is in the cache.", RUN),
    "overwrite": Option("Replace an existing result.", RUN),
    "profile": Option("Print how long each step takes.", RUN),
    "dry_run": Option("Print the plan and write nothing.", RUN),
    "items_out": Option(
        "With --dry-run, write the items of the plan as a table for --items: a .parquet or .csv.",
        RUN, "FILE"),
    "store_timeout": Option(
        "Give up when object storage has not answered for this time.",
        RUN, "SECONDS", shown=f"${TIMEOUT_VARIABLE}, otherwise {DEFAULT_TIMEOUT_S:g}",
        least=1, most=86_400),
    "json": Option("Print one JSON object, for errors too.", RUN),
    "quiet": Option("Print only errors on stderr, without progress and notices.", RUN),
    "log_level": Option(
        "Lowest level shown on stderr: debug, info, warning or error. Progress has level info; "
        "debug shows where an error was raised.",
        RUN, "LEVEL", shown="info"),
}  # fmt: skip
"""Options that do not change the result. Untrusted recipe files must not set them."""


class RunOptions(NamedTuple):
    """Options of one run that are also keywords of `shardprep.build`."""

    save_rejected: str | Path | None = None
    workers: int | None = None
    refresh: bool = False
    overwrite: bool = False
    profile: bool = False
    store_timeout: float | None = None
    reuse: str | Path | None = None
    items_out: str | Path | None = None


BUILD_DEFAULTS: dict[str, Any] = {
    **{declared.name: declared.default for declared in fields(BuildOptions)},
    **RunOptions._field_defaults,
}


def spelled(options: Mapping[str, Any]) -> str:
    """Return options as the caller types them: `--masks '{stem}_mask.png'`, or Python keywords."""
    words = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
            continue
        several = value if isinstance(value, tuple) else (value,)
        if len(several) > 1 and not BUILD_OPTIONS[name].is_repeated:
            several = (",".join(several),)
        words += [f"{flag} {shlex.quote(str(one))}" for one in several]
    return as_keywords(options) or " ".join(words)
