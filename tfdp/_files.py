"""Writes files atomically, and makes folders for secrets.

A process can be killed between any two operations. Therefore an important file is written under
another name, flushed to the disk and renamed, because renaming is atomic.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

# Errors of file systems without fsync for folders: names are durable by other means, or not at all.
_CANNOT_SYNC_FOLDERS = (errno.EINVAL, errno.ENOTSUP)


def sync_file(path: str | os.PathLike) -> None:
    """Waits until the content of a file is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(path: str | os.PathLike) -> None:
    """Waits until the names in a folder are on the disk, if the file system supports that."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC_FOLDERS:
            raise
    finally:
        os.close(handle)


def sync_tree(path: str | os.PathLike[str]) -> None:
    """Waits until a folder and everything in it are on the disk."""
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            sync_file(os.path.join(folder, name))
        sync_folder(folder)


@contextlib.contextmanager
def replaced_whole(path: str | os.PathLike) -> Iterator[str]:
    """Context manager that yields a temporary file name; on exit, that file replaces `path` atomically.

    If the block fails, `path` is unchanged. The temporary name has the ending of `path`, since some
    writers choose the format by it. The new file gets the permissions of the file that it replaces.
    """
    path = os.path.realpath(path)  # replaces the file that a link points to, and keeps the link
    stem, ending = os.path.splitext(path)
    partial = f"{stem}.{os.urandom(8).hex()}.partial{ending}"
    try:
        yield partial
        with contextlib.suppress(FileNotFoundError):
            os.chmod(partial, stat.S_IMODE(os.stat(path).st_mode))
        sync_file(partial)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
    sync_folder(os.path.dirname(path))


def secret_folder(path: str | os.PathLike) -> str:
    """Creates a folder that only its owner may enter, or checks the permissions of an existing one.

    Returns:
        The path.

    Raises:
        ValueError: If the path is a file, or a folder that other users may enter.
        OSError: If the folder cannot be created.
    """
    path = os.fspath(path)
    # The folder is created with its final mode. If the mode were narrowed later, other users could
    # enter the folder before that.
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if not os.path.isdir(path):
        raise ValueError(f"{path} is a file. Pass a folder, which may be new.")
    if mode & 0o077:
        raise ValueError(
            f"{path} is for secrets, but its mode {mode:04o} lets other users enter it. Check what "
            f"they may have read or put there, then run: chmod 700 {path}"
        )
    return path
