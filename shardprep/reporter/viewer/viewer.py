"""Start and stop the viewer of a dataset."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self

from shardprep.dataset.card import Card, Link
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.errors import OptionName, RecipeError
from shardprep.reporter.record_columns import read_contents
from shardprep.reporter.viewer.routes import Originals, Site
from shardprep.reporter.viewer.server import Server

_END_S = 0.5
"""Time that `close` waits for answers in progress."""


@dataclass(frozen=True, repr=False)
class Viewer(Card):
    """A running viewer. It serves a dataset to browsers on this machine until `close`.

    It is also a context manager that closes itself.
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
    """Number of items shown: records, rejected and skipped inputs."""
    ending: ExitStack = field(compare=False)
    """Callbacks that `close` runs."""

    def facts(self) -> dict[str, Any]:
        title = f"{self.name} {self.version}"
        return {"dataset": title, "items": self.num_items, "url": Link(self.url)}

    def close(self) -> None:
        """Stop the viewer within 2 s. Closing again has no effect.

        Threads that are still reading or decoding end later on their own.
        """
        self.ending.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(
    dataset: OpenDataset, port: int, originals: Originals | None, ending: ExitStack
) -> Viewer:
    """Start a viewer in a thread of this process.

    Args:
        dataset: the dataset.
        port: the port to listen on, 0 for a free port.
        originals: returns the original images, None if the source is unknown.
        ending: callbacks to run when the viewer is closed. The viewer takes them over.

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
        what = f"cannot listen on port {port} ({(error.strerror or str(error)).lower()})"
        raise RecipeError(OptionName("port"), what, "leave it out to use a free port") from error
    ending.callback(server.join, _END_S)
    ending.callback(site.close)
    ending.callback(server.close)  # runs first
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
