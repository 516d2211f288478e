"""A viewer that serves: made, looked at, closed."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from shardprep.dataset.card import Card, Link
from shardprep.errors import OptionName, RecipeError
from shardprep.reporter.record_columns import read_contents
from shardprep.reporter.viewer.routes import Site
from shardprep.reporter.viewer.server import Server

if TYPE_CHECKING:
    from contextlib import ExitStack

    from shardprep.dataset.open_dataset import OpenDataset
    from shardprep.reporter.viewer.routes import Originals


_END_S = 0.5
"""Seconds that `close` waits for answers in the making."""


@dataclass(frozen=True, repr=False)
class Viewer(Card):
    """A dataset that is served to the user's browsers on this machine, until `close`.

    A context as well, whose end closes it.
    """

    url: str
    """Address to open. It contains a secret token."""
    name: str
    """Name of the dataset."""
    version: str
    """Version of the dataset."""
    num_records: int
    """Number of records of the dataset."""
    num_items: int
    """Number of items on the pages: records, rejected and skipped inputs."""
    ending: ExitStack = field(compare=False)
    """Acts that close it."""

    def facts(self) -> dict[str, Any]:
        """Return the dataset and where it is served."""
        title = f"{self.name} {self.version}"
        return {"dataset": title, "items": self.num_items, "url": Link(self.url)}

    def close(self) -> None:
        """End it within 2 s; again has no effect.

        Threads that still read or decode by then end by themselves, and nobody gets their answers.
        """
        self.ending.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(
    dataset: OpenDataset, port: int, originals: Originals | None, ending: ExitStack
) -> Viewer:
    """Return a viewer that a thread of this process serves.

    Args:
        dataset: the dataset.
        port: the port to listen on, 0 for any that is free.
        originals: gives the images that the dataset was built from, where they are known.
        ending: acts for when the viewer is closed; it takes them over, and adds its own.

    Raises:
        DatasetError: a document is missing, damaged, or contradicts another.
        RecipeError: the port is taken.

    """
    contents = read_contents(dataset)
    site = Site(contents, originals)
    try:
        server = Server(port, site.answer)
    except OSError as error:
        site.close()
        what = f"{port} cannot be listened on ({(error.strerror or str(error)).lower()})"
        raise RecipeError(OptionName("port"), what, "leave it out for one that is free") from error
    ending.callback(server.join, _END_S)
    ending.callback(site.close)
    ending.callback(server.close)  # the first of them
    work = threading.Thread(target=server.serve_forever, args=(0.1,), name="shardprep-view",
                            daemon=True)  # fmt: skip
    work.start()
    manifest = contents.manifest
    return Viewer(
        url=server.url,
        name=manifest.name,
        version=manifest.version,
        num_records=len(contents),
        num_items=len(site.items),
        ending=ending.pop_all(),
    )
