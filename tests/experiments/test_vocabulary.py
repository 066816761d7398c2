"""Ids are a fixed function of the text; files of public words are read whole and in order."""

import numpy as np
import pytest

from tfdp.experiments.vocabulary import hash_tokens, look_up_tokens, read_vectors


def written(path, text):
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


class TestHash:
    def test_known_values(self):
        # CRC-32 of "cat" is 0x9e5e43a8: the ids must never change, or saved models break.
        rows = hash_tokens(["Cat, cat!", "cat"], num_buckets=1001, length=4)
        cat = 1 + 0x9E5E43A8 % 1000
        assert rows.dtype == np.int32 and rows[0, 0] == rows[0, 2] == cat
        np.testing.assert_array_equal(rows[1], [cat, 0, 0, 0])

    def test_cuts_and_pads_to_the_length(self):
        rows = hash_tokens(["a b c d", "", "é"], num_buckets=50, length=3)
        assert rows.shape == (3, 3) and 0 <= rows.min() <= rows.max() < 50
        np.testing.assert_array_equal((rows > 0).sum(axis=1), [3, 0, 1])


class TestLookUp:
    def test_known_unknown_and_padding(self):
        rows = look_up_tokens(["The film, THE odd", "", "film"], ["film", "the"], length=4)
        np.testing.assert_array_equal(rows, [[3, 2, 1, 3], [0, 0, 0, 0], [2, 0, 0, 0]])
        assert rows.dtype == np.int32

    def test_one_text_does_not_change_another(self):
        alone = look_up_tokens(["a film"], ["film"], length=3)
        together = look_up_tokens(["other words", "a film"], ["film"], length=3)
        np.testing.assert_array_equal(alone[0], together[1])


class TestVectors:
    def test_words_and_numbers(self, tmp_path):
        path = written(tmp_path / "v.txt", "the 1 2 3\nFilm 4 5 6.5\nfilm 0 0 0\n. . 7 8 9\n")
        words, table = read_vectors(path)
        assert words == ("the", "film", ". .") and table.dtype == np.float32
        np.testing.assert_array_equal(table, [[1, 2, 3], [4, 5, 6.5], [7, 8, 9]])

    def test_the_first_line_of_word2vec(self, tmp_path):
        path = written(tmp_path / "v.txt", "2 3\nthe 1 2 3\nfilm 4 5 6\n")
        assert read_vectors(path)[0] == ("the", "film")

    @pytest.mark.parametrize(
        "text", ["", "the 1 2\nfilm 3\n", "the 1 2\nfilm 3 nan\n", "the\n", "the 1 two\n"]
    )
    def test_refusals(self, tmp_path, text):
        with pytest.raises(ValueError, match=r"v\.txt"):
            read_vectors(written(tmp_path / "v.txt", text))
