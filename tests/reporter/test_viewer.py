"""The viewer's pages: filters, items, findings and damaged records."""

import io
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import shardprep
from shardprep import reader
from shardprep.dataset.item_table import ItemFile, ItemView, read_items
from shardprep.dataset.open_dataset import open_dataset
from shardprep.dataset.schema import BOX, BOX_LABEL, MASK
from shardprep.reporter.record_columns import read_contents
from shardprep.reporter.report import Report
from shardprep.reporter.viewer.server import PageRequest
from shardprep.reporter.viewer.viewer import Site
from tests.reporter.pages import HOSTILE, ODD, Page, packed, strange
from tests.support.annotated import MARKED, annotated
from tests.support.builders import animals, tree
from tests.support.examples import examples, flipped, texts
from tests.support.object_store import Bucket, Proxy
from tests.support.planted import file, photo
from tests.support.viewing import Served, items_of, served

TAGS = {
    "html", "head", "meta", "title", "link", "script", "body", "header", "main", "nav", "section",
    "h1", "h2", "h3", "p", "small", "span", "ul", "li", "a", "bdi", "code", "div", "table",
    "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd", "img", "svg", "path", "rect", "label",
    "input", "form", "select", "option", "button", "br",
}  # fmt: skip


@pytest.fixture(name="one", scope="module")
def _one(path: Path, report: Report, passes: Path) -> Iterator[Served]:
    """Serve a dataset whose measures are cached."""
    assert report.measured is not None
    with mock.patch.dict(os.environ, SHARDPREP_CACHE=str(passes)), served(path) as one:
        one.client.page("/findings")
        yield one


@pytest.fixture(name="rows", scope="module")
def _rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path / "items.parquet").to_pylist()
    return sorted(rows, key=lambda row: row["status"] != "written")


def listed(one: Served, query: str) -> list[int]:
    """Return the items on all pages of a filter."""
    found, target = [], f"/?{query}"
    while target:
        page = one.client.page(target)
        found += items_of(page)
        link = re.search(r'<a href="([^"]+)" rel="next">', page)
        target = link[1].replace("&amp;", "&") if link else ""
    return found


@pytest.mark.parametrize(
    ("query", "fits"),
    [
        ("", lambda _: True),
        ("split=train", lambda row: row["split"] == "train"),
        ("split=nowhere", lambda _: False),
        ("status=rejected", lambda row: row["status"] == "rejected"),
        ("status=written&split=validation", lambda row: row["split"] == "validation"),
        ("label=1", lambda row: row["label"] == 1),
        ("label=none", lambda row: row["status"] != "skipped" and row["label"] is None),
        ("label=99999999999999999999", lambda _: False),
        ("label=-1", lambda _: False),
        ("key=LEAK", lambda row: "leak" in row["key"]),
        ("key=.png&label=0", lambda row: ".png" in row["key"] and row["label"] == 0),
        ("key=%25", lambda row: "%" in row["key"]),
        ("finding=nothing", lambda _: False),
    ],
)
def test_a_filter_returns_the_matching_items(
    one: Served, rows: list[dict[str, Any]], query: str, fits: Any
) -> None:
    wanted = [number for number, row in enumerate(rows) if fits(row)]
    assert listed(one, query) == wanted
    page = one.client.page(f"/?{query}")
    of = f" of {len(rows)}" if query else ""
    assert f"{len(wanted)}{of} items" in page
    num_out = sum(rows[number]["status"] != "written" for number in wanted)
    assert (f"{num_out} of them not in the dataset" in page) == (num_out > 0)


def test_each_choice_shows_its_number_of_items(one: Served, rows: list[dict[str, Any]]) -> None:
    page = one.client.page("/?label=1&split=train")
    for value, name in (("train", "train"), ("validation", "validation")):
        number = sum(row["label"] == 1 and row["split"] == value for row in rows)
        assert f">{name} ({number})</option>" in page
    number = sum(row["label"] == 0 and row["split"] == "train" for row in rows)
    assert f'<option value="0">cat ({number})</option>' in page
    assert '<option value="train" selected="">' in page


def test_every_finding_leads_to_its_items(one: Served, report: Report) -> None:
    page = one.client.page("/findings")
    contents = report.contents
    assert "Pixels of 60 of 60 images were looked at" in page
    for finding in report.findings:
        assert finding.name in page
        numbers = listed(one, f"finding={finding.name}")
        keys = {contents.key(n) for n in numbers if n < len(contents)}
        assert keys | {"train/dog/broken.jpg"} >= {*finding.keys}
    leak = [contents.key(number) for number in listed(one, "finding=leaks")]
    assert sorted(leak) == ["train/cat/00.jpg", "validation/cat/leak.jpg"]


def test_without_a_report_only_findings_of_documents_are_shown(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path))
    with served(path) as one:
        assert "run <code>shardprep report</code> once" in one.client.page("/findings")
        assert listed(one, "finding=near-leaks") == []
        assert len(listed(one, "finding=leaks")) == 2
    assert not list(tmp_path.rglob("*.npz"))


def test_links_lead_through_the_items_of_a_filter(one: Served, rows: list[dict[str, Any]]) -> None:
    query = "label=0&split=validation"
    wanted = [n for n, row in enumerate(rows) if row["label"] == 0 and row["split"] == "validation"]
    seen = [wanted[0]]
    while True:
        page = one.client.page(f"/item/{seen[-1]}?{query}")
        assert f"{len(seen)} of {len(wanted)} that fit" in page
        links = re.findall(r'/item/(\d+)\?split=validation&amp;label=0" rel="(\w+)"', page)
        ways = {rel: int(to) for to, rel in links}
        assert ways.get("prev") == (seen[-2] if len(seen) > 1 else None)
        if "next" not in ways:
            break
        seen.append(ways["next"])
    assert seen == wanted
    assert 'href="/?split=validation&amp;label=0" rel="up"' in page
    outside = next(n for n in range(len(rows)) if n not in wanted)
    assert f"{outside + 1} of {len(rows)} items" in one.client.page(f"/item/{outside}?{query}")


def test_an_item_shows_its_row_findings_and_copies(
    one: Served, rows: list[dict[str, Any]], path: Path
) -> None:
    number = next(n for n, row in enumerate(rows) if row["key"] == "train/cat/00.jpg")
    text = Page(one.client.get(f"/item/{number}").body).text
    row = rows[number]
    for name, value in row.items():
        assert name in text
        assert (f"{value:,}" if isinstance(value, int) else str(value or "–")) in text
    assert "0 (cat)" in text
    assert "leak: 2 copies, byte for byte, in train and validation" in text
    found = re.search(r'reader\.Dataset\(path, "(\w+)"\)\[(\d+)\]', text)
    assert found is not None
    item = reader.Dataset(path, found[1], as_supervised=False)[int(found[2])]
    assert item["image/filename"] == row["key"]


def test_an_input_that_was_left_out_shows_why(one: Served, rows: list[dict[str, Any]]) -> None:
    number = next(n for n, row in enumerate(rows) if row["status"] == "rejected")
    for target in (f"/item/{number}", "/?status=rejected"):
        page = Page(one.client.get(target).body)
        assert rows[number]["reason"] in page.text
        assert not [tag for tag, _ in page.tags if tag == "img"]


def test_images_are_the_stored_bytes_and_tiles_show_them(one: Served, path: Path) -> None:
    data = reader.Dataset(path, "train", decode=False, as_supervised=False)
    for number in (0, len(data) - 1):
        found = one.client.get(f"/image/{number}")
        assert found.body == data[number]["image"]
        assert found.headers["content-type"] == "image/jpeg"
        tile = one.client.get(f"/tile/{number}")
        assert tile.headers["content-type"] == "image/webp"
        pixels = np.asarray(Image.open(io.BytesIO(tile.body)).convert("RGB"), float)
        stored = np.asarray(Image.open(io.BytesIO(found.body)).convert("RGB"), float)
        assert np.abs(pixels - stored).mean() < 8
        again = one.client.get(f"/tile/{number}", f"If-None-Match: {tile.headers['etag']}")
        assert (again.status, again.body) == (304, b"")
        assert again.headers["etag"] == tile.headers["etag"] != found.headers["etag"]


def test_single_values_equal_the_values_of_the_whole_column(path: Path, tmp_path: Path) -> None:
    table = read_items(path / "items.parquet")
    pq.write_table(table, tmp_path / "items.parquet", row_group_size=7)
    is_of = np.random.default_rng(0).random(len(table)) < 0.8
    whole = table.filter(pa.array(is_of))
    file = ItemFile(tmp_path / "items.parquet")
    rows = ItemView(file, is_of)
    for name in ("key", "label", "status"):
        for number in np.random.default_rng(1).permutation(len(whole)).tolist():
            assert rows.value(name, number) == whole[name][number].as_py()
            row = file.row(int(rows.numbers[number]))
            assert row == whole.slice(number, 1).to_pylist()[0]
    with mock.patch.object(ItemFile, "column", side_effect=AssertionError("was read whole")):
        near = ItemView(file, is_of)
        assert [near.value("key", i) for i in range(12)] == whole["key"][:12].to_pylist()
    file.close()


def test_plain_pixels_become_a_png(tmp_path: Path) -> None:
    path = packed(tmp_path, animals(4), labels="prefix", size="32x24", format="raw")
    with served(path) as one:
        found = one.client.get("/image/1")
        assert found.headers["content-type"] == "image/png"
        pixels = np.asarray(Image.open(io.BytesIO(found.body)))
        assert (pixels == reader.Dataset(path, "train", as_supervised=False)[1]["image"]).all()
        assert one.client.get("/tile/1").headers["content-type"] == "image/webp"


def test_a_damaged_record_is_one_tile_with_the_error(path: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(path, tmp_path / "set")
    shard = next(copy.glob("*train*"))
    shard.write_bytes(flipped(shard.read_bytes(), 8 * 40))
    with served(copy) as one:
        assert items_of(one.client.page("/"))[:2] == [0, 1]
        for target in ("/tile/0", "/image/0"):
            found = one.client.get(target)
            assert (found.status, found.headers["content-type"]) == (200, "image/svg+xml")
            assert "CRC" in Page(found.body).text
            assert found.headers["cache-control"] == "private, no-store"
        assert "CRC" in Page(one.client.get("/item/0").body).text
        assert one.client.get("/tile/1").headers["content-type"] == "image/webp"
        next(copy.glob("*validation*")).unlink()
        number = len(reader.Dataset(copy, "train"))
        assert "missing" in Page(one.client.get(f"/item/{number}").body).text
        assert one.client.get("/tile/2").headers["content-type"] == "image/webp"


def test_boxes_and_masks_lie_over_their_image(tmp_path: Path) -> None:
    path = annotated(tmp_path, BOX, BOX_LABEL, MASK)
    with served(path) as one:
        for number in range(len(MARKED)):
            page = one.client.page(f"/item/{number}")
            key = next(key for key in MARKED if f"{key}</bdi></h2>" in page)
            marked = MARKED[key]
            drawn = re.findall(r'<path d="([^"]+)" stroke', page)
            assert "".join(drawn).count("M") == len(marked.rectangles)
            boxes = page.partition('<h2 id="objects-title">')[2].partition("</section>")[0]
            for top, left, bottom, right in marked.rectangles:
                cells = f'{left}</td><td class="n">{top}</td><td class="n">{right - left} × '
                assert f"{cells}{bottom - top}<" in boxes.replace("&#215;", "×")
            mask = one.client.get(f"/mask/{number}")
            assert mask.headers["content-type"] == "image/webp"
            colours = np.asarray(Image.open(io.BytesIO(mask.body)).convert("RGBA"))
            classes = marked.classes()
            for value in (1, 2):
                assert len(np.unique(colours[classes == value], axis=0)) <= 1
        for label in (0, 1):
            wanted = sum(label in marked.labels for marked in MARKED.values())
            assert len(listed(one, f"object={label}")) == wanted
        tile = np.asarray(Image.open(io.BytesIO(one.client.get("/tile/0").body)).convert("RGB"))
        assert tile.shape[:2] == (132, 176)


@pytest.mark.thorough
def test_a_dataset_in_object_storage_is_read_by_ranges(
    path: Path, bucket: Bucket, proxy: Proxy
) -> None:
    """Neighbouring records are read together; no shard is copied."""
    for name, data in tree(path).items():
        bucket.put(f"sets/planted/1.0.0/{name}", data)
    with served(f"{bucket.url}/sets") as one, served(path) as here:
        proxy.reset()
        numbers = items_of(one.client.page("/"))
        tiles = [one.client.get(f"/tile/{number}").body for number in numbers]
        ranges = [r for r in proxy.requests if ".tfrecord" in r.path and ".idx" not in r.path]
        assert all("range" in request.headers for request in ranges)
        assert 0 < len(ranges) <= len(numbers) // 4
        assert tiles == [here.client.get(f"/tile/{number}").body for number in numbers]
        assert one.client.get("/image/3").body == here.client.get("/image/3").body


@examples(12)
@given(
    names=st.lists(st.one_of(texts(), st.sampled_from(HOSTILE)), min_size=61, max_size=61),
    part=texts(max_size=5),
)
def test_no_name_becomes_markup(path: Path, names: list[str], part: str) -> None:
    """Keys, classes, reasons and search texts."""
    contents = read_contents(open_dataset(path))
    sound = [one.encode(errors="replace").decode() for one in names]
    labels = tuple(f"{one} {i}" for i, one in enumerate(sound[:2]))
    splits = {
        name: one.model_copy(update={"label_counts": dict.fromkeys(labels, 8)})
        for name, one in contents.manifest.splits.items()
    }
    contents = replace(
        contents,
        dataset=replace(
            contents.dataset, schema=contents.schema.model_copy(update={"labels": labels})
        ),
        manifest=contents.manifest.model_copy(update={"splits": splits}),
    )
    contents.written._columns["key"] = pa.chunked_array([pa.array(sound[:60])])
    for name in ("key", "reason"):
        contents.others._columns[name] = pa.chunked_array([pa.array(sound[60:])])
    site = Site(contents)
    for target, query in (
        ("/", {}), ("/findings", {}), ("/", {"key": part}), ("/item/0", {"label": part}),
        ("/item/60", {"split": part}),
    ):  # fmt: skip
        page = Page(site.answer(PageRequest(target, query)).body)
        assert {tag for tag, _ in page.tags} <= TAGS
        for tag, attrs in page.tags:
            assert not {name for name in attrs if name.startswith("on") or name == "style"}, tag
            for name in ("src", "href", "action"):
                assert re.fullmatch(r"/[a-z]*[\w./?=&%+-]*", attrs.get(name) or "/"), attrs
        assert not set("\u202e\u2066\u200f\0\x1b") & set(page.text)
    site.close()


@examples(12)
@given(data=st.data(), column=st.sampled_from([*ODD, "status", "split"]))
def test_any_values_in_the_item_table_give_pages(
    tmp_path_factory: pytest.TempPathFactory, path: Path, data: st.DataObject, column: str
) -> None:
    """Rows that still match the records are shown with any other values."""
    copy = strange(path, tmp_path_factory.mktemp("strange") / "set", column, data)
    site = Site(read_contents(open_dataset(copy)))
    for target, query in (
        ("/", {}), ("/", {"status": "rejected"}), ("/", {"label": "0"}), ("/item/0", {}),
        ("/item/60", {}), ("/findings", {}),
    ):  # fmt: skip
        Page(site.answer(PageRequest(target, query)).body)
        assert site.answer(PageRequest(target, query)).status == 200
    site.close()


def legend_of(one: Served, number: int) -> str:
    page = one.client.page(f"/item/{number}").partition('id="marks"')[2]
    return page.partition("<section")[0]


def test_the_legend_of_an_item_has_its_own_classes(tmp_path: Path) -> None:
    rows = ["image,xmin,ymin,xmax,ymax,class", "0.png,1,1,9,9,cat", "1.png,1,1,9,9,dog"]
    rows.append("1.png,11,11,19,19,emu")
    members = {f"{i}.png": file(photo(i), "PNG") for i in range(3)}
    members["b.csv"] = "\n".join(rows).encode()
    rule = "csv:b.csv:image:xmin,ymin,xmax,ymax:class"
    keys = {"labels": "none", "boxes": rule, "unlisted": "background"}
    path = packed(tmp_path, members, size="none", **keys)
    numbers = pq.read_table(path / "items.parquet")["key"].to_pylist()
    with served(path) as one:
        for key, expected in (("0.png", ["cat"]), ("1.png", ["dog", "emu"]), ("2.png", [])):
            legend = legend_of(one, numbers.index(key))
            assert re.findall("<bdi>([^<]*)</bdi>", legend) == expected


def test_the_legend_of_an_item_has_the_classes_of_its_mask(tmp_path: Path) -> None:
    path = annotated(tmp_path, MASK)
    rows = pq.read_table(path / "items.parquet")["mask_pixels"].to_pylist()
    schema = shardprep.inspect(path).schema.features[MASK]
    with served(path) as one:
        for number, row in enumerate(rows):
            values, legend = {value for value, _ in row or ()}, legend_of(one, number)
            names = {schema.labels[value] for value in values if value != schema.ignored}
            assert {*re.findall("<bdi>([^<]*)</bdi>", legend)} == names
            assert (">ignored<" in legend) == (schema.ignored in values)
