"""`shardprep upload`: a dataset to Kaggle, and back for a check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from shardprep.cli import options as o
from shardprep.cli.streams import bar, console, print_json
from shardprep.errors import counted

if TYPE_CHECKING:
    from shardprep.api.upload import Upload

EPILOG = (
    "Examples:\n\nshardprep upload tfrecords/pets kaggle:owner/pets-shards\n\n"
    "shardprep upload tfrecords/pets owner/pets-shards --public --license CC-BY-4.0"
)


def upload(
    dataset: Annotated[str, o.argument("Folder of the dataset or a folder above it.")],
    slug: Annotated[str, o.argument("OWNER/NAME on Kaggle, or the address of its page.")],
    title: Annotated[
        str | None,
        o.value("Title of a new dataset, 6 to 50 characters.", "TEXT", "the words of NAME"),
    ] = None,
    license: Annotated[  # noqa: A002 - the option's name
        str | None,
        o.value(
            "Licence of a new dataset, with Kaggle's name, such as CC-BY-4.0.",
            "NAME",
            "unknown, for a private dataset",
        ),
    ] = None,
    message: Annotated[
        str | None,
        o.value("Notes of a new version.", "TEXT", "name and version of the dataset"),
    ] = None,
    public: Annotated[
        bool, o.switch("--public", "Make the dataset public; a new one needs --license.")
    ] = False,
    check: Annotated[
        bool,
        o.switch("--check/--no-check", "Download the uploaded version and compare every byte."),
    ] = True,
    as_json: o.Json = False,
) -> None:
    """Upload a dataset to Kaggle, as a new private dataset or a new version.

    The dataset is verified first, and compared with Kaggle's copy at the end. If the upload is
    interrupted, the same command continues it; files that Kaggle already has are not sent again.
    """
    from shardprep.api.upload import upload as upload_dataset

    with bar() as progress:
        done = upload_dataset(
            dataset,
            slug,
            title=title,
            license=license,
            message=message,
            public=public,
            check=check,
            progress=progress,
        )
    if as_json:
        print_json(done)
    else:
        _show(done)


def _show(done: Upload) -> None:
    from shardprep.storage.space import megabytes

    console().notice(done.page)
    seen = {True: "private", False: "public", None: "seen as its page says"}[done.is_private]
    how = "is there already" if done.was_there else f"{done.elapsed_s:,.0f} s"
    checked = "every byte came back" if done.is_checked else "not downloaded for a check"
    files = f"{counted(done.num_files, 'file')}, {megabytes(done.num_bytes)}"
    console().notice(f"version {done.version}, {seen}: {files}, {how}; {checked}")
