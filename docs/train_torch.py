"""Train MobileNetV2 from scratch on a dataset of shardprep, with PyTorch and without TensorFlow.

    python docs/train_torch.py tfrecords/dogs_vs_cats --epochs 20
    python docs/train_torch.py s3://my-bucket/dogs_vs_cats --epochs 20 --state run/state.pt

Images stay uint8 until they are on the device, where a batch is cast and flipped at once. With
`--state`, the same command goes on where it was ended, in the middle of an epoch as well.
"""

import argparse
import os
from pathlib import Path

import torch
from torch import nn

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


def save(path: Path, kept: dict[str, object]) -> None:
    """Write the states of all that is kept in the place of those before, complete or not at all."""
    state = {name: one.state_dict() for name, one in kept.items()}
    state["random"] = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def restore(path: Path, kept: dict[str, object]) -> None:
    """Go to the place that is saved."""
    state = torch.load(path, map_location="cpu")
    random, *of_devices = state.pop("random")
    for name, one in kept.items():
        one.load_state_dict(state[name])
    torch.set_rng_state(random)
    torch.cuda.set_rng_state_all(of_devices)


def arguments() -> tuple[argparse.Namespace, reader.Dataset, reader.Dataset]:
    """Return the options, the images to train on and those to validate with."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", help="folder or address that shardprep build has written")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, help="of an epoch, on the first images; default: all")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, help="that decode; default: one for each core")
    parser.add_argument("--seed", type=int, default=0, help="of order, weights and flips")
    parser.add_argument("--state", type=Path, help="file of the place from which to go on")
    parser.add_argument("--save-every", type=int, default=100, help="steps between two states")
    options = parser.parse_args()
    train = reader.Dataset(options.dataset, "train[:90%]")
    valid = reader.Dataset(options.dataset, "train[90%:]")
    if len(train) < options.batch_size:
        parser.error(
            f"--batch-size {options.batch_size}: there are {len(train)} images to train on"
        )
    most = options.steps * options.batch_size if options.steps else None
    return options, train[:most], valid[:most]


def main() -> None:
    """Train, and print the loss of each epoch."""
    options, train, valid = arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(options.seed)
    size, threads = options.batch_size, options.threads
    batches = train.loader(
        size, seed=options.seed, drop_remainder=True, num_threads=threads, device=device
    )
    checks = valid.loader(size, shuffle=False, num_threads=threads, device=device)
    model = make_model(len(train.schema.labels)).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler(device, enabled=device == "cuda")
    loss_of = nn.CrossEntropyLoss()
    kept = {"model": model, "optimizer": optimizer, "scaler": scaler, "batches": batches}

    if options.state and options.state.exists():
        restore(options.state, kept)

    def scores(images: torch.Tensor) -> torch.Tensor:
        if model.training:
            flips = torch.rand(len(images), 1, 1, 1, device=device) < 0.5
            images = torch.where(flips, images.flip(3), images)
        with torch.autocast(device, enabled=device == "cuda"):
            return model(images.float() / 127.5 - 1)

    while (epoch := batches.state_dict()["epoch"]) < options.epochs:
        model.train()
        for images, labels in batches:  # those that are left, where a state was loaded
            loss = loss_of(scores(images), labels)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            place = batches.state_dict()  # of the next batch: this one is in the weights
            if options.state and place["batch"] and place["batch"] % options.save_every == 0:
                save(options.state, kept)
        model.eval()
        with torch.no_grad():
            right = sum((scores(images).argmax(1) == labels).sum() for images, labels in checks)
        said = f"loss {loss.item():.3f}, validation {right.item() / len(valid):.1%} right"
        print(f"epoch {epoch + 1}: {said}", flush=True)
        if options.state:
            save(options.state, kept)


if __name__ == "__main__":
    main()
