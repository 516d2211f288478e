# %% [markdown]
# # Segment images with a U-Net
#
# This page shows how to train a U-Net on your masks. At the end you will have a dataset of images with class
# masks, and a small model in Keras that finds the class of each pixel.
#
# [Install shardprep](../docs/platforms.md), then:
#
# ```console
# $ pip install 'shardprep[reader]' keras
# ```

# %% [markdown]
# ## Make images and masks
#
# A hundred pictures of leaves, each with a mask: 0 is the background, 1 a leaf, 2 a spot on the leaf. The mask
# of `images/007.png` is `masks/007.png`.

# %%
import random
from pathlib import Path

from PIL import Image, ImageDraw

random.seed(0)
for name in ("images", "masks"):
    Path("leaves", name).mkdir(parents=True, exist_ok=True)
for number in range(100):
    picture = Image.new("RGB", (64, 64), tuple(random.choices(range(60, 200), k=3)))
    mask = Image.new("L", picture.size)
    x, y = random.randint(4, 14), random.randint(4, 14)
    leaf = (x, y, x + random.randint(34, 46), y + random.randint(30, 46))
    spots = []
    for _ in range(random.randint(1, 3)):
        x, y = random.randint(22, 38), random.randint(20, 36)
        spots.append((x, y, x + 8, y + 8))
    for value, colour, shapes in ((1, (60, 150, 60), [leaf]), (2, (150, 90, 40), spots)):
        for shape in shapes:
            ImageDraw.Draw(picture).ellipse(shape, fill=colour)
            ImageDraw.Draw(mask).ellipse(shape, fill=value)
    picture.save(f"leaves/images/{number:03}.png")
    mask.save(f"leaves/masks/{number:03}.png")

# %% [markdown]
# ## Build and look
#
# The pattern of `masks` says which file is the mask of an image. `mask_values` names the values of its
# pixels.

# %%
import shardprep

built = shardprep.build(
    "leaves",
    masks="masks/{stem}.png",
    mask_values="0=background,1=leaf,2=spot",
    size=64,
    split={"train": 0.8, "validation": 0.2},
)
built

# %%
facts = shardprep.inspect(built.location, boxes="sheet.png")
Image.open("sheet.png").convert("RGB")

# %% [markdown]
# ## Train
#
# A batch is uint8 images and uint8 masks. Pixels without a class are 255, so `ignore_class=255`.
# The augmentation moves an image and its mask together.

# %%
import keras
from keras import layers

from shardprep import reader
from shardprep.reader import augment

keras.utils.set_random_seed(0)
flips = augment.Compose([augment.Flip(0.5, 0.5)])
train = reader.load(built.location, "train", batch_size=8, augment=flips, seed=0)
valid = reader.load(built.location, "validation", batch_size=8)


def block(x, filters):
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    return layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))


images = keras.Input((64, 64, 3), dtype="uint8")
x, skips = layers.Rescaling(1 / 255)(images), []
for filters in (8, 16):
    skips.append(block(x, filters))
    x = layers.MaxPooling2D()(skips[-1])
x = block(x, 32)
for skip in reversed(skips):
    x = layers.Concatenate()([layers.UpSampling2D()(x), skip])
    x = block(x, skip.shape[-1])
unet = keras.Model(images, layers.Conv2D(3, 1)(x))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=255)
iou = keras.metrics.MeanIoU(3, ignore_class=255, sparse_y_pred=False, name="iou")
unet.compile(keras.optimizers.Adam(1e-2), loss, metrics=[iou])
history = unet.fit(train, epochs=5, verbose=0)
scores = unet.evaluate(valid, verbose=0, return_dict=True)
print(f"mean IoU {scores['iou']:.2f}")

# %% [markdown]
# ## Look at predictions
#
# Top: images. Bottom: the predicted class of each pixel.

# %%
pictures, _ = next(iter(valid))
found = unet.predict(pictures, verbose=0).argmax(-1).astype("uint8")
sheet = Image.new("RGB", (6 * 64, 2 * 64))
for place in range(6):
    colours = Image.fromarray(found[place], "P")
    colours.putpalette([40, 40, 40, 60, 200, 60, 220, 60, 40])
    sheet.paste(Image.fromarray(pictures[place].numpy()), (64 * place, 0))
    sheet.paste(colours.convert("RGB"), (64 * place, 64))
sheet

# %% [markdown]
# ## Next
#
# - [Train with boxes, masks and keypoints](../docs/tasks.md): larger models, in Keras and PyTorch.
# - [Augment images with their masks](../docs/augment.md).
# - [Other forms of masks](../docs/masks.md): run lengths, outlines, one file for each object.
# - [See a dataset in a browser](../docs/view.md).
