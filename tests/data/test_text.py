"""The tokenizer is a fixed public function of the text alone."""

import numpy as np
import pytest

from tfdp.data import cut_bytes, hash_tokens


def test_known_values():
    # CRC-32 of "cat" is 0x9e5e43a8: the ids must never change, or saved models break.
    rows = hash_tokens(["Cat, cat!", b"cat"], num_buckets=1001, length=4)
    cat = 1 + 0x9E5E43A8 % 1000
    assert rows.dtype == np.int32
    assert rows[0, 0] == rows[0, 2] == rows[1, 0] == cat
    np.testing.assert_array_equal(rows[1], [cat, 0, 0, 0])


def test_cuts_and_pads_to_the_length():
    rows = hash_tokens(["a b c d", "", "é"], num_buckets=50, length=3)
    assert rows.shape == (3, 3)
    assert rows.min() >= 0
    assert rows.max() < 50
    np.testing.assert_array_equal((rows > 0).sum(axis=1), [3, 0, 1])


def test_one_text_does_not_change_another():
    alone = hash_tokens(["hello world"], num_buckets=100, length=5)
    together = hash_tokens(["other words", "hello world"], num_buckets=100, length=5)
    np.testing.assert_array_equal(alone[0], together[1])


def test_each_text_is_cut_by_itself():
    rows = cut_bytes(["abcdefg", b"hij", "", "kl", "é\n!"], 3)
    assert rows.dtype == np.int32
    assert [bytes(row.tolist()) for row in rows] == [b"abc", b"def", b"hij", "é\n".encode()]
    assert cut_bytes(["ab", "c"], 3).shape == (0, 3)


def test_one_text_does_not_move_the_rows_of_another():
    before = cut_bytes(["abcd", "efghi"], 2)
    np.testing.assert_array_equal(cut_bytes(["abcdefg", "efghi"], 2)[-2:], before[-2:])
    np.testing.assert_array_equal(cut_bytes(["efghi"], 2), before[-2:])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: hash_tokens(["a"], num_buckets=1, length=3), "num_buckets"),
        (lambda: hash_tokens(["a"], num_buckets=10, length=0), "length"),
        (lambda: hash_tokens("one text", num_buckets=10, length=3), "single text"),
        (lambda: cut_bytes(["a"], 2.5), "length"),
        (lambda: cut_bytes(b"ab", 1), "single text"),
    ],
)
def test_refusals(call, match):
    with pytest.raises(ValueError, match=match):
        call()
