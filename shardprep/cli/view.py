"""`shardprep view`: show a dataset in a browser of this machine."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.cli.streams import console, picked, print_json
from shardprep.recipe.options import Option

if TYPE_CHECKING:
    from shardprep.cli.options import Call

EPILOG = (
    "Examples:\n\nshardprep view --open\n\n"
    "shardprep view tfrecords/dogs_vs_cats --source dogs-vs-cats.zip\n\n"
    "shardprep view s3://bucket/sets/pets --port 8000"
)
OPTIONS = {"open_": Option("Open the first page in a browser.")}


def run(call: Call, *, open_: bool, as_json: bool) -> None:
    """Show the images of a dataset in a browser, with boxes, masks and filters.

    Runs a server for this machine only, until Ctrl-C. Open the printed address.
    """
    # Without a source, the dataset opens at once and needs no progress bar.
    viewer = call() if "source" in call.options else call(progress=False)
    with viewer:
        ended = threading.Event()
        before = {
            number: signal.signal(number, lambda *_: ended.set())
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        if as_json:
            from shardprep.api.json_types import ViewJson

            print_json(picked(ViewJson, viewer))
        else:
            title = f"{viewer.name} {viewer.version}"
            console().notice(f"{title} is at {viewer.url} until Ctrl-C")
        sys.stdout.flush()  # a program may read the address from a pipe
        with _opened(viewer.url) if open_ else nullcontext():
            ended.wait()
        for number, handler in before.items():
            signal.signal(number, handler)  # a second Ctrl-C ends the program at once
    console(stderr=True).notice("ended")


@contextmanager
def _opened(url: str) -> Iterator[None]:
    """Open an address in a browser through a file that only this user can read.

    All users of the machine can list the arguments of a program, so the secret address must not be
    an argument.
    """
    import webbrowser

    with tempfile.TemporaryDirectory(prefix="shardprep-view-") as folder:  # its mode is 0700
        page = Path(folder) / "open.html"
        page.write_text(
            f'<!doctype html><meta http-equiv="refresh" content="0;url={url}">'
            f'<a href="{url}">shardprep view</a>\n'
        )
        if not webbrowser.open(page.as_uri()):
            console(stderr=True).notice("no browser could be started; open the address above")
        yield
