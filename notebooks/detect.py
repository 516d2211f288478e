# %% [markdown]
# # Train a detector
#
# This page shows how to train a detector on your boxes. At the end you will have a dataset of images with
# boxes, and a PyTorch model that finds the objects.
#
# [Install shardprep](../docs/platforms.md), then:
#
# ```console
# $ pip install torch
# ```

# %% [markdown]
# ## Make images with boxes
#
# Two hundred pictures with one to three bright cells, and one JSON document in the format of COCO. With your
# own images and document, the next steps are the same.

# %%
import json
import random
from pathlib import Path

from PIL import Image, ImageDraw

random.seed(0)
folder = Path("cells/images")
folder.mkdir(parents=True, exist_ok=True)
document = {"images": [], "annotations": [], "categories": []}
for number, name in enumerate(("round", "square")):
    document["categories"].append({"id": number, "name": name})
for number in range(200):
    picture = Image.new("RGB", (64, 64), (random.randint(10, 90),) * 3)
    for cell in random.sample(range(9), random.randint(1, 3)):
        x, y = cell % 3 * 21 + random.randint(0, 5), cell // 3 * 21 + random.randint(0, 5)
        side, kind = random.randint(10, 15), random.randrange(2)
        draw = ImageDraw.Draw(picture)
        stamp = (draw.ellipse, draw.rectangle)[kind]
        stamp((x, y, x + side, y + side), fill=(random.randint(140, 255), 200, 120))
        box = {"image_id": number, "category_id": kind, "bbox": [x, y, side + 1, side + 1]}
        document["annotations"].append({"id": len(document["annotations"]), **box})
    picture.save(folder / f"{number:03}.png")
    size = {"width": 64, "height": 64}
    document["images"].append({"id": number, "file_name": f"{number:03}.png", **size})
Path("cells/boxes.json").write_text(json.dumps(document))
print(len(document["annotations"]), "boxes")

# %% [markdown]
# ## Build and look

# %%
import shardprep

built = shardprep.build("cells", boxes="coco", size=64, split={"train": 0.8, "validation": 0.2})
built

# %% [markdown]
# Always look at some boxes before you train. `inspect` draws them:

# %%
facts = shardprep.inspect(built.location, boxes="sheet.png")
Image.open("sheet.png").convert("RGB")

# %% [markdown]
# ## Prepare the targets
#
# A small detector in the manner of "Objects as Points" (Zhou and others, 2019): for each cell of 4 × 4
# pixels, the model says whether it is the centre of a round or a square object, and how large the object
# is. `max_boxes` gives all batches the same shape. Padding rows have label −1.

# %%
import torch
from torch import nn

from shardprep import reader

GRID, CLASSES = 16, 2
options = {"max_boxes": 4, "box_format": "rel_center_xywh"}
train = reader.Dataset(built.location, "train")
valid = reader.Dataset(built.location, "validation")
images, targets = next(train.batches(32, seed=0, **options))
print(images.shape, targets["boxes"].shape, targets["labels"][0])


def grid(targets):
    """Return for each cell: the centre of which class, and width and height."""
    boxes, labels = (torch.from_numpy(targets[name]) for name in ("boxes", "labels"))
    wanted = torch.zeros(len(boxes), CLASSES + 2, GRID, GRID)
    rows, places = torch.nonzero(labels >= 0, as_tuple=True)
    found = boxes[rows, places]
    x, y = (found[:, :2] * GRID).long().unbind(1)
    wanted[rows, labels[rows, places], y, x] = 1
    wanted[rows, CLASSES:, y, x] = found[:, 2:]
    return wanted


# %% [markdown]
# ## Train

# %%
torch.manual_seed(0)
torch.set_num_threads(1)
steps = []
for inputs, outputs, stride in ((3, 16, 2), (16, 32, 2), (32, 32, 1), (32, 32, 1)):
    convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    steps += [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]
model = nn.Sequential(*steps, nn.Conv2d(32, CLASSES + 2, 1))
nn.init.constant_(model[-1].bias, -2.0)
optimizer = torch.optim.AdamW(model.parameters(), 5e-3)


def predict(images):
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    return torch.sigmoid(model(pixels))


for images, targets in train.batches(16, seed=0, epochs=8, **options):
    wanted, found = grid(targets), predict(images)
    centres = wanted[:, :CLASSES].amax(1, keepdim=True)
    apart = wanted[:, :CLASSES] - found[:, :CLASSES]
    focal = nn.functional.binary_cross_entropy(
        found[:, :CLASSES], wanted[:, :CLASSES], apart.detach() ** 2, reduction="sum"
    )
    size = ((wanted - found)[:, CLASSES:].abs() * centres).sum()
    loss = (focal + 5 * size) / centres.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %% [markdown]
# ## Measure
#
# A prediction is right if the best cell of an image has the class and the place of an object.

# %%
model.eval()
right = []
with torch.no_grad():
    for images, targets in valid.batches(16, shuffle=False, **options):
        best = predict(images)[:, :CLASSES].flatten(1).argmax(1)
        wanted = grid(targets)[:, :CLASSES].flatten(1)
        right += wanted.gather(1, best[:, None])[:, 0].tolist()
share = sum(right) / len(right)
print(f"best cell right in {share:.2f} of {len(right)} images")

# %% [markdown]
# ## Next
#
# - [Train with boxes, masks and keypoints](../docs/tasks.md): detectors in Keras and of torchvision, all box formats.
# - [Augment images with their boxes](../docs/augment.md).
# - [Other forms of boxes](../docs/boxes.md): Pascal VOC, YOLO, tables, LabelMe, VIA and CVAT.
# - [Segment images](../docs/tutorial_segment.md).
