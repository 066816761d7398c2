"""Reads files of public words and of public word vectors, such as GloVe's.

The files must come from public text. Every word of a file is used, in the order of the file, whether
it occurs in the private texts or not: a selection by them would be a release of its own.
"""

import dataclasses
import itertools
import os

import numpy as np

from tfdp._validate import whole


@dataclasses.dataclass(frozen=True)
class Vectors:
    """Public words and their vectors.

    Attributes:
        words: different words, in lower case, in the order of the file.
        table: float32 array of shape (words, width), a row for each word.

    Example:
        >>> import tfdp
        >>> with open("glove.txt", "w") as file:
        ...     _ = file.write("the 0.1 0.2\\nfilm -0.3 0.4\\n")
        >>> vectors = tfdp.data.read_vectors("glove.txt")
        >>> vectors.words, vectors.width
        (('the', 'film'), 2)
    """

    words: tuple[str, ...]
    table: np.ndarray

    @property
    def width(self) -> int:
        """The length of a vector."""
        return self.table.shape[1]


def read_words(path: str | os.PathLike, limit: int | None = None) -> tuple[str, ...]:
    """Reads a list of words: the first word of each line, so that a file of vectors will do as well.

    Words are lower-cased, as texts are; of words that are then equal, the first one stays.

    Args:
        path: a UTF-8 text file.
        limit: the number of words that are read at most; None reads all.

    Raises:
        ValueError: the file cannot be read, or holds no word.

    Example:
        >>> import tfdp
        >>> with open("words.txt", "w") as file:
        ...     _ = file.write("the\\nThe\\nfilm\\n")
        >>> tfdp.data.read_words("words.txt")
        ('the', 'film')
    """
    limit = whole("limit", limit, 1, optional=True)
    words = dict.fromkeys(line.split()[0].lower() for line in _lines(path) if line.strip())
    if not words:
        raise ValueError(f"Expected a word in each line of {os.fspath(path)}. Found an empty file.")
    return tuple(itertools.islice(words, limit))


def read_vectors(path: str | os.PathLike, limit: int | None = None) -> Vectors:
    """Reads word vectors in GloVe's text format: in each line a word and its numbers, after spaces.

    A first line of two numbers (how many words and how wide, as word2vec writes it) is passed over.
    Words are lower-cased, as texts are; of words that are then equal, the first one stays.

    Args:
        path: a UTF-8 text file.
        limit: the number of words that are read at most; None reads all.

    Raises:
        ValueError: the file cannot be read or holds no vector, the vectors differ in length, or a
            number is not finite.

    Example:
        >>> import tfdp
        >>> with open("glove.txt", "w") as file:
        ...     _ = file.write("the 0.1 0.2\\nfilm -0.3 0.4\\n")
        >>> print(tfdp.data.read_vectors("glove.txt").table)
        [[ 0.1  0.2]
         [-0.3  0.4]]
    """
    limit = whole("limit", limit, 1, optional=True)
    path, found, width = os.fspath(path), {}, None
    for number, line in enumerate(_lines(path), 1):
        parts = line.rstrip().split(" ")
        if number == 1 and len(parts) == 2 and all(part.isdigit() for part in parts):
            continue
        width = len(parts) - 1 if width is None else width
        word = " ".join(parts[: len(parts) - width]).lower()  # a few words of GloVe hold spaces
        try:
            vector = np.array(parts[len(parts) - width :], np.float32)
        except ValueError:
            vector = np.array([np.nan])
        if not (width and word and len(vector) == width and np.isfinite(vector).all()):
            raise ValueError(
                f"Expected a word and {width or 'some'} finite numbers in line {number} of {path}. "
                f"Found {line.rstrip()[:60]!r}. Use a file in GloVe's text format."
            )
        found.setdefault(word, vector)
        if len(found) == limit:
            break
    if not found:
        raise ValueError(f"Expected word vectors in {path}. Found an empty file.")
    return Vectors(tuple(found), np.stack([*found.values()]))


def _lines(path):
    try:
        with open(path, encoding="utf-8-sig") as file:  # some editors begin it with a mark
            yield from file
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise ValueError(
            f"Expected a text file that can be read. Found {os.fspath(path)}: {reason}."
        ) from error
