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


def test_two_buckets_are_padding_and_word():
    np.testing.assert_array_equal(hash_tokens(["a b"], num_buckets=2, length=3), [[1, 1, 0]])


@pytest.mark.parametrize("num_buckets", [1, 0, float("nan")])
def test_refuses_too_few_buckets(num_buckets):
    with pytest.raises(ValueError, match="Expected num_buckets"):
        hash_tokens(["a"], num_buckets=num_buckets, length=3)


@pytest.mark.parametrize("length", [0, float("nan")])
def test_refuses_no_length(length):
    with pytest.raises(ValueError, match="Expected length"):
        hash_tokens(["a"], num_buckets=10, length=length)


@pytest.mark.parametrize("text", ["one text", b"one text"])
def test_refuses_a_single_text(text):
    with pytest.raises(ValueError, match="`texts`"):
        hash_tokens(text, num_buckets=10, length=3)


def test_each_text_is_cut_by_itself():
    rows = cut_bytes(["abcdefg", b"hij", "", "kl", "é\n!"], 3)
    assert rows.dtype == np.int32
    assert [bytes(row.tolist()) for row in rows] == [b"abc", b"def", b"hij", "é\n".encode()]


def test_one_text_does_not_move_the_rows_of_another():
    before = cut_bytes(["abcd", "efghi"], 2)
    np.testing.assert_array_equal(cut_bytes(["abcdefg", "efghi"], 2)[-2:], before[-2:])
    np.testing.assert_array_equal(cut_bytes(["efghi"], 2), before[-2:])


def test_texts_that_are_too_short_leave_no_rows():
    assert cut_bytes(["ab", "c"], 3).shape == (0, 3)


@pytest.mark.parametrize("length", [0, -1, 2.5, float("nan")])
def test_cut_bytes_refuses_lengths(length):
    with pytest.raises(ValueError, match="Expected length"):
        cut_bytes(["a"], length)


def test_cut_bytes_wants_several_texts():
    with pytest.raises(ValueError, match="a single text"):
        cut_bytes("ab", 1)
