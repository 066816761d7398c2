"""Reads arrays from Keras' files of weights without Keras' own loading.

This module relies on the layout of these files, as seen in Keras 3.12.4 and 3.15.1. A `.keras` file is
a ZIP archive whose member `model.weights.h5` holds the weights. A `.weights.h5` file is that member by
itself. A `.weights.json` file lists the HDF5 files of shards, which lie beside it, in its
"weight_map". Each object has a group of its own, in which an array has the name that the object's
`save_own_variables` gave it.
"""

import io
import json
import pathlib
import zipfile
import zlib
from collections.abc import Iterator

import h5py
import numpy as np

# What zipfile and h5py raise for damaged members, and for encrypted ones (RuntimeError).
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, KeyError, AttributeError,
    TypeError, OverflowError, ValueError,
)  # fmt: skip


def saved_under(path, name: str) -> Iterator[np.ndarray]:
    """Yields all arrays that objects have saved under a name in a file of weights or of a model.

    Args:
        path: a `.weights.h5`, `.keras` or `.weights.json` file, as for `load_weights`, or an open
            file, which Keras uses for pickles. Other files yield nothing.
        name: a key that `save_own_variables` put into its store.

    Raises:
        ValueError: the file is damaged or encrypted.
    """
    yield from _read(path, lambda place: place.rpartition("/")[2] == name)


def steps_of_optimizer(path) -> int:
    """Number of steps that the optimizer in a file of weights or of a model has counted; 0 without one.

    Args:
        path: as in `saved_under`.
    """
    found = _read(path, lambda place: place == "optimizer/vars/0")  # its first variable: iterations
    return max((int(values) for values in found if np.ndim(values) == 0), default=0)


def _read(path, wanted):
    try:
        yield from _datasets(path, wanted)
    except FileNotFoundError:
        raise
    except _DAMAGE as error:
        raise ValueError(f"Expected a whole file of weights. Found {path}: {error}.") from error


def _datasets(path, wanted):
    for content in _h5_contents(path):
        if not isinstance(content, io.BytesIO) and not h5py.is_hdf5(content):
            continue
        found = []

        def visit(place, item, found=found):
            if wanted(place) and isinstance(item, h5py.Dataset):
                found.append(np.asarray(item))

        with h5py.File(content, "r") as file:
            file.visititems(visit)
        yield from found


def _h5_contents(path):
    if hasattr(path, "read"):
        path.seek(0)
        yield path
        return
    path = pathlib.Path(path)
    if path.name.endswith(".weights.json"):
        shards = json.loads(path.read_text()).get("weight_map", {}).values()
        for name in {n for shard in shards for n in ([shard] if isinstance(shard, str) else shard)}:
            yield path.parent / name
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".h5"):
                    yield io.BytesIO(archive.read(name))
    elif path.is_file():
        yield path
