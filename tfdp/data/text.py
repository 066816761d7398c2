"""Public tokenizers: words become fixed hash buckets or numbers of a public list, or a text its bytes.

Nothing is learned from the text. A vocabulary built from the training text would be a release of its
own (a rare word in it reveals that somebody wrote the word). A hash bucket is a function of the word
alone.
"""

import re
import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from tfdp._validate import whole

PADDING = 0
# The id of all words that are not in a list of words.
UNKNOWN = 1
_TOKEN = re.compile(r"\w+|[^\w\s]")


def hash_tokens(texts: Iterable[str | bytes], *, num_buckets: int, length: int) -> np.ndarray:
    """Turns texts into rows of token ids by hashing.

    Words are lower-cased; every punctuation mark is a token of its own. The hash is CRC-32, which
    is the same on every machine and in every run (Python's own `hash` is not).

    Args:
        texts: the texts, as `str` or as UTF-8 `bytes`.
        num_buckets: size of the id space, including id 0, which is kept for padding.
        length: tokens per row; longer texts are cut, shorter ones padded with 0 at the end.

    Returns:
        int32 array of shape (number of texts, length) with values in `[0, num_buckets)`.

    Raises:
        ValueError: `num_buckets` is below 2, `length` is below 1, or `texts` is a single text.

    Example:
        >>> import tfdp
        >>> rows = tfdp.data.hash_tokens(["A fine film.", "Fine"], num_buckets=1000, length=5)
        >>> rows.shape
        (2, 5)
        >>> bool(rows[0, 1] == rows[1, 0])  # "fine" and "Fine"
        True
        >>> rows[1, 1:].tolist()  # padding
        [0, 0, 0, 0]
    """
    num_buckets = whole("num_buckets", num_buckets, 2, remedy="Use more: bucket 0 is padding.")
    length = whole("length", length, 1)
    _several(texts)
    buckets: dict[str, int] = {}

    def bucket(token: str) -> int:
        if token not in buckets:
            buckets[token] = 1 + zlib.crc32(token.encode("utf-8")) % (num_buckets - 1)
        return buckets[token]

    return _rows(texts, bucket, length)


def look_up_tokens(
    texts: Iterable[str | bytes], words: Sequence[str], *, length: int
) -> np.ndarray:
    """Turns texts into rows of token ids by a list of words, which must come from public text.

    Texts are cut into tokens as by `hash_tokens`. Id 0 is padding, id 1 stands for every word that is
    not in the list, and ids 2, 3, ... for the words in order. A list that was made from private texts
    would show which words occur in them.

    Args:
        texts: the texts, as `str` or as UTF-8 `bytes`.
        words: different words, in lower case.
        length: tokens per row, as in `hash_tokens`.

    Returns:
        int32 array of shape (number of texts, length) with values in `[0, len(words) + 2)`.

    Raises:
        ValueError: `length` is below 1, a word occurs twice, or `texts` is a single text.

    Example:
        >>> import tfdp
        >>> tfdp.data.look_up_tokens(["A fine film", "Fine"], ["film", "fine"], length=3)
        array([[1, 3, 2],
               [3, 0, 0]], dtype=int32)
    """
    length = whole("length", length, 1)
    _several(texts)
    ids = {word: number for number, word in enumerate(words, UNKNOWN + 1)}
    if len(ids) != len(words):
        raise ValueError(
            "Invalid value received for argument `words`. Expected different words. Received "
            f"{len(words)} of which {len(ids)} differ."
        )
    return _rows(texts, lambda token: ids.get(token, UNKNOWN), length)


def _rows(texts, id_of, length) -> np.ndarray:
    """Returns the ids of the first `length` tokens of each text, padded at the end."""
    texts = [text.decode("utf-8") if isinstance(text, bytes) else str(text) for text in texts]
    rows = np.full((len(texts), length), PADDING, dtype=np.int32)
    for row, text in zip(rows, texts, strict=True):
        for column, token in enumerate(_TOKEN.findall(text.lower())[:length]):
            row[column] = id_of(token)
    return rows


def cut_bytes(texts: Iterable[str | bytes], length: int) -> np.ndarray:
    """Cuts texts into rows of UTF-8 bytes, for a language model of characters.

    Each text is cut by itself, and what is left at its end is dropped. So a row holds one text only,
    and another text more or less, or a longer one, leaves the rows of all others as they are.

    Args:
        texts: the texts, as `str` or as UTF-8 `bytes`.
        length: bytes per row, at least 1.

    Returns:
        int32 array of shape (number of rows, length) with values from 0 to 255.

    Raises:
        ValueError: `length` is below 1, or `texts` is a single text.

    Example:
        >>> import tfdp
        >>> tfdp.data.cut_bytes(["abcde", "fg"], length=2)  # the "e" is left out
        array([[ 97,  98],
               [ 99, 100],
               [102, 103]], dtype=int32)
    """
    length = whole("length", length, 1)
    _several(texts)
    texts = [text.encode("utf-8") if isinstance(text, str) else bytes(text) for text in texts]
    kept = b"".join(text[: len(text) // length * length] for text in texts)
    return np.frombuffer(kept, np.uint8).reshape(-1, length).astype(np.int32)


def _several(texts) -> None:
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        what = "a single text" if isinstance(texts, str | bytes) else type(texts).__name__
        raise ValueError(
            "Invalid value received for argument `texts`. Expected a sequence of texts. "
            f"Received {what}: {texts!r}. Pass a list of texts."
        )
