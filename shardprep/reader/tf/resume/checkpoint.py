"""The file of a place in training: the state of the batches, and the values of variables."""

from __future__ import annotations

import itertools
import json
import zipfile
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import keras
import numpy as np

from shardprep.errors import DatasetError
from shardprep.storage.atomic_file import DurableFile

if TYPE_CHECKING:
    from pathlib import Path

ANEW = "remove the file to begin anew"
_HEAD = "head"
"""Name of the array with the JSON of what is no array."""


class Checkpoint(NamedTuple):
    """A place in training, with all that goes on from there."""

    place: dict[str, Any]
    """The state of the batches before the next step."""
    optimizer: str
    """Name of its class."""
    kinds: dict[str, list[str]]
    """Type and shape of the variables of "model", "optimizer" and, within an epoch, "metrics"."""
    arrays: dict[str, list[Any]]
    """Values of these variables."""

    @classmethod
    def of(cls, place: dict[str, Any], optimizer: str, variables: dict[str, list[Any]]) -> Self:
        """Return the checkpoint with the values that variables of Keras have now."""
        kinds = {name: _kinds(found) for name, found in variables.items()}
        arrays = {name: values_of(found) for name, found in variables.items()}
        return cls(place, optimizer, kinds, arrays)

    def write(self, path: Path) -> None:
        """Write it, in place of another one, complete or not at all."""
        flat = {
            f"{name}/{i}": one for name, found in self.arrays.items() for i, one in enumerate(found)
        }
        head = {"place": self.place, "optimizer": self.optimizer, "kinds": self.kinds}
        flat[_HEAD] = np.frombuffer(json.dumps(head).encode(), np.uint8)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with DurableFile(path) as file:
                np.savez(file.stream, **flat)
                file.commit()
        except OSError as error:
            what = f"cannot be written ({error.strerror})"
            raise DatasetError(str(path), what, "give another path") from error

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return what is in a file, None where there is none."""
        try:
            with np.load(path, allow_pickle=False) as file:
                head = json.loads(file[_HEAD].tobytes())
                arrays = {
                    name: [file[f"{name}/{i}"] for i in range(len(kinds))]
                    for name, kinds in head["kinds"].items()
                }
            return cls(**head, arrays=arrays)
        except FileNotFoundError:
            return None
        except OSError as error:
            what = f"cannot be read ({error.strerror})"
            raise DatasetError(str(path), what, "give another path") from error
        except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise DatasetError(str(path), "is no state of ResumeInEpoch", ANEW) from error

    def restore(self, path: Path, name: str, variables: list[Any]) -> None:
        """Assign values; DatasetError where they are not of such variables."""
        kinds, own = self.kinds[name], _kinds(variables)
        if kinds != own:
            pairs = enumerate(itertools.zip_longest(kinds, own, fillvalue="none"))
            number, (one, other) = next(pair for pair in pairs if pair[1][0] != pair[1][1])
            what = f"the state is of another {name}: variable {number} was {one} and is {other}"
            raise DatasetError(str(path), what, f"make the same, or {ANEW}")
        for variable, value in zip(variables, self.arrays[name], strict=True):
            # NumPy's files have no names for the small types of floats.
            variable.assign(value.view(keras.backend.standardize_dtype(variable.dtype)))


def values_of(variables: list[Any]) -> list[Any]:
    """Return the values of variables as arrays."""
    return [one.numpy() for one in variables]


def _kinds(variables: list[Any]) -> list[str]:
    """Return type and shape of variables; their names Keras numbers anew in each model."""
    return [f"{keras.backend.standardize_dtype(one.dtype)}{list(one.shape)}" for one in variables]
