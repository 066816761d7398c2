"""Stores texts beside the arrays in Keras' weight files.

This module relies on the layout of these files in Keras 3.13.0 and 3.15.1. A `.keras` file is a ZIP
archive whose member `model.weights.h5` holds the weights. A `.weights.h5` file is such a member alone;
shards are several of them. Each object has its own group "vars", in which an array has the name that
the object's `save_own_variables` gave it. When Keras loads a plain layer, it counts the arrays in a
group, but ignores the group's attributes. So a text is stored as an attribute.
"""

import io
import zipfile

import h5py
import numpy as np


def write_text(store, name: str, text: str) -> None:
    """Writes a text beside the variables of the model that is being saved.

    Args:
        store: The argument of `save_own_variables` of a model, before any array was written. If it
            is a dict, and not a file, nothing is written.
        name: Name of the text.
        text: A string of any length.
    """
    if not isinstance(store, dict):
        store._h5_entry_group.attrs[name] = text


def read_text(store, name: str) -> str | None:
    """Returns the text beside the variables of the model that is being loaded, or None.

    Args:
        store: The argument of `load_own_variables` of a model.
        name: Name of the text.
    """
    group = None if isinstance(store, dict) else store._h5_entry_group
    return getattr(group, "attrs", {}).get(name)  # a group that the file lacks is a dict


def optimizer_in(store) -> dict[str, np.ndarray]:
    """Returns the variables of the optimizer in the file that a model is being loaded from, by number.

    The result is empty for an inner model, and without an optimizer. The store is left at another
    group, which does not matter, because Keras looks up the group of each layer again.

    Args:
        store: The argument of `load_own_variables` of a model.
    """
    if isinstance(store, dict) or store._h5_entry_path:
        return {}
    found = store.get("optimizer")
    return {key: found[key] for key in found.keys()}  # noqa: SIM118, a store is not a mapping


def add_text(path, name: str, text: str) -> None:
    """Writes a text beside the arrays of a `.lora.h5` file that KerasHub wrote."""
    with h5py.File(path, "a") as file:
        file["lora"].attrs[name] = text


def texts_in(path, name: str) -> list[str]:
    """Returns all texts of a name in a `.keras` or HDF5 file that Keras or KerasHub can load."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            path = io.BytesIO(archive.read("model.weights.h5"))
    found = []

    def visit(_, item):
        if name in item.attrs:
            found.append(item.attrs[name])

    with h5py.File(path, "r") as file:
        file.visititems(visit)
    return found
