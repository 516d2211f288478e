"""`Dataset.loader` compared with a tuned `DataLoader` of PyTorch that reads the images as files.

Both yield shuffled batches of uint8 tensors of one size. `Dataset.loader` decodes with as many
threads as the `DataLoader` has worker processes. Pillow decodes the files, as in torchvision's
`ImageFolder`. The files are the stored images, or the original photos, which are also resized.

With boxes, a `DataLoader` of our `Dataset` is compared with a `DataLoader` of files, whose samples
are the input of torchvision's detectors. Both have the same number of worker processes.
"""

from __future__ import annotations

import itertools
import json
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageOps

from benchmarks import photos
from benchmarks.measure import Measure, Row, built, interleaved
from benchmarks.read import BATCH, of
from benchmarks.table import alone

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    Box = tuple[float, float, float, float]

STORED = Measure("`Dataset.loader` / tuned `DataLoader` on the stored images as JPEG files", "")
PHOTOS = Measure("the same on the original photos, resized by Pillow", ">= 3")
WORKERS = Measure(
    "`DataLoader` of a `Dataset` with boxes and `reader.collate` / of those files by hand", ">= 1.5"
)
WORKERS_PHOTOS = Measure("the same by hand on the original photos with boxes", ">= 1.5")
CROPS = Measure("`Dataset.loader` / `DataLoader` of a `Dataset`: random crops of 500x375")
BOXES = Measure("the same with boxes")
MASKS = Measure("the same with boxes and masks of objects")
RATIOS = {
    STORED: ("loader", "stored"),
    PHOTOS: ("loader", "photos"),
    WORKERS: ("workers, boxes", "stored, boxes"),
    WORKERS_PHOTOS: ("workers, boxes", "photos, boxes"),
    CROPS: ("loader, crops", "workers, crops"),
    BOXES: ("loader, boxes", "workers, boxes"),
    MASKS: ("loader, masks", "workers, masks"),
}
MEASURES = tuple(RATIOS)
NUM_WORKERS = 2
SIZE = 224
"""Height and width of the images in pixels: the default of a build."""
_MASKS = ("--boxes", "coco", "--masks", "coco", "--instances")


class Files:
    """Image files as a map-style dataset of PyTorch."""

    def __init__(self, folder: Path) -> None:
        """Take the JPEG files in a folder per class."""
        self._paths = sorted(folder.glob("*/*.jpg"))
        self._labels = [int(path.parent.name == "dog") for path in self._paths]

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        with Image.open(self._paths[number]) as image:
            fitted = image.convert("RGB")
        if fitted.size != (SIZE, SIZE):
            fitted = ImageOps.fit(fitted, (SIZE, SIZE), Image.Resampling.BICUBIC)
        return np.array(fitted), self._labels[number]


class Annotated:
    """Image files with boxes as a map-style dataset of PyTorch, for torchvision's detectors."""

    def __init__(self, objects: Mapping[Path, Sequence[tuple[Box, int]]]) -> None:
        """Take the objects of each file: left, top, right and bottom in pixels, and the class."""
        self._paths = list(objects)
        # Arrays, because each tensor would take a file descriptor on the way to a worker.
        self._boxes = [np.array([box for box, _ in own], np.float32) for own in objects.values()]
        self._labels = [np.array([label for _, label in own]) for own in objects.values()]

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> tuple[Any, dict[str, Any]]:
        import torch

        boxes = self._boxes[number]
        with Image.open(self._paths[number]) as image:
            fitted = image.convert("RGB")
        if fitted.size != (SIZE, SIZE):
            boxes = boxes * np.divide(SIZE, fitted.size * 2, dtype=np.float32)
            fitted = fitted.resize((SIZE, SIZE), Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(fitted)).permute(2, 0, 1)
        labels = self._labels[number]
        return pixels, {"boxes": torch.from_numpy(boxes), "labels": torch.from_numpy(labels)}


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return the ratios of images per second."""
    from shardprep import reader

    batches = 2 if quick else 90
    source = photos.write_folder(folder / "photos", batches // 2 * BATCH)
    path = built(folder / "out", source, "--shards", 8)
    large = built(folder / "large", source, "--shards", 8, "--size", "500x375")
    objects = _write_objects(source)
    boxes = built(folder / "boxes", source, "--shards", 8, "--boxes", "coco")
    masks = built(folder / "masks", source, "--shards", 8, *_MASKS)
    stored = folder / "stored"
    for number, (data, label) in enumerate(reader.Dataset(path, "train", decode=False)):
        file = stored / ("cat", "dog")[label] / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    with_boxes = Annotated(_stored_objects(boxes, folder / "stored_with_boxes"))
    crop = {"random_resized_crop": (SIZE, SIZE)}
    lists = {"collate_fn": reader.collate}
    ways = {
        "loader": partial(_loader, path),
        "stored": partial(_data_loader, Files(stored)),
        "photos": partial(_data_loader, Files(source)),
        "workers, boxes": partial(_data_loader, reader.Dataset(boxes, "train"), **lists),
        "stored, boxes": partial(_data_loader, with_boxes, collate_fn=_pairs),
        "photos, boxes": partial(_data_loader, Annotated(objects), collate_fn=_pairs),
        "loader, crops": partial(_loader, large, **crop),
        "workers, crops": partial(_data_loader, reader.Dataset(large, "train", transform=_crop)),
        "loader, boxes": partial(_loader, boxes),
        "loader, masks": partial(_loader, masks),
        "workers, masks": partial(_data_loader, reader.Dataset(masks, "train"), **lists),
    }
    cost = interleaved({name: partial(of, way, batches) for name, way in ways.items()}, rounds)
    rates = {name: batches * BATCH / one.wall_s for name, one in cost.items()}
    return [
        measure.came_to(rates[one] / rates[two], f"{rates[one]:,.0f} / {rates[two]:,.0f} images/s")
        for measure, (one, two) in RATIOS.items()
    ]


def _write_objects(source: Path) -> dict[Path, list[tuple[Box, int]]]:
    """Write 1 to 12 random objects per photo in COCO's format; return file → its objects."""
    rng = np.random.default_rng(0)
    objects: dict[Path, list[tuple[Box, int]]] = {}
    images: list[Any] = []
    annotations: list[Any] = []
    for number, path in enumerate(sorted(source.glob("*/*.jpg"))):
        with Image.open(path) as image:
            size = image.size
        name = path.relative_to(source).as_posix()
        images.append({"id": number, "file_name": name, "width": size[0], "height": size[1]})
        objects[path] = []
        for label in rng.integers(1, 81, rng.integers(1, 13)).tolist():
            near = rng.uniform(0, 0.5, 2) * size
            width, height = (rng.uniform(0.1, 0.5, 2) * size).tolist()
            left, top = near.tolist()
            right, bottom = left + width, top + height
            objects[path].append(((left, top, right, bottom), label))
            annotations.append({
                "id": len(annotations), "image_id": number, "category_id": label, "iscrowd": 0,
                "bbox": [left, top, width, height], "area": width * height / 2,
                "segmentation": [[left, top, right, top, left, bottom]],
            })  # fmt: skip
    categories = [{"id": label, "name": f"class {label}"} for label in range(1, 81)]
    document = {"images": images, "annotations": annotations, "categories": categories}
    (source / "annotations.json").write_text(json.dumps(document))
    return objects


def _stored_objects(path: Path, folder: Path) -> dict[Path, list[tuple[Box, int]]]:
    """Write the stored images of a dataset to the folder; return file → its objects."""
    from shardprep import reader

    folder.mkdir()
    objects = {}
    for number, (data, target) in enumerate(reader.Dataset(path, "train", decode=False)):
        file = folder / f"{number}.jpg"
        file.write_bytes(data)
        sides = (target["boxes"] * SIZE)[:, [1, 0, 3, 2]].tolist()
        objects[file] = list(zip(map(tuple, sides), target["labels"].tolist(), strict=True))
    return objects


def _pairs(samples: Sequence[Any]) -> tuple[Any, ...]:
    """Return lists of images and targets, as the training scripts of torchvision do."""
    return tuple(zip(*samples, strict=True))


def _crop(pixels: Any) -> Any:
    """Return a random crop of 8% to 100% of the area, resized by Pillow."""
    height, width = pixels.shape[:2]
    scale = random.uniform(0.08, 1) ** 0.5
    left, top = random.uniform(0, width * (1 - scale)), random.uniform(0, height * (1 - scale))
    box = (left, top, left + width * scale, top + height * scale)
    image = Image.fromarray(pixels)
    return np.array(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box))


def _loader(path: Path, **options: Any) -> Iterator[Any]:
    from shardprep import reader

    loader = reader.Dataset(path, "train").loader(
        BATCH, drop_remainder=True, num_threads=NUM_WORKERS, pin_memory=False, **options
    )
    return itertools.chain.from_iterable(itertools.repeat(loader))


def _data_loader(files: Any, **options: Any) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(
        files, BATCH, shuffle=True, drop_last=True, num_workers=NUM_WORKERS,
        persistent_workers=True, prefetch_factor=4, multiprocessing_context="forkserver", **options,
    )  # fmt: skip
    return itertools.chain.from_iterable(itertools.repeat(loader))


if __name__ == "__main__":
    alone(rows, __doc__)
