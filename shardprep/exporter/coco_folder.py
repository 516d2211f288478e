"""COCO's own folders: `images/train/name.jpg` and `annotations/instances_train.json`.

torchvision's CocoDetection, pycocotools and most detection libraries take them: the root of the
images of a split, and its document, whose file names are relative to that root.
"""

from __future__ import annotations

from shardprep.exporter.image_folder import Folders, layout_of

LAYOUT = layout_of(
    Folders("images/{}", "masks/{}", None, "annotations/instances_{}.json"), needs_boxes=True
)
