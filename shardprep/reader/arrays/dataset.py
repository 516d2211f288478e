"""`reader.Dataset`: the images and labels of a split as numpy arrays, any of them at any time.

TensorFlow is not needed and never imported. What is read is what `reader.load` reads: the same
split expressions, features and pixels.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import operator
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any, overload

from shardprep.dataset.card import MOST_PICTURES, card
from shardprep.dataset.remote import RemoteDataset
from shardprep.dataset.schema import IMAGE, MASK, OBJECT_MASK
from shardprep.errors import DatasetError, RecordError
from shardprep.reader.arrays.batches import Batches
from shardprep.reader.config import BatchOptions, ReadConfig, check_weights, draw_seed
from shardprep.reader.decode.features import Examples, Values
from shardprep.reader.decode.targets import Cut, check_boxes, target_of
from shardprep.reader.order.epoch import BucketBatches
from shardprep.reader.order.iterator_state import Batching
from shardprep.reader.order.order import Order
from shardprep.reader.records.open import check_readers, open_subset
from shardprep.reader.records.records import Records
from shardprep.reader.selection.split_argument import AnySplit, is_training
from shardprep.reader.selection.splits import part_range
from shardprep.reader.validators import (
    Function,
    Location,
    WithOptions,
    check_position,
    parameters,
    short_repr,
    validated,
)
from shardprep.storage.url import is_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Dataset:
    """A split of a dataset by number: `len(ds)`, `ds[i]`, `ds[a:b]`, `ds.batches(64)`.

    An item is (image, target), as of `reader.load`, or the image alone where the set has no
    targets; with `as_supervised=False` a dict of every feature of the schema. By their names,
    `image` is uint8[height, width, 3], RGB; `label` int, −1 where there is none; `labels`
    float32[classes] of 0 and 1; `target` float32, NaN where there is none; `text`, `image/filename`
    and other texts str; other columns int or float32; `objects/bbox` float32[n, 4], ymin, xmin,
    ymax, xmax, 0 to 1, of the n objects, `objects/label` int64[n], `objects/is_crowd` bool[n],
    `objects/mask` uint8[n, height, width] of 0 and 1; `segmentation_mask` uint8[height, width, 1],
    255 where a pixel is of no class, uint16 and 65535 of more than 254 classes.

    It is a map-style dataset for `torch.utils.data.DataLoader` and a data source for Grain: it may
    be pickled and forked, and read from many threads.
    """

    @validated("reader.Dataset", {"it to batches: Dataset(…).batches({}=…)": BatchOptions})
    def __init__(
        self,
        path: Location,
        split: AnySplit = "train",
        *,
        as_supervised: bool = True,
        decode: bool = True,
        transform: Function | None = None,
        verify_crc: bool = True,
    ) -> None:
        """Open a split; no record is read yet.

        Args:
            path: the dataset's folder, or one above it (newest version), or such an address in
                object storage: "s3://bucket/key", "gs://…", "az://…".
            split: "train", "train[:90%]", "train[100:200]", "train+validation", one of
                `even_splits` or a `Selection`; records are in the order of the shards.
            as_supervised: False makes items dicts of all features. The target of objects is a
                dict as of `batches`.
            decode: False leaves images and masks the bytes they are stored as.
            transform: called with the image of each item, as `transform` of torchvision's
                datasets; its result replaces the image. For a set with boxes or masks it is
                called with image and target, as their `transforms`; its result is the item.
            verify_crc: False does not compare the checksums of records.

        Raises:
            DatasetError: an argument is not what it may be, there is no finished dataset, no such
                split, or a shard or an index is missing or not what the manifest says.

        """
        self._subset = subset = open_subset(path, split, verify_crc=verify_crc)
        self.path = subset.path.url if isinstance(subset.path, RemoteDataset) else subset.path
        """The dataset's folder, or its address in object storage."""
        self.split = split
        self.schema = subset.schema
        """Features of an item."""
        self.class_names = subset.class_names
        """Names of the classes, in the order of their numbers."""
        self._as_supervised = as_supervised
        self._decode = decode
        self._transform = transform
        self._target = target_of(self.schema)
        self._transforms_both = bool(transform and self.schema.annotations)
        if self._transforms_both:
            _check_transform(transform, as_supervised=as_supervised)
        values = Values(self.schema, self._names(as_supervised), decode=decode)
        self._examples = Examples(subset.records, values)

    def __repr__(self) -> str:
        """Return what Grain compares before it goes on from a checkpoint, wherever the set lies."""
        name = "/".join(self.path.parts[-2:])
        records = f"{len(self):,} records {self._examples.records.digest}"
        return f"shardprep.reader.Dataset({name!r}, {self.split!r}, {records})"

    def _repr_html_(self) -> str:
        """Return a table of HTML and, of a folder, up to eight pictures: a notebook shows it."""
        try:
            return card("Dataset", self._facts(), self._pictures())
        except Exception:
            return f"<code>{escape(repr(self))}</code>"

    def _facts(self) -> dict[str, Any]:
        """Return what is worth showing, by title."""
        size = self.schema.image_size
        found: dict[str, Any] = {
            "at": str(self.path),
            "split": self.split,
            "records": len(self),
            "images": f"{size[1]}x{size[0]} pixels" if size else "each of its own size",
            "features": list(self.schema.features),
        }
        return found | ({"classes": list(self.class_names)} if self.class_names else {})

    def _pictures(self) -> Iterator[Any]:
        """Yield images from all over the records, without those that are damaged."""
        if is_url(str(self.path)) or not len(self):  # nothing is read over a network for a look
            return
        values = Values(self.schema, (IMAGE,), decode=True)
        images, last = Examples(self._examples.records, values), len(self) - 1
        for number in sorted({last * i // (MOST_PICTURES - 1) for i in range(MOST_PICTURES)}):
            with contextlib.suppress(RecordError):
                yield images.item(number)[IMAGE]

    def __len__(self) -> int:
        return len(self._examples.records)

    @overload
    def __getitem__(self, wanted: slice) -> Dataset: ...
    @overload
    def __getitem__(self, wanted: int) -> Any: ...
    def __getitem__(self, wanted: int | slice) -> Any:
        """Return an item, or for a slice a Dataset of its items, of which none is read yet.

        Raises:
            IndexError: there is no such item.
            RecordError: the record is damaged; file, record and offset are named.

        """
        if isinstance(wanted, slice):
            part = copy.copy(self)
            part._examples = Examples(  # noqa: SLF001 - it is one of us
                self._examples.records[wanted], self._examples.values
            )
            return part
        number = operator.index(wanted)
        if not -len(self) <= number < len(self):
            raise IndexError(f"item {number} of {len(self):,}")
        item = self._examples.item(number % len(self))
        transform = self._transform
        if transform is not None and not self._transforms_both:
            item[IMAGE] = transform(item[IMAGE])
        if not self._as_supervised:
            return item
        found = self._target.pair(item[IMAGE], item)
        return transform(*found) if transform is not None and self._transforms_both else found

    def __getitems__(self, wanted: Sequence[int]) -> list[Any]:
        """Return the items, in the order asked for; torch asks for whole batches by this."""
        return [self[number] for number in wanted]

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))

    @WithOptions("Dataset.batches", BatchOptions)
    def batches(self, options: BatchOptions) -> Batches:  # noqa: D417 - its fields
        """Return an iterator over (images, targets), decoded ahead of use by threads.

        Images are uint8[batch, height, width, 3]; targets int64[batch], float32[batch, classes] of
        a multi-label set, float32[batch] of a regression set, object[batch] of str of a set with
        texts; a set without targets yields images alone. Of a set with boxes, targets are a dict
        of `boxes` float32[batch, N, 4] and `labels` int64[batch, N], padded with −1 to the N of
        the batch's largest; `crowds` bool[batch, N] and `masks` uint8[batch, N, height, width]
        where it has them, and the image's own target as `label`. Of a set with masks of classes,
        uint8[batch, height, width, 1] (or uint16), and `segmentation_mask` of that dict where there
        are boxes, too. With `decode=False` images and masks are object[batch] of bytes.
        An array is the caller's for as long as it, or a view of it, is held, here or by another
        library through DLPack or the buffer protocol; after that its memory is used again.

        Args:
            batch_size: images a batch.
            shuffle: True for another order in each epoch, that of `reader.load(shuffle=True)`:
                blocks of about 64 records, some of them mixed at a time. By default, only a split
                whose name starts with "train" is shuffled.
            weights: as of `reader.load`.
            seed: with the number of the epoch, decides the order, on any machine and in both
                readers; by default it is another one in each run.
            epochs: how many, None for ever.
            drop_remainder: drop a last batch that is not full.
            as_supervised: False yields a dict of arrays of all features.
            box_format: format of the boxes, by Keras's names; those that do not begin with "rel_"
                are pixels of the image.
            max_boxes: the N of every batch. Of an image with more, the largest are kept, and an
                `Advice` tells of it once.
            random_resized_crop: as of `reader.load`; the same seed cuts the same parts there.
            center_crop: as of `reader.load`.
            ragged: lists in place of arrays whose rows differ: an array an image of its boxes,
                labels and masks, and images of a set in which they differ in size.
            buckets: those of `reader.buckets`, for images that differ in size: all images of a
                batch are of one bucket and resized to its size. Short batches, one a bucket at
                most, are dropped by `drop_remainder`; hosts take batches in turn.
            num_shards: of how many readers, such as hosts, this is one. Each has a range of records
                of its own; with `drop_remainder` all have as many batches.
            shard_index: which of them, from 0.
            on_error: "skip" puts the next good record in the place of one that is damaged, each
                with a RuntimeWarning, and `skipped` of the iterator names them.
            num_threads: threads that decode; by default as many as there are cores to use, and at
                least 32 where each record is asked of object storage by itself, for most of these
                wait: with `weights` or `buckets`, and where records are large.
            prefetch: batches that are made before they are asked for, each in memory of its own;
                by default 2, or as many as keep all threads busy.

        Raises:
            DatasetError: an argument is not what it may be, the images differ in size, or boxes are
                asked for that the set has not.

        """
        index, number = options.shard_index, options.num_shards
        check_position("Dataset.batches", shard_index=index, num_shards=number)
        self._check_batches(options)
        records, order, num_batches = self._order(options)
        batching = Batching(
            options.batch_size, options.drop_remainder, window=None, num_batches=num_batches
        )
        names = self._names(options.as_supervised)
        cut = None if options.max_boxes is None else Cut(options.max_boxes)
        values = Values(self.schema, names, decode=self._decode, cut=cut, crop=options.crop)
        return Batches(
            Examples(records.in_order(order), values), self._target, order, batching, options
        )

    def _order(self, options: BatchOptions) -> tuple[Records, Order, int]:
        """Return the records that batches are made of, their order and the batches of an epoch."""
        host = options.shard_index, options.num_shards
        size, drop = options.batch_size, options.drop_remainder
        subset = replace(self._subset, records=self._examples.records, num_all=len(self))
        shuffle = is_training(self.split) if options.shuffle is None else options.shuffle
        seed = draw_seed() if options.seed is None else options.seed
        if options.buckets is not None:
            from shardprep.reader.selection.buckets import members_of  # and pyarrow

            members = members_of(options.buckets, subset.manifest, subset.records.places)
            buckets = BucketBatches(tuple(options.buckets), members, size, drop, shuffle, host)
            return subset.records, Order(buckets, seed), buckets.num_batches
        if options.weights is not None:
            subset = subset.drawn("Dataset.batches", options.weights, host)
        else:
            check_readers(str(self.path), len(self), host[1])
            subset = replace(subset, records=subset.records[part_range(len(self), *host)])
        order = Order(subset.epoch_order(ReadConfig(), shuffle=shuffle), seed)
        num_batches = subset.num_all // host[1] // size if drop else -(-len(order) // size)
        return subset.records, order, num_batches

    def _names(self, as_supervised: bool) -> tuple[str, ...]:  # noqa: FBT001 - of an option
        """Return the features that are yielded."""
        return (IMAGE, *self._target.names) if as_supervised else tuple(self.schema.features)

    def _check_batches(self, options: BatchOptions) -> None:
        check_boxes("Dataset.batches", self.schema, options)
        check_weights("Dataset.batches", options)
        if options.buckets is not None:
            self._check_buckets(options)
        if self._transform is not None:
            raise DatasetError(
                "Dataset.batches",
                "transform is for single items",
                "apply it to what the iterator yields",
            )
        if options.crop is not None and not self._decode:
            raise DatasetError(
                "Dataset.batches", "a crop is cut by decoding, and decode=False", "give one of them"
            )
        if self.schema.image_size is not None or options.crop is not None:
            return
        if self._decode and not options.ragged and options.buckets is None:
            raise DatasetError(
                str(self.path),
                "its images differ in size, so they cannot be batched as they are",
                "build with --size, pass random_resized_crop or center_crop, resize them to "
                "buckets=reader.buckets(…), take single items or lists of them (ragged=True), or "
                "batch their bytes with decode=False",
            )
        if not self._decode and not options.box_format.startswith("rel_"):
            raise DatasetError(
                "Dataset.batches",
                f"box_format={options.box_format!r} is in pixels, and decode=False reads none",
                "use a format that begins with rel_",
            )

    def _check_buckets(self, options: BatchOptions) -> None:
        if self.schema.image_size is not None:
            what, hint = "buckets, and its images are of one size", "leave out buckets"
        elif MASK in self.schema.features or OBJECT_MASK in self.schema.features:
            what, hint = "buckets, and masks of mixed sizes are not resized", "build with --size"
        elif options.weights is not None or options.ragged or not self._decode or options.crop:
            what, hint = "buckets with weights, ragged, a crop or decode=False", "give one of them"
        else:
            return
        raise DatasetError("Dataset.batches", what, hint)


def _check_transform(transform: Any, *, as_supervised: bool) -> None:
    """Raise DatasetError where a function cannot transform an image and its boxes together."""
    what = "transform of a set with boxes or masks is called with image and target"
    if not as_supervised:
        raise DatasetError(
            "reader.Dataset", f"{what}, as_supervised=False has none", "leave it out"
        )
    named = parameters(transform)
    if named is None:
        return
    try:
        inspect.Signature(list(named.values())).bind("image", "target")
    except TypeError:
        hint = "give a function of both that returns both"
        raise DatasetError("reader.Dataset", f"{what}, not {short_repr(transform)}", hint) from None
