"""Tiles of large images, against slices of the whole image by Pillow and NumPy."""

import io
import itertools
import json
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image, ImageDraw, ImageOps

import shardprep
from shardprep.catalog.items import Item
from shardprep.catalog.survey import survey_source
from shardprep.errors import RecipeError, SourceError
from shardprep.image.spec import ImageSpec
from shardprep.image.tiles import windows
from shardprep.recipe.recipe import make_recipe
from shardprep.source.byte_range import PlainExtent
from shardprep.source.limits import SourceLimits
from shardprep.writer.chunk import ChunkTask
from shardprep.writer.finalize import BuildResult
from shardprep.writer.plan.tiles import TileCutter
from tests.support.arrays import decoded
from tests.support.builders import (
    build,
    encoded,
    in_workers,
    pixels,
    unsigned,
    write,
    write_folder,
    zip_bytes,
)
from tests.writer import records as records_of
from tests.writer.records import Features, boxes, png, rows

HEIGHT, WIDTH = 70, 100
TILE: dict[str, Any] = {
    "tile": "32x24",
    "overlap": 8,
    "format": "png",
    "labels": "none",
    "shards": 1,
}
"""Tiles of 24 rows and 32 columns."""


def built(folder: Path, members: Mapping[str, Any], **keys: Any) -> tuple[BuildResult, Features]:
    return records_of.built(folder, members, **{**TILE, **keys})


def tiles_of(found: Features, key: str) -> dict[tuple[int, int], dict[str, Any]]:
    """Return the records of the tiles of an image by y and x; the keys say these too."""
    tiles = {}
    for name, one in found.items():
        if name.startswith(f"{key}/"):
            y, x = one["tile/y"][0], one["tile/x"][0]
            assert name == f"{key}/y{y:06d}_x{x:06d}"
            tiles[y, x] = one
    return tiles


def part(whole: np.ndarray[Any, Any], y: int, x: int) -> np.ndarray[Any, Any]:
    return whole[y : y + 24, x : x + 32]


def tiff(image: np.ndarray[Any, Any], **options: Any) -> bytes:
    out = io.BytesIO()
    tifffile.imwrite(out, image, **options)
    return out.getvalue()


@pytest.mark.parametrize("size", [(70, 100), (24, 32), (25, 33), (10, 200), (1000, 31)])
@pytest.mark.parametrize("overlap", [(0, 0), (8, 5), (23, 31)])
def test_tiles_are_of_one_size_overlap_and_cover_the_image(
    size: tuple[int, int], overlap: tuple[int, int]
) -> None:
    tiles = windows(size, (24, 32), overlap)
    covered = np.zeros(size, int)
    for top, left, height, width in tiles:
        assert (height, width) == (min(24, size[0]), min(32, size[1]))
        assert top + height <= size[0]
        assert left + width <= size[1]
        covered[top : top + height, left : left + width] += 1
    assert covered.all()
    assert len(set(tiles)) == len(tiles)
    for axis, side in ((0, 24), (1, 32)):
        starts = sorted({tile[axis] for tile in tiles})
        assert all(b - a <= side - overlap[axis] for a, b in itertools.pairwise(starts))


def test_tiles_have_the_pixels_of_every_kind_of_image(tmp_path: Path) -> None:
    colours = pixels(HEIGHT, WIDTH)
    deep = (np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH) * 9).astype(np.uint16)
    exif = Image.Exif()
    exif[274] = 6
    planes = colours.transpose(2, 0, 1)
    members = {
        "a.jpg": encoded(Image.fromarray(colours), exif=exif),
        "b.png": encoded(Image.fromarray(colours), "PNG"),
        "deep.png": encoded(Image.fromarray(deep), "PNG"),
        "grey.tif": tiff(deep, tile=(16, 16)),
        "one.tif": tiff(colours, tile=(32, 16), compression="zlib", photometric="rgb"),
        "planes.tif": tiff(planes, photometric="rgb", planarconfig="separate", tile=(16, 32)),
        "series.tif": tiff(planes[None, None], photometric="minisblack", tile=(16, 16)),
        "small.png": encoded(Image.fromarray(colours[:20, :30]), "PNG"),
    }
    result, found = built(tmp_path, members, fit="within", max_pixels=HEIGHT * WIDTH)
    turned = ImageOps.exif_transpose(Image.open(io.BytesIO(members["a.jpg"])))
    grey = np.rint(deep / 65535 * 255).astype(np.uint8)[..., None].repeat(3, axis=2)
    truth = {"a.jpg": np.asarray(turned), "deep.png": grey, "grey.tif": grey}
    for key in ("b.png", "one.tif", "planes.tif", "series.tif"):
        truth[key] = colours
    for key, whole in truth.items():
        tiles = tiles_of(found, key)
        assert len(tiles) == (16 if key != "a.jpg" else 6 * 3)
        for (y, x), one in tiles.items():
            assert np.array_equal(decoded(one["image"][0]), part(whole, y, x)), (key, y, x)
    small = found["small.png"]
    assert np.array_equal(decoded(small["image"][0]), colours[:20, :30])
    assert (small["tile/y"], small["tile/x"]) == ([0], [0])
    assert "7 images cut into 114 tiles of 32x24 pixels, 1 not cut" in result.notes


@pytest.mark.thorough
def test_bytes_depend_on_neither_workers_nor_archive(tmp_path: Path) -> None:
    members = {f"{i}.png": encoded(Image.fromarray(pixels(50, 60, i)), "PNG") for i in range(5)}
    members["s.tif"] = tiff(pixels(HEIGHT, WIDTH), tile=(16, 16), photometric="rgb")
    one, _ = built(tmp_path / "one", members, split="validation=0.4")
    source = write(tmp_path / "source.zip", zip_bytes(members))
    keys: dict[str, Any] = {**TILE, "split": "validation=0.4", "engine": in_workers}
    two = build(source, tmp_path / "two", **keys)
    assert unsigned(one.path) == unsigned(two.path)


def test_tiles_of_a_changed_image_are_reused_and_compared(tmp_path: Path) -> None:
    image = pixels(HEIGHT, WIDTH).copy()
    result, _ = built(tmp_path, {"a.png": encoded(Image.fromarray(image), "PNG")})
    source = tmp_path / "source"
    image[0, 0] ^= 255
    write(source / "a.png", encoded(Image.fromarray(image), "PNG"))
    again = build(source, tmp_path / "out", **TILE, version="2.0.0", reuse=result.path)
    assert (again.num_copied, again.num_new_items) == (15, 16)
    changes = shardprep.diff(result.path, again.path).changes.to_pylist()
    assert [(one["kind"], one["key"]) for one in changes] == [("source", "a.png/y000000_x000000")]


# --- objects ------------------------------------------------------------------------------------


def coco() -> dict[str, Any]:
    """Return objects inside of tiles, across tiles, at an edge of the image, and of run lengths."""
    far = np.zeros((HEIGHT, WIDTH), np.uint8)
    far[5:60, 30:34] = 1
    counts = np.diff(np.flatnonzero(np.diff(far.T.ravel(), prepend=2)), append=far.size).tolist()
    shapes: list[tuple[list[float], Any]] = [
        ([3, 2, 10, 12], [[3, 2, 13, 2, 13, 14, 3, 14]]),
        ([20, 10, 30, 25.5], [[20, 10, 50, 20.5, 35.25, 35.5]]),
        ([60, 40, 40, 30], [[60, 40, 100, 40, 100, 70, 60, 70], [62.5, 42, 70, 42, 70, 50]]),
        ([22, 20, 40, 6], [[22, 20, 62, 20, 62, 26, 22, 26]]),
        ([30, 5, 4, 55], {"counts": counts, "size": [HEIGHT, WIDTH]}),
    ]
    objects = [
        {
            "id": i + 1, "image_id": 1, "category_id": 1 + i % 2, "bbox": box, "area": 10,
            "iscrowd": int(i == 4), "segmentation": shape,
            "keypoints": [box[0] + 1, box[1] + 2, 2, box[0] + box[2] - 1, box[1] + box[3] - 1, 1],
        }
        for i, (box, shape) in enumerate(shapes)
    ]  # fmt: skip
    return {
        "images": [{"id": 1, "file_name": "a.png", "height": HEIGHT, "width": WIDTH}],
        "annotations": objects,
        "categories": [
            {"id": i, "name": name, "keypoints": ["l", "r"]} for i, name in ((1, "x"), (2, "y"))
        ],
    }


def test_boxes_masks_and_keypoints_follow_their_tile(tmp_path: Path) -> None:
    """The oracle slices the masks of pycocotools and clips boxes."""
    from pycocotools.coco import COCO

    members = {"a.png": encoded(Image.fromarray(pixels(HEIGHT, WIDTH)), "PNG")}
    keys = {"boxes": "coco", "masks": "coco", "points": "coco", "instances": True}
    members["boxes.json"] = json.dumps(coco()).encode()
    result, found = built(tmp_path, members, **keys, classes="x,y", max_dropped=1.0)
    truth = COCO(str(tmp_path / "source" / "boxes.json"))
    tiles = tiles_of(found, "a.png")
    assert len(tiles) == 16
    num_cut = 0
    for (y, x), one in tiles.items():
        wanted = []
        for drawn in truth.loadAnns(truth.getAnnIds()):
            left, top, width, height = drawn["bbox"]
            box = np.array((top - y, left - x, top - y + height, left - x + width))
            clipped = box.clip(0, (24, 32, 24, 32))
            sides = clipped[2:] - clipped[:2]
            mask = part(truth.annToMask(drawn), y, x)
            if (sides <= 0).any():
                assert not mask.any()
            elif sides.prod() < 0.1 * width * height:
                num_cut += 1
            elif mask.any():
                points = np.reshape(drawn["keypoints"], (-1, 3)) - (x, y, 0)
                is_in = ((points[:, :2] >= 0) & (points[:, :2] <= (32, 24))).all(axis=1)
                points[~is_in] = 0
                wanted.append((clipped, mask, drawn["category_id"] - 1, points, drawn["iscrowd"]))
        assert one["objects/label"] == [label for _, _, label, _, _ in wanted]
        assert one["objects/is_crowd"] == [crowd for *_, crowd in wanted]
        places = np.reshape(one["objects/keypoints"], (-1, 2, 2))[..., ::-1] * (32, 24)
        visible = np.reshape(one["objects/keypoints/visible"], (-1, 2))
        for i, (box, mask, _, points, _) in enumerate(wanted):
            assert np.allclose(boxes(one)[i] * (24, 32, 24, 32), box, atol=1e-4)
            assert np.array_equal(png(one["objects/mask"][i]), mask), (y, x, i)
            assert np.allclose(places[i], points[:, :2], atol=1e-4)
            assert visible[i].tolist() == points[:, 2].tolist()
    assert num_cut
    assert result.manifest.annotations["train"].dropped == {"cut away": num_cut}


def boxes_of(*several: Sequence[float], **more: Any) -> bytes:
    """Return a COCO document of boxes in a.png, x, y, width and height."""
    document = coco()
    document["annotations"] = [
        {"id": i, "image_id": 1, "category_id": 1, "bbox": box, "iscrowd": 0, **more}
        for i, box in enumerate(several)
    ]
    return json.dumps(document).encode()


def test_different_boxes_that_are_clipped_to_one_tile_are_all_kept(tmp_path: Path) -> None:
    """Both fill the tile in the middle. A box that is in the document twice is one object."""
    large = [0, 0, 96, 70], [1, 1, 97, 69]
    members = {"a.png": encoded(Image.fromarray(pixels(HEIGHT, WIDTH)), "PNG")}
    members["boxes.json"] = boxes_of(*large)
    result, found = built(tmp_path / "one", members, boxes="coco", max_dropped=0.0, min_visible=0.0)
    middle = tiles_of(found, "a.png")[16, 24]
    assert boxes(middle).tolist() == [[0, 0, 1, 1], [0, 0, 1, 1]]
    assert result.manifest.annotations["train"].dropped == {}
    members["boxes.json"] = boxes_of(*large, large[0])
    result, again = built(tmp_path / "two", members, boxes="coco", max_dropped=1.0, min_visible=0.0)
    assert boxes(tiles_of(again, "a.png")[16, 24]).tolist() == [[0, 0, 1, 1], [0, 0, 1, 1]]
    assert result.manifest.annotations["train"].dropped == {"repeated": 1}


@pytest.mark.parametrize("kind", ["outlines", "files"])
def test_masks_that_are_equal_in_one_tile_are_all_kept(tmp_path: Path, kind: str) -> None:
    members = {"images/a.png": encoded(Image.fromarray(pixels(HEIGHT, WIDTH)), "PNG")}
    rings = [[0, 0, 96, 0, 96, 70, 0, 70], [1, 1, 98, 1, 98, 70, 1, 70]]
    keys: dict[str, Any] = {"instances": True, "max_dropped": 1.0, "min_visible": 0.0}
    if kind == "outlines":
        document = json.loads(boxes_of([0, 0, 96, 70], [1, 1, 97, 69], [0, 0, 96, 70]))
        for one, ring in zip(document["annotations"], [*rings, rings[0]], strict=True):
            one["segmentation"] = [ring]
        document["images"][0]["file_name"] = "images/a.png"
        members["boxes.json"] = json.dumps(document).encode()
        keys |= {"masks": "coco"}
    else:
        for i, ring in enumerate([*rings, rings[0]]):
            ImageDraw.Draw(drawn := Image.new("L", (WIDTH, HEIGHT))).polygon(ring, fill=255)
            members[f"masks/a_{i}.png"] = encoded(drawn, "PNG")
        keys |= {"masks": "masks/{stem}_*.png"}
    result, found = built(tmp_path, members, **keys)
    middle = tiles_of(found, "images/a.png")[16, 24]
    assert [png(one).all() for one in middle["objects/mask"]] == [True, True]
    assert result.manifest.annotations["train"].dropped == {"repeated": 1}


def test_a_sliver_counts_by_its_share_and_not_by_its_pixels(tmp_path: Path) -> None:
    """A box of 2 pixels has 0.6 of them in the first tile, and one of 20 has 0.5."""
    members = {"a.png": encoded(Image.fromarray(pixels(24, 64)), "PNG")}
    members["boxes.json"] = boxes_of([31.4, 2, 2, 2], [31.5, 8, 20, 10], [31.9995, 20, 2, 2])
    document = json.loads(members["boxes.json"])
    document["images"][0] |= {"height": 24, "width": 64}
    members["boxes.json"] = json.dumps(document).encode()
    keys: dict[str, Any] = {"boxes": "coco", "overlap": 0}
    result, found = built(tmp_path / "some", members, **keys)
    assert np.allclose(boxes(found["a.png/y000000_x000000"]) * 32, [[2 * 4 / 3, 31.4, 16 / 3, 32]])
    assert result.manifest.annotations["train"].dropped == {"cut away": 2}
    result, found = built(tmp_path / "all", members, **keys, min_visible=0.0)
    assert len(boxes(found["a.png/y000000_x000000"])) == 2
    assert result.manifest.annotations["train"].dropped == {"cut away": 1}


@pytest.mark.parametrize(("size", "scale"), [(None, 1), ("16x12", 0.5), ("64x48", 2)])
def test_images_smaller_than_a_tile_are_padded_and_scaled_as_tiles(
    tmp_path: Path, size: str | None, scale: float
) -> None:
    small = pixels(12, 16)
    members = {
        "a.png": encoded(Image.fromarray(small), "PNG"),
        "large.png": encoded(Image.fromarray(pixels(HEIGHT, WIDTH)), "PNG"),
    }
    document = json.loads(boxes_of([4, 2, 8, 6]))
    document["images"][0] |= {"height": 12, "width": 16}
    members["boxes.json"] = json.dumps(document).encode()
    keys = {"size": size} if size else {}
    _, found = built(tmp_path, members, boxes="coco", **keys)
    stored = decoded(found["a.png"]["image"][0]).astype(int)
    assert stored.shape == (24 * scale, 32 * scale, 3)
    top, left = int(6 * scale), int(8 * scale)
    inside = stored[top : top + int(12 * scale), left : left + int(16 * scale)]
    assert (stored == 255).all(axis=2).sum() >= stored.size / 3 * 3 / 4
    wanted = Image.fromarray(small).resize((int(16 * scale), int(12 * scale)), reducing_gap=None)
    assert np.abs(inside - np.asarray(wanted)).mean() < (1 if scale == 1 else 40)
    side = np.array((24, 32, 24, 32))
    assert np.allclose(boxes(found["a.png"]) * side, [[6 + 2, 8 + 4, 6 + 8, 8 + 12]])


def test_an_exclude_list_takes_keys_of_tiles(tmp_path: Path) -> None:
    image = encoded(Image.fromarray(pixels(HEIGHT, WIDTH)), "PNG")
    members = {"cat/a.png": image, "dog/b.png": image}
    _, every = built(tmp_path / "every", members)
    listed = ["cat/a.png/y000000_x000000", "b.png/y000016_x000024", "cat/a.png/y000001_x000000"]
    (tmp_path / "out.txt").write_text("\n".join(listed))
    result, found = built(tmp_path / "some", members, exclude_list=str(tmp_path / "out.txt"))
    assert every.keys() - found.keys() == {listed[0], "dog/b.png/y000016_x000024"}
    assert result.manifest.totals.skipped == {"on the exclude list": 2}
    assert any(
        "1 of 3 entries (33%) fit no image, such as cat/a.png/y000001" in n for n in result.notes
    )
    (tmp_path / "out.txt").write_text("\n".join(every))
    with pytest.raises(SourceError, match="names all tiles"):
        built(tmp_path / "none", members, exclude_list=str(tmp_path / "out.txt"))


@pytest.mark.thorough
@pytest.mark.parametrize("scale", [1, 2])
@pytest.mark.parametrize("name", ["objects/mask", "segmentation_mask"])
def test_objects_of_turned_and_resized_copies_follow_their_tile(
    tmp_path: Path, scale: int, name: str
) -> None:
    """The oracle slices the record of the whole image, which other tests compare with others."""
    exif, instances = Image.Exif(), name == "objects/mask"
    exif[274] = 6
    document = coco()
    document["images"][0] |= {"height": HEIGHT * scale, "width": WIDTH * scale}
    for one in document["annotations"][:4]:
        one["segmentation"] = [(np.array(ring) * scale).tolist() for ring in one["segmentation"]]
        one["bbox"] = (np.array(one["bbox"]) * scale).tolist()
    del document["annotations"][4]
    document["images"][0]["file_name"] = "a.jpg"
    members = {"a.jpg": encoded(Image.fromarray(pixels(HEIGHT, WIDTH)), exif=exif)}
    members["boxes.json"] = json.dumps(document).encode()
    keys = {"masks": "coco", "annotated": "stored", "instances": instances, "min_visible": 0.0}
    _, found = built(tmp_path / "tiles", members, **keys)
    _, whole = built(tmp_path / "whole", members, **keys, tile=None, overlap=0, size="none")
    masks = [png(data) for data in whole["a.jpg"][name]]
    assert masks[0].shape == (WIDTH, HEIGHT)
    assert len(masks) == (4 if instances else 1)
    tiles = tiles_of(found, "a.jpg")
    assert len(tiles) == 18
    for (y, x), one in tiles.items():
        wanted = [part(mask, y, x) for mask in masks]
        wanted = [mask for mask in wanted if mask.any() or not instances]
        assert np.array_equal([png(data) for data in one[name]], wanted), (y, x)


@pytest.mark.parametrize("kind", ["classes", "binary", "colours", "numbers", "files"])
def test_masks_in_files_follow_their_tile(tmp_path: Path, kind: str) -> None:
    drawn = Image.new("L", (WIDTH, HEIGHT))
    ImageDraw.Draw(drawn).ellipse((10, 5, 60, 50), fill=1)
    ImageDraw.Draw(drawn).rectangle((55, 30, 90, 66), fill=2)
    values = np.asarray(drawn)
    members = {"images/a.png": encoded(Image.fromarray(pixels(HEIGHT, WIDTH)), "PNG")}
    members["images/small.png"] = encoded(Image.fromarray(pixels(20, 30)), "PNG")
    keys: dict[str, Any] = {"masks": "masks/{stem}.png"}
    if kind == "classes":
        files = {"a": drawn, "small": drawn.crop((40, 30, 70, 50))}
    elif kind == "binary":
        both = drawn.point(lambda value: 255 * (value > 0))
        files, values = {"a": both, "small": both.crop((40, 30, 70, 50))}, (values > 0).astype("u1")
    elif kind == "colours":
        keys["mask_values"] = "colours.csv"
        table = np.array([(0, 0, 0), (200, 0, 0), (0, 90, 0)], np.uint8)
        members["colours.csv"] = b"name,r,g,b\nnone,0,0,0\nred,200,0,0\ngreen,0,90,0\n"
        files = {"a": Image.fromarray(table[values])}
        files["small"] = files["a"].crop((40, 30, 70, 50))
    elif kind == "numbers":
        keys["instances"] = True
        files = {"a": drawn, "small": drawn.crop((40, 30, 70, 50))}
    else:
        keys = {"masks": "masks/{stem}_*.png", "instances": True}
        files = {f"a_{i}": drawn.point(lambda v, i=i: 255 * (v == i)) for i in (1, 2)}
        files |= {f"small_{i}": files[f"a_{i}"].crop((40, 30, 70, 50)) for i in (1, 2)}
    members |= {f"masks/{name}.png": encoded(one, "PNG") for name, one in files.items()}
    _, found = built(tmp_path, members, **keys, min_visible=0.0, fit="within")
    tiles = tiles_of(found, "images/a.png")
    assert len(tiles) == 16
    for (y, x), one in [*tiles.items(), ((30, 40), found["images/small.png"])]:
        is_small = (y, x) == (30, 40)
        mask = values[30:50, 40:70] if is_small else part(values, y, x)
        if "instances" not in keys:
            assert np.array_equal(png(one["segmentation_mask"][0]), mask)
            continue
        wanted = [mask == i for i in (1, 2) if (mask == i).any()]
        assert len(one["objects/mask"]) == len(wanted)
        for i, own in enumerate(wanted):
            assert np.array_equal(png(one["objects/mask"][i]), own)
            rows, columns = np.nonzero(own)
            box = rows.min(), columns.min(), rows.max() + 1, columns.max() + 1
            assert np.allclose(boxes(one)[i] * (*mask.shape, *mask.shape), box)


# --- twins of competitions ----------------------------------------------------------------------


def test_a_twin_of_ubc_ocean_keeps_the_tiles_of_a_slide_in_one_split(tmp_path: Path) -> None:
    """Row 10 of the table: PNG slides; one file is missing, one cell empty, one id doubled."""
    table = "image_id,label,image_width\n"
    members: dict[str, Any] = {}
    for i in range(12):
        members[f"train_images/{i}.png"] = encoded(Image.fromarray(pixels(40 + i, 60, i)), "PNG")
        table += f"{i},{'' if i == 3 else ('CC', 'EC')[i % 2]},60\n"
    members["train.csv"] = f"{table}99,CC,60\n0,CC,60\n"
    keys = {"labels": "csv:train.csv:image_id:label", "split": "validation=0.3"}
    result, found = built(tmp_path, members, **keys)
    splits: dict[str, set[tuple[str, int]]] = {}
    for row in rows(result.path).values():
        if row["status"] == "written":
            slide = row["key"].split("/")[1]
            assert row["group"] == f"train_images/{slide}"
            splits.setdefault(slide, set()).add((row["split"], row["label"]))
    assert len(splits) == 11
    assert all(len(several) == 1 for several in splits.values())
    assert result.manifest.totals.skipped == {"no label": 1}
    for key, one in found.items():
        slide = int(key.split("/")[1].partition(".")[0])
        assert result.manifest.labels.names[one["label"][0]] == ("CC", "EC")[slide % 2]
        whole = pixels(40 + slide, 60, slide)
        assert np.array_equal(
            decoded(one["image"][0]), part(whole, one["tile/y"][0], one["tile/x"][0])
        )


def test_a_twin_of_hubmap_kidney_cuts_run_lengths_of_whole_slides(tmp_path: Path) -> None:
    """Row 43: BigTIFF slides of tiles, all glomeruli of a slide in the run lengths of one row."""
    rows, truth, members = ["id,encoding"], {}, dict[str, Any]()
    for i, name in enumerate(("0486052bb", "1e2425f28", "2f6ecfcdf")):
        drawn = Image.new("L", (WIDTH + i, HEIGHT))
        for at in range(3):
            ImageDraw.Draw(drawn).ellipse(
                (30 * at, 9 * i + 7 * at, 30 * at + 25, 40 + 7 * at), fill=1
            )
        truth[name] = np.asarray(drawn)
        flat = np.pad(truth[name].T.ravel(), 1)
        edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
        runs = " ".join(f"{a} {b - a}" for a, b in edges.reshape(-1, 2).tolist())
        rows.append(f"{name},{runs}")
        slide = pixels(HEIGHT, WIDTH + i, i)
        members[f"train/{name}.tiff"] = tiff(
            slide, bigtiff=True, tile=(16, 16), compression="zlib", photometric="rgb"
        )
    members["train/empty.tiff"] = tiff(pixels(HEIGHT, WIDTH), tile=(16, 16), photometric="rgb")
    members["train.csv"] = "\n".join([*rows, "gone,1 5", "empty,", ""])
    keys = {"masks": "rle:train.csv:id:encoding", "rle": "column", "max_dropped": 0.5}
    result, found = built(tmp_path, members, **keys, max_pixels=2000)
    assert result.manifest.unmatched is not None
    assert result.manifest.unmatched.objects == {"no image": 1}
    for name, mask in truth.items():
        tiles = tiles_of(found, f"train/{name}.tiff")
        assert len(tiles) == 16
        for (y, x), one in tiles.items():
            assert np.array_equal(png(one["segmentation_mask"][0]), part(mask, y, x))
    empty = tiles_of(found, "train/empty.tiff")
    assert len(empty) == 16
    assert not any(png(one["segmentation_mask"][0]).any() for one in empty.values())


def test_a_pyramid_is_read_in_bands(tmp_path: Path) -> None:
    """The pixels of the slide are 24 MB; a row of its tiles has 3 MB."""
    rows, columns = np.ogrid[:4000, :2000]
    slide = np.stack(np.broadcast_arrays(rows % 251, columns % 241, rows // 16), axis=2).astype(
        "u1"
    )
    file = tmp_path / "slide.tif"
    options: dict[str, Any] = {"tile": (256, 256), "photometric": "rgb", "compression": "zlib"}
    with tifffile.TiffWriter(file, bigtiff=True) as writer:
        writer.write(slide, subifds=2, **options)
        for step in (2, 4):
            writer.write(slide[::step, ::step], subfiletype=1, **options)
    item = Item("slide.tif", PlainExtent(str(file), 0, file.stat().st_size), "train")
    cutter = TileCutter(
        (512, 512), (64, 64), ImageSpec(max_pixels=1 << 20), None, tmp_path, SourceLimits()
    )
    tracemalloc.start()
    try:
        chunk = cutter(ChunkTask("tiles", 0, (item,)), lambda: None)
        assert tracemalloc.get_traced_memory()[1] < 16e6
    finally:
        tracemalloc.stop()
    assert not chunk.outcomes[0].kind
    tiles = windows((4000, 2000), (512, 512), (64, 64))
    assert len(tiles) == 9 * 5
    with (tmp_path / "000000").open("rb") as made:
        for top, left, _, _ in tiles:
            assert made.readline() + made.readline() + made.readline() == b"P6\n512 512\n255\n"
            found = np.frombuffer(made.read(512 * 512 * 3), np.uint8).reshape(512, 512, 3)
            assert np.array_equal(found, slide[top : top + 512, left : left + 512])


def test_init_says_that_slides_can_be_cut(tmp_path: Path) -> None:
    slide = encoded(Image.new("1", (10_000, 6_000)), "PNG")
    source = write_folder(
        tmp_path / "slides", {"a.png": slide, "b.jpg": encoded(Image.new("L", (9, 9)))}
    )
    survey = survey_source(source, tmp_path, lambda _: None)
    assert "an image has 10000x6000 pixels; --tile 512 would cut it" in survey.findings


# --- errors -------------------------------------------------------------------------------------


def test_an_image_that_cannot_be_cut_is_one_rejection_with_its_key(tmp_path: Path) -> None:
    image = pixels(HEIGHT, WIDTH)
    whole = encoded(Image.fromarray(image), "PNG")
    mask = encoded(Image.new("L", (WIDTH, HEIGHT)), "PNG")
    floats = image[..., 0].astype(np.float32)
    cut = tiff(image, tile=(16, 16), photometric="rgb")
    members = {
        "images/good.png": whole, "masks/good.png": mask,
        "images/cut.png": whole[:-300], "masks/cut.png": mask,
        "images/size.png": whole, "masks/size.png": encoded(Image.new("L", (9, 50)), "PNG"),
        "images/floats.tif": tiff(floats, tile=(16, 16)), "masks/floats.png": mask,
        "images/half.tif": cut[: len(cut) // 2], "masks/half.png": mask,
        "images/lacks.tif": cut[:900], "masks/lacks.png": mask,
    }  # fmt: skip
    result, found = built(tmp_path, members, masks="masks/{stem}.png", max_rejected=1.0)
    assert len(tiles_of(found, "images/good.png")) == len(found) == 16
    rejected = {key: row for key, row in rows(result.path).items() if row["kind"]}
    assert {key: row["kind"] for key, row in rejected.items()} == {
        "images/cut.png": "truncated",
        "images/size.png": "bad_mask",
        "images/floats.tif": "undecodable",
        "images/half.tif": "undecodable",
        "images/lacks.tif": "undecodable",
    }
    assert "1 channels of float32" in rejected["images/floats.tif"]["reason"]


def test_tiles_are_stored_in_their_own_size_by_default() -> None:
    recipe = make_recipe({"source": "x", "tile": "64x48"}, "file")
    assert (recipe.size, recipe.fit) == ((48, 64), "pad")
    assert make_recipe({"source": "x", "tile": 64, "size": 32}, "file").size == (32, 32)
    assert make_recipe({"source": "x", "tile": 64, "fit": "none"}, "file").size is None


def test_volumes_are_not_cut_into_tiles(tmp_path: Path) -> None:
    source = tmp_path / "volumes"
    source.mkdir()
    np.save(source / "a.npy", np.zeros((3, 32, 32), np.uint8))
    with pytest.raises(RecipeError, match="tile: is not supported for stacks"):
        build(source, tmp_path / "out", images=["*.npy::THW"], tile=16)
