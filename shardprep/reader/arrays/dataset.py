"""`reader.Dataset`: the images and labels of a split as NumPy arrays, by index or in batches.

TensorFlow is not imported. Splits, features and pixels are the same as in `reader.load`.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import operator
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from html import escape
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from shardprep.dataset.card import MOST_PICTURES, card
from shardprep.dataset.schema import BOX, IMAGE
from shardprep.errors import DatasetError, RecordError, counted
from shardprep.reader.array_types import Pixels
from shardprep.reader.arrays.batch_maker import BatchSource
from shardprep.reader.arrays.batches import ArrayBatches
from shardprep.reader.config import (
    BatchOptions,
    EpochOptions,
    KerasBatchOptions,
    KerasOptions,
    LoaderBatchOptions,
    LoaderOptions,
    ReadConfig,
    seed_of,
    warn_of_no_batch,
)
from shardprep.reader.decode.features import ExampleReader, FeatureDecoder, middle_image
from shardprep.reader.decode.targets import check_options, element_names, target_of
from shardprep.reader.order.global_batches import GlobalBatches
from shardprep.reader.order.order import Order
from shardprep.reader.records.subset import (
    check_hosts,
    labelling_advice,
    labellings,
    open_subset,
)
from shardprep.reader.selection.split_argument import AnySplit, Place
from shardprep.reader.validators import (
    Function,
    WithOptions,
    parameters,
    short_repr,
    validated,
)

if TYPE_CHECKING:
    from shardprep.reader.keras import KerasBatches
    from shardprep.reader.torch.loader import Loader

_BATCHES = "Dataset.batches"
_KERAS = "Dataset.keras"
_LOADER = "Dataset.loader"
_TRANSFORM = "transform of a dataset with boxes or masks"


class Dataset:
    """A split of a dataset as a sequence: `len(ds)`, `ds[i]`, `ds[a:b]`, `ds.batches(64)`.

    An item is (image, target) as in `reader.load`, or the image alone in a dataset without targets.
    With `as_supervised=False` an item is a dict of all features of the schema:

    * `image` uint8[height, width, 3], RGB; or for stacks, `images` uint8[length, height, width, 3]
      or uint16[length, height, width, 1], and `num_images` int;
    * `label` int, −1 if missing; `labels` float32[classes] of 0 and 1; `target` float32, NaN if
      missing; `text`, `image/filename` and other texts str; other columns int or float32;
    * `objects/bbox` float32[n, 4] of n objects as ymin, xmin, ymax, xmax in 0 to 1;
      `objects/label` int64[n]; `objects/is_crowd` bool[n]; `objects/mask` uint8[n, height, width]
      of 0 and 1;
    * `segmentation_mask` uint8[height, width, 1], or [length, height, width, 1] of the images of a
      stack; 255 for pixels without a class (uint16 and 65535 with more than 254 classes).

    It is a map-style dataset for `torch.utils.data.DataLoader` and a data source for Grain. It can
    be pickled, used in forked processes, and read by many threads.
    """

    @validated("reader.Dataset", {"it to batches: Dataset(…).batches({}=…)": BatchOptions})
    def __init__(
        self,
        path: Place,
        split: AnySplit = "train",
        *,
        as_supervised: bool = True,
        decode: bool = True,
        transform: Function | None = None,
    ) -> None:
        """Open a split, without reading a record.

        Args:
            path: folder of the dataset, or a folder above it (the newest version is read), or the
                address of either in object storage: "s3://bucket/key", "gs://…", "az://…"; or the
                result of `reader.mix`, with all items of one dataset after the other.
            split: "train", "train[:90%]", "train[100:200]", "train+validation", a part returned by
                `even_splits`, or a `Selection`. Records are in the order of the shards; the parts
                of "a+b" follow each other.
            as_supervised: False makes each item a dict of all features. `batches`, `loader` and
                `keras` have an argument of their own.
            decode: False returns images and masks as the bytes that are stored.
            transform: function of the image of each item, like `transform` of torchvision's
                datasets; its result replaces the image. If the dataset has boxes or masks, it is a
                function of image and target, like `transforms` there; its result is the item.
                Transforms of `torchvision.transforms.v2` get tensors of its types, other functions
                get arrays.

        Raises:
            DatasetError: an argument is not allowed, the dataset or split does not exist or is
                not finished, or a shard or an index is missing or contradicts the manifest.
        """
        self._subset = subset = open_subset(path, split)
        datasets = subset.datasets
        self.path = datasets.mix or datasets.only.files.place
        """Folder or address of the dataset, or the mix."""
        self.split = split
        self.schema = subset.schema
        self.class_names = subset.class_names
        self._as_supervised = as_supervised
        self._decode = decode
        self._transform = transform
        self._target = target_of(self.schema)
        self._transforms_both = bool(transform and self.schema.annotations)
        is_v2 = type(transform).__module__.startswith("torchvision.transforms.v2")
        self._is_typed = is_v2 and decode  # v2 transforms ignore arrays
        if self._transforms_both:
            if not as_supervised:
                what = f"{_TRANSFORM} gets the target, but as_supervised=False has no target"
                raise DatasetError("reader.Dataset", what, "leave out as_supervised")
            _check_transform("reader.Dataset", _TRANSFORM, transform)
        names = element_names(self.schema, as_supervised=as_supervised)
        decoder = FeatureDecoder(self.schema, names, decode=decode)
        self._examples = ExampleReader(subset.records, decoder)

    def __repr__(self) -> str:
        # Grain compares this text when it restores a checkpoint, and the folder may have moved.
        datasets = self._subset.datasets
        names = ["/".join(one.files.place.parts[-2:]) for one in datasets.opened]
        name = datasets.mix.named(names) if datasets.mix else names[0]
        records = f"{len(self):,} records {self._examples.records.digest}"
        return f"shardprep.reader.Dataset({name!r}, {self.split!r}, {records})"

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: a table, and for a local dataset up to eight pictures."""
        try:
            return card("Dataset", self._facts(), self._pictures())
        except Exception:
            return f"<code>{escape(repr(self))}</code>"

    def _facts(self) -> dict[str, Any]:
        size = self.schema.image_size
        facts: dict[str, Any] = {
            "at": str(self.path),
            "split": self.split,
            "records": len(self),
            "images": f"{size[1]}x{size[0]} pixels" if size else "each of its own size",
            "features": list(self.schema.features),
        }
        return facts | ({"classes": list(self.class_names)} if self.class_names else {})

    def _pictures(self) -> Iterator[Any]:
        # A repr reads nothing over the network.
        if self._examples.records.is_remote or not len(self):
            return
        name = self.schema.image_name
        decoder = FeatureDecoder(self.schema, (name,), decode=True)
        images, last = ExampleReader(self._examples.records, decoder), len(self) - 1
        for number in sorted({last * i // (MOST_PICTURES - 1) for i in range(MOST_PICTURES)}):
            with contextlib.suppress(RecordError):
                pixels = images.item(number)[name]
                yield middle_image(pixels) if self.schema.is_stack else pixels

    def __len__(self) -> int:
        return len(self._examples.records)

    @overload
    def __getitem__(self, wanted: slice) -> Dataset: ...
    @overload
    def __getitem__(self, wanted: int) -> Any: ...
    def __getitem__(self, wanted: int | slice) -> Any:
        """Return the item `wanted`; for a slice, return a Dataset without reading a record.

        Raises:
            IndexError: the number is out of range.
            RecordError: the record is damaged; the error has file, record number and offset.
            DatasetError, StorageError: the shard of the record cannot be read.
        """
        if isinstance(wanted, slice):
            part = copy.copy(self)
            subset, records = self._subset, self._examples.records[wanted]
            datasets = replace(subset.datasets, sizes=(len(records),))
            part._subset = replace(  # noqa: SLF001
                subset, datasets=datasets, records=records, digest=records.digest
            )
            part._examples = ExampleReader(records, self._examples.decoder)  # noqa: SLF001
            return part
        return self._item(wanted)

    def _item(self, wanted: int, out: Pixels | None = None) -> Any:
        number = operator.index(wanted)
        if not -len(self) <= number < len(self):
            raise IndexError(f"item {number} is out of range of {counted(len(self), 'item')}")
        item = self._examples.item(number % len(self), out)
        transform, name = self._transform, self.schema.image_name
        if self._is_typed:
            from shardprep.reader.torch.transform import typed_value

            size = item[name].shape[-3:-1]
            for one in [*item] if self._transforms_both else [name]:
                item[one] = typed_value(IMAGE if one == name else one, item[one], size)
        if transform is not None and not self._transforms_both:
            item[name] = transform(item[name])
        if not self._as_supervised:
            return item
        pair = self._target.pair(item[name], item)
        return transform(*pair) if transform is not None and self._transforms_both else pair

    def __getitems__(self, wanted: Sequence[int]) -> list[Any]:
        """Return the items with these numbers. A DataLoader of torch calls this for each batch.

        Images of one size share the memory of one array.
        """
        decoder = self._examples.decoder
        if decoder.image_shape is None:
            return [self[number] for number in wanted]
        # One array per batch is memory that malloc reuses. An array per image is fresh pages, which
        # add a third of the time of decoding.
        images = np.empty((len(wanted), *decoder.image_shape), decoder.dtype)
        return [self._item(number, out) for number, out in zip(wanted, images, strict=True)]

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))

    @WithOptions(_BATCHES, BatchOptions, {"it to loader: Dataset(…).loader({}=…)": LoaderOptions})
    def batches(self, options: BatchOptions) -> ArrayBatches:  # noqa: D417 - documents fields
        """Return an iterator over (images, targets), decoded ahead of use by threads or processes.

        Images are uint8[batch, height, width, 3]. Stacks are uint8[batch, length, height, width, 3]
        or uint16[…, 1], padded with zeros to the longest of the batch; with `as_supervised=False`,
        `num_images` has the number of their images without padding. Targets are NumPy arrays of the
        form that `reader.load` describes; texts are object[batch] of str. With `decode=False`,
        images and class masks are object[batch] of bytes, and stacks and the masks of objects are
        lists of bytes.

        The memory of an array is reused when the caller and other libraries have released it and
        its views, including views through DLPack or the buffer protocol.

        Args:
            batch_size: number of images per batch.
            shuffle: True for another order in each epoch, the order of
                `reader.load(shuffle=True)`: blocks of 8 to 64 records are permuted and mixed. By
                default, a split is shuffled unless it is named validation or test.
            weights: as in `reader.load`.
            seed: number that, together with the epoch, decides order and crops, on any machine and
                in both readers. By default it is random, or 0 for several readers.
            epochs: number of epochs; None for no end.
            drop_remainder: drop an incomplete last batch.
            as_supervised: False yields a dict of arrays of all features.
            box_format: format of the boxes, by its name in Keras. Formats without "rel_" are in
                pixels of the image.
            max_boxes: number of rows of boxes in every batch. If an image has more boxes, its
                largest ones are kept, and an `Advice` warns of that once.
            random_resized_crop: as in `reader.load`. Both draw the same boxes from the same seed.
            center_crop: as in `reader.load`.
            every: as in `reader.load`.
            max_length: as in `reader.load`.
            ragged: True does not pad: boxes, labels and masks are lists of an array per image, and
                so are stacks and images of different sizes.
            num_shards: number of readers, such as hosts, that share the records; needs
                `shard_index`. By default 1. A *global batch*
                has `batch_size` records for each reader, and each reader takes its part. With
                `drop_remainder` all readers have the same number of batches. It is required for
                several epochs if the last global batch has fewer records than there are readers.
            shard_index: number of this reader, from 0 to `num_shards` − 1.
            sharding: `jax.sharding.Sharding` that divides the rows of a global batch. Arrays are
                then global JAX arrays; texts stay NumPy arrays of the rows of this process. The
                devices decide `num_shards` and `shard_index`: a global batch has `batch_size`
                rows for each process, or for each group of processes that hold the same rows.
            on_error: "skip" replaces each damaged record by the next good one, with a
                RuntimeWarning; the attribute `skipped` of the iterator lists the errors.
            num_workers: number of processes that fill batches, or 0 for threads of this process. By
                default 0 on up to 3 cores and for records in object storage, otherwise 4, or one
                for every 2 cores if that is more. Threads fill the first batches while processes
                start. Processes do not import the program: it needs no `__main__` guard.
            num_threads: number of threads that decode, in each worker if there are workers. By
                default all usable cores are used. With `weights` or large records in object
                storage, it is at least 32, because each record is then a request, and most
                threads wait.
            prefetch: number of batches decoded ahead, each in its own memory. By default as many as
                keep all threads or workers busy, at least 2.

        Raises:
            DatasetError: an argument is not allowed, the images differ in size, an option for
                boxes is given and the dataset has no boxes, or a batch cannot be divided among the
                devices of the sharding.
        """
        if options.sharding is not None:
            from shardprep.reader.jax import with_shard

            options = with_shard(options, self.schema)
        source = self._batch_source(options)
        left, num_hosts = source.order.batches.num_left, options.shard_of[1]
        if 0 < left < num_hosts and options.epochs != 1 and not options.drop_remainder:
            what = f"the last global batch has {counted(left, 'record')} for {num_hosts} readers, "
            what += "so some would begin the next epoch before the others"
            hint = "give drop_remainder=True or another batch_size, or read with loader or iterate"
            raise DatasetError(_BATCHES, what, hint)
        if options.sharding is None:
            return ArrayBatches(source, self._subset.digest)
        from shardprep.reader.jax import ShardedBatches, check_last_batches

        check_last_batches(source.order, options)
        return ShardedBatches(source, self._subset.digest)

    @WithOptions(_LOADER, LoaderOptions)
    def loader(self, options: LoaderOptions) -> Loader:  # noqa: D417 - documents fields
        """Return a loader of batches of torch tensors; each `for` loop over it yields an epoch.

        Training loops can use it like a `DataLoader`: it has a length, `set_epoch`, `state_dict`
        and `load_state_dict` at any batch. Batches, order and states are the same as with
        `batches`. Images are uint8[batch, 3, height, width] in the memory format `channels_last`,
        stacks [batch, length, 3, height, width], and class masks [batch, 1, height, width]. Boxes
        have the `box_format`, by default "rel_yxyx", but with `transform` they are XYXY in pixels.

        Args:
            num_shards: number of processes that share the records. By default the size of the
                process group of `torch.distributed`, else the variable WORLD_SIZE, else 1.
            shard_index: number of this process, from 0. By default its rank.
            transform: function of the image and target of each sample, such as a transform of
                `torchvision.transforms.v2`; its result is the sample. Images, boxes and masks are
                torchvision's `tv_tensors`: images uint8[3, height, width], class masks [1, height,
                width], boxes XYXY in pixels. With boxes, a batch is a list of images and a list of
                targets, as for torchvision's detectors; otherwise samples are stacked. torch's
                random numbers depend only on the seed, the epoch and the record, and so do those
                of NumPy and `random`. Worker processes call it: by default one for each core. With
                `num_workers=0`, the thread that iterates calls it.
            device: device on which tensors are when they are yielded, such as "cuda". A copy to a
                CUDA device begins one batch ahead, and runs during the training step.
            pin_memory: without `device`, put batches in pinned memory, by default if CUDA is
                available. Copy them on the current stream.

        All other arguments are the same as for `batches`.

        Raises:
            DatasetError: as for `batches`; torch is not installed, or has no such device; the
                transform cannot be sent to workers.
        """
        from shardprep.reader.torch.loader import Loader, batches_of, process_of

        given = {one.name: getattr(options, one.name) for one in fields(EpochOptions)}
        if options.transform is not None:
            known = given | {"decode": self._decode}
            usual = {"as_supervised": True, "decode": True, "box_format": "rel_yxyx"}
            if other := [f"{name}={known[name]!r}" for name in usual if known[name] != usual[name]]:
                what = f"transform cannot be used with {other[0]}"
                raise DatasetError(_LOADER, what, f"leave out {other[0]} or transform")
            if self.schema.is_stack and options.max_length is None:
                what = "transform cannot be used with stacks that differ in length"
                raise DatasetError(_LOADER, what, "give max_length")
            if self._target.names:
                _check_transform(_LOADER, "transform", options.transform)
            given["ragged"] = True
        given["shard_index"], given["num_shards"] = process_of(options)
        source = self._batch_source(LoaderBatchOptions(**given, epochs=None))
        return Loader(batches_of(source, self._subset.digest, options), options.batch_size)

    @WithOptions(_KERAS, KerasOptions)
    def keras(self, options: KerasOptions) -> KerasBatches:  # noqa: D417 - documents fields
        """Return batches for `fit`, `evaluate` and `predict` of Keras 3 on any backend.

        The result is a `keras.utils.PyDataset`: item i is batch i of the epoch, and `fit` goes to
        the next epoch. Batches, order and states are the same as with `batches`, in spite of
        `shuffle=True` of `fit`, which has no effect. `reader.ResumeInEpoch` saves the state with
        the weights. Texts are left out. A dataset without labels yields images alone.

        Args:
            sample_weight: function of the targets of a batch that returns their weights, in a form
                that Keras takes: float32[batch], or a weight for each pixel or output. For weights
                of classes, give `fit` the argument `class_weight`.
            max_boxes: as for `batches`, required if the dataset has boxes.

        All other arguments are the same as for `batches`.

        Raises:
            DatasetError: as for `batches`, Keras or its backend is not installed, or Keras cannot
                take the batches.
        """
        from shardprep.reader.keras import KerasBatches

        self._check_keras(options)
        given = {one.name: getattr(options, one.name) for one in fields(EpochOptions)}
        source = self._batch_source(KerasBatchOptions(**given, epochs=None))
        found = labellings(self._subset, self.split, options.weights)
        advice = [*labelling_advice(self._subset, found)] if options.as_supervised else []
        return KerasBatches(ArrayBatches(source, self._subset.digest), options, advice)

    def _batch_source(self, options: BatchOptions) -> BatchSource:
        self._check_batches(options)
        order = self._order(options)
        if not order.num_batches(drop=options.drop_remainder):
            warn_of_no_batch(order.batches.size, order.batches.num_places)
        records = self._subset.records[order.own]
        names = element_names(self.schema, as_supervised=options.as_supervised)
        num_rows = min(options.batch_size, len(order))
        return BatchSource(records, self.schema, names, self._decode, order, options, num_rows)

    def _order(self, options: BatchOptions) -> Order:
        host, num_hosts = options.shard_of
        size = options.batch_size * num_hosts
        datasets, records = self._subset.datasets, self._subset.records
        within = datasets.order(
            options,
            self.split,
            size,
            ReadConfig(),
            lambda: records.places.numbers(datasets.only.manifest),
        )
        check_hosts(str(self.path), len(within), num_hosts)
        seed = seed_of(options.seed, num_hosts)
        return Order(within, GlobalBatches(len(within), size, host, num_hosts), seed)

    def _check_batches(self, options: BatchOptions) -> None:
        check_options(self.schema, options)
        options.check_source(self.path, {"weights": options.weights})
        if options.sharding is not None and (options.ragged or not self._decode):
            other = "ragged=True" if options.ragged else "decode=False"
            what = f"sharding divides arrays, but {other} makes lists"
            raise DatasetError(options.where, what, f"leave out {other} or sharding")
        if self._transform is not None:
            what = "the transform is for single items, not for batches"
            hint = "give it to loader(transform=…) instead of Dataset, or apply it to the batches"
            raise DatasetError(options.where, what, hint)
        if options.crop is not None and not self._decode:
            what = "a crop decodes images, but decode=False does not"
            raise DatasetError(options.where, what, "leave out the crop or decode=False")
        if self.schema.image_size is not None or options.crop is not None:
            return
        if self._decode and not options.ragged:
            raise DatasetError(
                str(self.path),
                "its images may differ in size, so they cannot be batched",
                "build with --size, or give random_resized_crop, center_crop, ragged=True for "
                "lists, or decode=False for bytes; or take single items",
            )
        if not self._decode and not options.box_format.startswith("rel_"):
            what = f"box_format={options.box_format!r} needs image sizes, unknown with decode=False"
            raise DatasetError(options.where, what, "use a format that begins with rel_")

    def _check_keras(self, options: KerasOptions) -> None:
        if options.ragged or not self._decode:
            what, hint = "Keras cannot take lists or bytes", "leave out ragged=True, decode=False"
        elif BOX in self.schema.features and options.max_boxes is None:
            what, hint = "Keras needs a fixed number of boxes", "give max_boxes"
        elif self.schema.is_stack and options.max_length is None:
            what, hint = "Keras needs stacks of a fixed length", "give max_length"
        elif options.sample_weight and not (options.as_supervised and self._target.names):
            what, hint = "sample_weight needs targets", "leave out sample_weight"
        else:
            return
        raise DatasetError(_KERAS, what, hint)


def _check_transform(where: str, subject: str, transform: Any) -> None:
    named = parameters(transform)
    if named is None:
        return
    try:
        inspect.Signature(list(named.values())).bind("image", "target")
    except TypeError:
        what = f"{subject} must take image and target, which {short_repr(transform)} does not"
        raise DatasetError(where, what, "give a function that takes and returns both") from None
