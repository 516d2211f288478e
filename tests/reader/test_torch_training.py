"""docs/pytorch.md: its programs train with PyTorch, Lightning and Accelerate as it says."""

import hashlib
import json
import re
import socket
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from shardprep import reader
from tests.support.builders import png, write_folder
from tests.support.examples import thorough
from tests.support.paths import ROOT
from tests.support.processes import ONE_CORE, Program
from tests.support.torchvision import need_module

pytest.importorskip("torch")
BLOCKS: list[str] = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "pytorch.md").read_text(), re.DOTALL
)
BASICS = [BLOCKS[0], BLOCKS[1].split("\nfor epoch")[0]]
"""What the programs of several processes continue: dataset, model and step."""
RECORDED = """
import hashlib, json, os, sys
os.chdir(sys.argv[1])
sys.modules["tensorflow"] = None  # TensorBoard, which Lightning imports, takes seconds to import it
import torch
from shardprep.reader.torch.loader import Loader

def hashed(loader, plain=Loader.__iter__):
    for batch in plain(loader):
        images = [image.permute(1, 2, 0).contiguous().numpy() for image in batch[0]]
        hashes.append([hashlib.sha256(image).hexdigest() for image in images])
        yield batch

hashes = []
Loader.__iter__ = hashed
torch.manual_seed(0)
"""
"""Keeps the hashes of the images of each batch that a loader yields."""
RESULT = """
print(json.dumps([hashes, [float(one) for one in model.state_dict().popitem()[1]]]))
"""
AN_EPOCH = """
images = [image for batch in hashes for image in batch]
assert len(images) == len({*images}) == len(dataset)
"""
THE_SAME_BATCH = """
batches = dataset.batches(64, epochs=None)
batches.load_state_dict(saved["train"])
images = torch.cat([images for images, _ in parts])
assert (images.permute(0, 2, 3, 1).numpy() == next(batches)[0]).all()
"""
LOADED = """
train.set_epoch(0)
next(iter(train))
hashes.pop()
accelerator.wait_for_everyone()  # until the main process has written the last checkpoint
accelerator.load_state("checkpoint")
assert (train.state_dict()["epoch"], train.state_dict()["batch"]) == (2, 0)
"""
CHECKPOINTS = """
class Validated(Classifier):
    def validation_step(self, batch, index):
        self.training_step(batch, index)

    def val_dataloader(self):
        return reader.Dataset("tfrecords/shapes", "train[90%:]").loader(64)

def fit(callback, **options):
    hashes.clear()
    trainer = lightning.Trainer(
        max_epochs=2, callbacks=callback, logger=False, enable_checkpointing=bool(callback)
    )
    trainer.fit(Validated(), **options)
    return [batch for batch in hashes if batch[0] in of_training]

whole = [*hashes]
of_training = {image for batch in whole for image in batch}
assert fit([ModelCheckpoint("ends", save_top_k=-1)]) == whole
for step in (5, 7, 10):
    folder = "ends" if step == 7 else "checkpoints"
    left = fit([], ckpt_path=f"{folder}/epoch={step // 8}-step={step}.ckpt")
    assert left == whole[step:], step
"""


def block_with(text: str) -> str:
    (block,) = [block for block in BLOCKS if text in block]
    return block


def trained(block: str, place: Path, number: int) -> tuple[list[list[str]], list[list[float]]]:
    """Run a block after the first ones in a group of processes.

    Return the hashes of the global batches, and a part of the weights of each process.
    """
    code = "\n".join([RECORDED, *BASICS, "hashes.clear()", block, RESULT])
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    group = {"WORLD_SIZE": str(number), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    programs = [
        Program(
            code, place, framework="torch", RANK=str(rank), LOCAL_RANK=str(rank),
            ACCELERATE_USE_CPU="true", OMP_NUM_THREADS="1", **group,
        )
        for rank in range(number)
    ]  # fmt: skip
    ends = [program.wait() for program in programs]
    assert [done.returncode for done in ends] == [0] * number, [done.stderr for done in ends]
    results = [json.loads(done.stdout.splitlines()[-1]) for done in ends]
    parts = zip(*(hashes for hashes, _ in results), strict=True)
    return [[*chain(*part)] for part in parts], [weights for _, weights in results]


def global_batches(place: Path) -> list[list[str]]:
    dataset = reader.Dataset(place / "tfrecords" / "shapes")
    batches = dataset.batches(60, seed=1, epochs=2, drop_remainder=True)
    return [[hashlib.sha256(image).hexdigest() for image in images] for images, _ in batches]


WORDS = ["hello", 'say "hi"', '"quoted"', "5'10\"", '"', 'a""b', "naïve", "x y"]


@pytest.mark.thorough
def test_texts_with_quotes_train_with_a_ctc_loss(tmp_path: Path) -> None:
    """The block of docs/labels.md builds them, the block of docs/pytorch.md encodes them."""
    members = {f"{i}.png": png(32, 96, seed=i) for i in range(len(WORDS))}
    rows = "".join(f"{i}.png\t{word}\n" for i, word in enumerate(WORDS))
    write_folder(tmp_path / "words", {**members, "labels.tsv": f"img\ttext\n{rows}".encode()})
    page = (ROOT / "docs" / "labels.md").read_text()
    (table,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    table = table.replace('shardprep.build("words"', 'shardprep.build("words", split="train=1"')
    end = """
back = {i: letter for letter, i in number.items()}
again = ["".join(back[i] for i in row[:n]) for row, n in zip(ids.tolist(), lengths, strict=True)]
assert again == texts, (again, texts)
assert torch.isfinite(loss)
print(json.dumps(sorted(texts)))
"""
    begin = "import json, os, sys\nos.chdir(sys.argv[1])"
    code = "\n".join([begin, table, block_with("ctc_loss"), end])
    done = Program(code, tmp_path, framework="torch").wait()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == sorted(WORDS)


@pytest.mark.thorough
def test_the_blocks_of_the_page_run_in_their_order(place: Path) -> None:
    """A resumed run yields the rest of the epoch, and two hosts the same batch as one."""
    need_module("torchvision")
    alone = [
        one for one in BLOCKS if not re.search("init_process|Accelerator|Lightning|/words", one)
    ]
    resume = next(index for index, one in enumerate(alone) if "torch.save" in one)
    alone[resume] = f"hashes.clear()\n{alone[resume]}\n{AN_EPOCH}"
    alone[resume + 1] += THE_SAME_BATCH
    code = "\n".join([ONE_CORE, RECORDED, *alone])
    done = Program(code, place, framework="torchvision").wait()
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("numbers", [[1], thorough([1, 2, 3])])
def test_processes_of_a_group_train_one_model_on_the_global_batches(
    place: Path, numbers: list[int]
) -> None:
    """On any number of processes, the weights are equal but for rounding."""
    weights = []
    for number in numbers:
        hashes, own = trained(block_with("DistributedDataParallel"), place, number)
        assert hashes == global_batches(place)
        assert own == [own[0]] * number
        weights.append(own[0])
    assert np.allclose(weights, weights[0], atol=1e-6)


@pytest.mark.thorough
def test_accelerate_divides_the_records_once(place: Path) -> None:
    """Its checkpoints contain the state of the loader."""
    need_module("accelerate")
    hashes, weights = trained(block_with("Accelerator") + LOADED, place, 2)
    assert hashes == global_batches(place)
    assert weights[0] == weights[1]


@pytest.mark.thorough
def test_lightning_continues_from_any_checkpoint(place: Path) -> None:
    """From the middle of an epoch, its end, and the middle of the next, with a validation."""
    need_module("lightning", "torchvision")
    code = "\n".join([RECORDED, block_with("Lightning"), CHECKPOINTS])
    done = Program(code, place, framework="torchvision").wait()
    assert done.returncode == 0, done.stderr
