"""Files that appear whole or not at all, and folders for secrets.

A process can be killed between any two operations. So whatever matters is written under another
name, brought to the disk, and renamed: renaming is the one step that is seen done or not done.
"""

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterator

# Linux, linux/fs.h and fcntl.h: swap two names; paths are relative to the working directory.
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
# What kernels and file systems answer that cannot swap two names.
_CANNOT_SWAP = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)
# What file systems answer on which a folder has no fsync (it is durable by other means, or never).
_CANNOT_SYNC_FOLDERS = (errno.EINVAL, errno.ENOTSUP)


def sync_file(path: str | os.PathLike) -> None:
    """Waits until the content of a file is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(path: str | os.PathLike) -> None:
    """Waits until the names in a folder are on the disk, where the file system can do that."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC_FOLDERS:
            raise
    finally:
        os.close(handle)


def sync_tree(path: str | os.PathLike) -> None:
    """Waits until a folder and everything in it is on the disk."""
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            sync_file(os.path.join(folder, name))
        sync_folder(folder)


def exchange(first: str | os.PathLike, second: str | os.PathLike) -> bool:
    """Swaps two names in one step, so that at any moment both are there.

    Returns:
        Whether the system can do that; if not, nothing has changed.

    Raises:
        OSError: it can, and it failed.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:  # not Linux, or a C library before glibc 2.28
        return False
    names = [ctypes.c_char_p(os.fsencode(name)) for name in (first, second)]
    if renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], ctypes.c_uint(_RENAME_EXCHANGE)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT_SWAP:
        return False
    raise OSError(number, os.strerror(number), os.fspath(first), None, os.fspath(second))


@contextlib.contextmanager
def replaced_whole(path: str | os.PathLike) -> Iterator[str]:
    """Gives the name of a file to write, which takes the place of `path` when the block ends.

    A block that fails leaves `path` as it was. The name has the ending of `path`, since some writers
    choose the format by it. Permissions of a file that is replaced stay.
    """
    path = os.path.realpath(path)  # behind a link, the file is replaced and the link stays
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
    """Makes a folder that only its owner may enter, or checks that one is; returns its path.

    Raises:
        ValueError: there is something else of that name: a file, a symbolic link, a folder of
            somebody else, or one that others may enter.
        OSError: it cannot be made.
    """
    path = os.fspath(path)
    # The mode is there from the first moment: a folder that is narrowed later has been open before.
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "no folder"
        raise ValueError(f"Expected a folder for secrets. Found {kind}: {path}. Move it away.")
    if found.st_uid != os.geteuid():
        raise ValueError(
            f"Expected a folder for secrets of user {os.geteuid()}, who runs this. Found one of user "
            f"{found.st_uid}: {path}. Move it away, or choose another place."
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise ValueError(
            f"Expected a folder for secrets that only its owner may enter (mode 0700). Found mode "
            f"{stat.S_IMODE(found.st_mode):04o}: {path}. See what others may have read or put there, "
            f"then: chmod 700 {path}"
        )
    return path
