"""Public ids and vectors of words: by a fixed hash, or by a file such as GloVe's.

Nothing is learned from the private texts. A vocabulary built from them would be a release of its own
(a rare word in it reveals that somebody wrote the word), and so would a selection of a file's words by
them. So a hash depends on the word alone, and a file, which must come from public text, is used whole.
"""

import os
import pathlib
import re
import zlib
from collections.abc import Iterable, Sequence

import numpy as np

PADDING = 0
# The id of all words that are not in a list of words.
UNKNOWN = 1
_TOKEN = re.compile(r"\w+|[^\w\s]")


def hash_tokens(texts: Iterable[str], *, num_buckets: int, length: int) -> np.ndarray:
    """Turns texts into rows of token ids by hashing.

    Words are lower-cased; every punctuation mark is a token of its own. The hash is CRC-32, which
    is the same on every machine and in every run (Python's own `hash` is not).

    Args:
        texts: the texts.
        num_buckets: size of the id space, at least 2, including id 0, which is kept for padding.
        length: tokens per row; longer texts are cut, shorter ones padded with 0 at the end.

    Returns:
        int32 array of shape (number of texts, length) with values in `[0, num_buckets)`.
    """
    return _rows(texts, lambda token: 1 + zlib.crc32(token.encode()) % (num_buckets - 1), length)


def look_up_tokens(texts: Iterable[str], words: Sequence[str], *, length: int) -> np.ndarray:
    """Turns texts into rows of token ids by a list of words, which must come from public text.

    Args:
        texts: the texts, which are cut into tokens as by `hash_tokens`.
        words: different words, in lower case.
        length: tokens per row, as in `hash_tokens`.

    Returns:
        int32 array of shape (number of texts, length). Id 0 is padding, id 1 stands for every word that
        is not in the list, and ids 2, 3, ... for the words in order.
    """
    ids = {word: number for number, word in enumerate(words, UNKNOWN + 1)}
    return _rows(texts, lambda token: ids.get(token, UNKNOWN), length)


def _rows(texts, id_of, length) -> np.ndarray:
    """Returns the ids of the first `length` tokens of each text, padded at the end."""
    rows = np.full((len(texts), length), PADDING, dtype=np.int32)
    for row, text in zip(rows, texts, strict=True):
        for column, token in enumerate(_TOKEN.findall(str(text).lower())[:length]):
            row[column] = id_of(token)
    return rows


def read_vectors(path: str | os.PathLike) -> tuple[tuple[str, ...], np.ndarray]:
    """Reads word vectors in GloVe's text format: in each line a word and its numbers, after spaces.

    A first line of two numbers (how many words and how wide, as word2vec writes it) is passed over.
    Words are lower-cased, as texts are; of words that are then equal, the first one stays.

    Args:
        path: a UTF-8 text file.

    Returns:
        (words in the order of the file, float32 array of shape (words, width)).

    Raises:
        ValueError: the file is no UTF-8 text or holds no vector, the vectors differ in length, or a
            number is not finite.
    """
    found, width = {}, None
    # Some editors begin a file with a mark of byte order.
    lines = pathlib.Path(path).read_text(encoding="utf-8-sig").splitlines()
    for number, line in enumerate(lines, 1):
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
    if not found:
        raise ValueError(f"Expected word vectors in {path}. Found an empty file.")
    return tuple(found), np.stack([*found.values()])
