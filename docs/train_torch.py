"""Train MobileNetV2 from scratch on a dataset of shardprep, with PyTorch and without TensorFlow.

    python docs/train_torch.py tfrecords/dogs_vs_cats --epochs 20
    python docs/train_torch.py s3://my-bucket/dogs_vs_cats --epochs 20

Images stay uint8 until they are on the device, where a batch is cast and flipped at once.
"""

import argparse
import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader

from shardprep import reader

# Expansion, channels, repeats, stride: table 2 of Sandler et al., "MobileNetV2", CVPR 2018.
BLOCKS = [
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
    (6, 320, 1, 1),
]  # fmt: skip


def conv(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Return a convolution with its normalisation and ReLU6."""
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU6(inplace=True))


class Bottleneck(nn.Module):
    """An inverted residual block."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.is_residual = stride == 1 and inputs == outputs
        self.layers = nn.Sequential(
            conv(inputs, wide, 1) if expansion > 1 else nn.Identity(),
            conv(wide, wide, 3, stride, groups=wide),
            nn.Conv2d(wide, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return float[batch, outputs, height / stride, width / stride]."""
        out = self.layers(images)
        return images + out if self.is_residual else out


def make_model(num_classes: int) -> nn.Sequential:
    """Return a model of float[batch, 3, height, width] images, −1 to 1."""
    layers, channels = [conv(3, 32, 3, 2)], 32
    for expansion, outputs, repeats, stride in BLOCKS:
        for number in range(repeats):
            layers.append(Bottleneck(channels, outputs, expansion, stride if number == 0 else 1))
            channels = outputs
    layers += [conv(channels, 1280, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(1280, num_classes))


def main() -> None:
    """Train, and print the loss of each epoch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", help="folder or address that shardprep build has written")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, help="of an epoch; by default all")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    train = reader.Dataset(options.dataset, "train[:90%]", as_supervised=True)
    valid = reader.Dataset(options.dataset, "train[90%:]", as_supervised=True)
    loading = {
        "batch_size": options.batch_size,
        "num_workers": options.workers,
        "pin_memory": device == "cuda",
        # Started anew: a forked worker could not reach object storage.
        "multiprocessing_context": "forkserver" if options.workers else None,
    }
    batches = DataLoader(train, shuffle=True, drop_last=True, **loading)
    if not len(batches):
        parser.error(
            f"--batch-size {options.batch_size}: there are {len(train)} images to train on"
        )
    steps = options.steps or len(batches)
    model = make_model(len(train.schema.labels)).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler(device, enabled=device == "cuda")
    loss_of = nn.CrossEntropyLoss()

    def scores(images: torch.Tensor) -> torch.Tensor:
        images = images.to(device, non_blocking=True).permute(0, 3, 1, 2)  # channels last still
        if model.training:
            flips = torch.rand(len(images), 1, 1, 1, device=device) < 0.5
            images = torch.where(flips, images.flip(3), images)
        with torch.autocast(device, enabled=device == "cuda"):
            return model(images.float() / 127.5 - 1)

    for epoch in range(options.epochs):
        model.train()
        for images, labels in itertools.islice(batches, steps):
            loss = loss_of(scores(images), labels.to(device))
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        model.eval()
        right = total = 0
        with torch.no_grad():
            for images, labels in itertools.islice(DataLoader(valid, **loading), steps):
                right += (scores(images).argmax(1).cpu() == labels).sum().item()
                total += len(labels)
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, validation {right / total:.1%} right")


if __name__ == "__main__":
    main()
