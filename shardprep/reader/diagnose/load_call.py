"""What a dataset of `reader.load` was made of. It goes with the dataset, as `dataset.loaded`."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_Parameters = ParamSpec("_Parameters")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A call of `load`, with all of its arguments, defaults included."""

    load: Callable[..., Any]
    path: str | Path
    split: Any
    options: Mapping[str, Any]
    """All further ones."""

    def again(self, **changed: Any) -> Any:
        """Return what the call gives with other options."""
        return self.load(self.path, self.split, **{**self.options, **changed})


def remembered(load: Callable[_Parameters, Any]) -> Callable[_Parameters, Any]:
    """Let what a function returns know the arguments it was made with."""
    signature = inspect.signature(load)

    @functools.wraps(load)
    def remembering(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> Any:
        dataset = load(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        options = dict(given.arguments)
        dataset.loaded = Loaded(load, options.pop("path"), options.pop("split"), options)
        return dataset

    return remembering
