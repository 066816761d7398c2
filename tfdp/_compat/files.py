"""How Keras lays out the files of weights: what is read of them past Keras' own loading.

A `.keras` file is a ZIP archive whose member `model.weights.h5` holds the weights; `.weights.h5` is
that member by itself; `.weights.json` names the HDF5 files of shards beside it in its "weight_map".
What an object saves by `save_own_variables` under a name lies under that name in a group of its own.
Seen in Keras 3.12.4 and 3.15.1.
"""

import io
import json
import pathlib
import zipfile
from collections.abc import Iterator

import h5py
import numpy as np


def saved_under(path, name: str) -> Iterator[np.ndarray]:
    """The arrays that objects have saved under a name, in a file of weights or of a whole model.

    Args:
        path: what `load_weights` was given: `.weights.h5`, `.keras`, or the `.weights.json` of shards;
            or a file that is open, as Keras gives pickles. Anything else holds none.
        name: a key that `save_own_variables` put into its store.
    """
    for content in _h5_contents(path):
        if not isinstance(content, io.BytesIO) and not h5py.is_hdf5(content):
            continue
        found = []

        def visit(place, item, found=found):
            if place.rpartition("/")[2] == name and isinstance(item, h5py.Dataset):
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
