"""The call of `reader.load` that made a dataset, kept with it as `dataset.loaded`."""

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
    """All other arguments, by name."""

    def again(self, **changed: Any) -> Any:
        """Return the dataset of the same call with other options."""
        return self.load(self.path, self.split, **{**self.options, **changed})


def remembered(load: Callable[_Parameters, Any]) -> Callable[_Parameters, Any]:
    """Return the function, with its arguments kept as `loaded` of each result."""
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
