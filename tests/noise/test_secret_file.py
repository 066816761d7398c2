"""A secret file belongs to its owner alone, is never overwritten, and is read only once."""

import stat

import numpy as np
import pytest

from tfdp.noise.secret_file import read_once, write_secret

ARRAYS = {"a": np.arange(3.0), "b": np.frombuffer(b"text", np.uint8)}


def test_it_is_read_once(tmp_path):
    path = tmp_path / "secret"
    write_secret(path, ARRAYS)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with read_once(path) as arrays:
        assert not path.exists()  # nobody else can read it again
        for name, value in ARRAYS.items():
            np.testing.assert_array_equal(arrays[name], value)
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError), read_once(path):
        pass


def test_a_block_that_fails_puts_it_back(tmp_path):
    path = tmp_path / "secret"
    write_secret(path, ARRAYS)
    with pytest.raises(RuntimeError, match="no use"), read_once(path):
        raise RuntimeError("no use")
    assert [p.name for p in tmp_path.iterdir()] == ["secret"]
    with read_once(path) as arrays:
        assert arrays.keys() == ARRAYS.keys()


@pytest.mark.parametrize("content", [b"text", b"PK\x03\x04 and so on"])
def test_another_file_is_refused_and_kept(tmp_path, content):
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="saved arrays"), read_once(path):
        pass
    assert path.read_bytes() == content
