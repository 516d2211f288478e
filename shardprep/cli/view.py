"""`shardprep view`: a dataset in a browser of this machine."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from shardprep.cli import options as o
from shardprep.cli.streams import bar, console, picked, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

EPILOG = (
    "Examples:\n\nshardprep view --open\n\n"
    "shardprep view tfrecords/dogs_vs_cats --source dogs-vs-cats.zip\n\n"
    "shardprep view s3://bucket/sets/pets --port 8000"
)


def view(
    dataset: o.Dataset = None,
    source: Annotated[
        str | None,
        o.value(
            "Source of the dataset, or the folder of build --save-rejected, to show originals and "
            "rejected images too.",
            "SOURCE",
        ),
    ] = None,
    port: Annotated[
        int | None,
        o.amount(
            "Port of the server, which listens on this machine only; 0 for any free port.",
            "N",
            "0",
            least=0,
            most=65_535,
        ),
    ] = None,
    open_: Annotated[bool, o.switch("--open", "Open the first page in a browser.")] = False,
    store_timeout: o.StoreTimeout = None,
    as_json: o.Json = False,
) -> None:
    """Show the images of a dataset in a browser, with boxes, masks and filters.

    Runs a server for this machine only, until Ctrl-C. Open the printed address.
    """
    # What Arrow's own allocator keeps for later would be half of the memory.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from shardprep.api.view import view as serve

    with bar() if source else nullcontext(False) as progress:  # a dataset alone is there at once
        viewer = serve(dataset, source=source, port=port, progress=progress)
    with viewer:
        ended = threading.Event()
        before = {
            one: signal.signal(one, lambda *_: ended.set())
            for one in (signal.SIGINT, signal.SIGTERM)
        }
        if as_json:
            from shardprep.api.json_types import ViewJson

            print_json(picked(ViewJson, viewer))
        else:
            title = f"{viewer.name} {viewer.version}"
            console().notice(f"{title} is at {viewer.url} until Ctrl-C")
        sys.stdout.flush()  # whoever reads a pipe waits for it
        with _opened(viewer.url) if open_ else nullcontext():
            ended.wait()
        for one, handler in before.items():
            signal.signal(one, handler)  # a second Ctrl-C waits for nothing
    console(stderr=True).notice("ended")


@contextmanager
def _opened(url: str) -> Iterator[None]:
    """Open an address in a browser, by a file that only this user can read.

    The arguments of a program are public: all users of the machine can list them.
    """
    import webbrowser

    with tempfile.TemporaryDirectory(prefix="shardprep-view-") as folder:  # its mode is 0700
        page = Path(folder) / "open.html"
        page.write_text(
            f'<!doctype html><meta http-equiv="refresh" content="0;url={url}">'
            f'<a href="{url}">shardprep view</a>\n'
        )
        if not webbrowser.open(page.as_uri()):
            console(stderr=True).notice("no browser could be started: open the address above")
        yield
