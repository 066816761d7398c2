"""The files that the folder of a result may hold.

A folder that holds anything else is never replaced (`result_folder.py`) and never cleared
(`partial_folder.py`). This module does not import TensorFlow.
"""

import hashlib
import io
import json
import lzma
import os
import stat
import zipfile
import zlib

MODEL, RECORD, CARD, LOG = "model.keras", "run.json", "model_card.md", "tensorboard"
# What `train.py --audit` adds to a finished result.
AUDIT = ("audit.json", "audit.png")
DIGESTS = {"model_sha256": MODEL, "model_card_sha256": CARD}
# Members of a `.keras` file.
_NOT_WEIGHTS = {"metadata.json", "config.json"}
# What reading a damaged or encrypted one raises.
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError, RuntimeError, OSError,
    KeyError, AttributeError, TypeError, OverflowError,
)  # fmt: skip
# How the temporary file of a model ends that is being written; see tfdp/_files.py.
_TEMPORARY = ".partial.keras"


def strange_entry(folder: str, unfinished: bool = False) -> str | None:
    """Returns the name of an entry that no result has; None if there is none.

    Args:
        folder: the folder of a result. Files may be missing.
        unfinished: whether the temporary file of a model may be there as well.

    Raises:
        OSError: the folder, or a folder in it, cannot be read.
    """
    if not stat.S_ISDIR(os.lstat(folder).st_mode):
        return os.path.basename(folder)
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name == LOG and entry.is_dir(follow_symlinks=False):
                if strange := _strange_event_file(entry.path):
                    return strange
            elif not (entry.is_file(follow_symlinks=False) and _is_known(entry.name, unfinished)):
                return entry.name
    return None


def is_result(folder: str) -> bool:
    """Whether the folder has the record of a finished result."""
    return read_record(folder).keys() >= DIGESTS.keys()


def read_record(folder: str) -> dict:
    """Returns the content of run.json; an empty dictionary if it is missing or damaged."""
    try:
        with open(os.path.join(folder, RECORD), "rb") as file:
            record = json.load(file)
    except (FileNotFoundError, IsADirectoryError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def digest(path: str) -> str:
    """Returns the SHA-256 digest of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_digest(path: str) -> str:
    """Returns the SHA-256 digest of what a file says.

    That of a `.keras` file is that of its arrays alone, without the time of saving and the names of
    layers, which count those of the process: training again with the same outcome gives the same.
    """
    if not path.endswith(".keras"):
        return digest(path)
    whole = hashlib.sha256()
    try:
        with zipfile.ZipFile(path) as archive:
            for name in sorted(set(archive.namelist()) - _NOT_WEIGHTS):
                of = _digest_of_arrays if name.endswith(".h5") else hashlib.sha256
                whole.update(f"{name!r} {of(archive.read(name)).hexdigest()}\n".encode())
    except _DAMAGE:
        return digest(path)  # what is damaged says nothing but its bytes
    return whole.hexdigest()


def _digest_of_arrays(content: bytes):
    import h5py  # not needed by most that import this module

    whole = hashlib.sha256()
    arrays = {}

    def keep(place, item):
        if isinstance(item, h5py.Dataset):
            arrays[place] = item

    with h5py.File(io.BytesIO(content), "r") as file:
        file.visititems(keep)
        for place in sorted(arrays):
            array = arrays[place]
            whole.update(f"{place!r} {array.dtype.str} {array.shape}\n".encode())
            value = array[()]
            # Texts are objects, whose bytes are addresses.
            text = array.dtype.hasobject
            whole.update(repr(value.tolist()).encode() if text else value.tobytes())
    return whole


def _is_known(name, unfinished) -> bool:
    return name in (MODEL, RECORD, CARD, *AUDIT) or (unfinished and name.endswith(_TEMPORARY))


def _strange_event_file(folder) -> str | None:
    for inner, folders, names in os.walk(folder, onerror=_raise):
        for name in sorted(names + folders):
            path = os.path.join(inner, name)
            if os.path.islink(path) or (name in names and "tfevents" not in name):
                return os.path.relpath(path, os.path.dirname(folder))
    return None


def _raise(error: OSError):
    """Makes `os.walk` fail where it would skip a folder that it cannot read."""
    raise error
