"""docs/gallery.md shows what its commands build."""

import io
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from shardprep.dataset.manifest import load_manifest
from tests.documents.gallery import FOLDER, GROUPS, PAGE, built, layout_of, page_text, pictures
from tests.writer.records import records


def test_the_gallery_is_written_from_the_layouts() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_text(), "python -m tests.documents.gallery"


@pytest.mark.parametrize(
    "name", [name for names in GROUPS.values() for name in names if not layout_of(name).row]
)
def test_a_layout_of_the_gallery_alone_has_the_result_that_it_names(
    name: str, tmp_path: Path
) -> None:
    """`test_layouts` checks the others, which docs/kaggle.md lists too."""
    layout = layout_of(name)
    folder = built(layout, tmp_path / "here")
    manifest = load_manifest(folder)
    assert {split: one.num_records for split, one in manifest.splits.items()} == layout.splits
    if layout.classes:
        assert manifest.labels is not None
        assert tuple(manifest.labels.names) == layout.classes
    elif layout.stored == "keypoints":
        points = manifest.annotations["train"].points
        assert points is not None
        assert points.num_labelled == sum(layout.objects.values())
    elif layout.stored == "boxes":
        found = [one.objects for one in manifest.annotations.values()]
        counts = (Counter(one.objects) for one in found if one is not None)
        assert sum(counts, Counter()) == layout.objects
    else:
        feature = {"pairs": "target_image"}.get(layout.stored, "texts")
        assert all(feature in record for record in records(folder).values())


def test_classes_that_number_their_files_alike_stay_classes_on_plain_grounds(
    tmp_path: Path,
) -> None:
    """Pictures of single things are alike without showing one scene."""
    labels = load_manifest(built(layout_of("PetImages"), tmp_path / "here")).labels
    assert labels is not None
    assert labels.names == ("Cat", "Dog")


@pytest.mark.thorough
def test_the_pictures_of_the_gallery_can_be_drawn_anew(tmp_path: Path) -> None:
    """Fonts differ between machines, so only mean colours are compared."""
    pytest.importorskip("pydicom")
    drawn = pictures(tmp_path)
    assert drawn.keys() == {path.name for path in FOLDER.iterdir()}
    for name, data in drawn.items():
        colours, kept = (
            Image.open(file).convert("RGB").resize((30, 30), Image.Resampling.BOX)
            for file in (io.BytesIO(data), FOLDER / name)
        )
        apart = [abs(a - b) for a, b in zip(colours.tobytes(), kept.tobytes(), strict=True)]
        assert sum(apart) / len(apart) < 8, name
        assert len(data) < 40_000
