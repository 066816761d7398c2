"""A missing name of Keras or TensorFlow is named."""

import pytest

from tfdp._compat import versions


def test_a_missing_name_is_named():
    for kind in (ImportError, AttributeError, KeyError):
        with pytest.raises(ImportError, match="gone"), versions.borrowing("a rule"):
            raise kind("gone")
    with pytest.raises(ZeroDivisionError), versions.borrowing("a rule"):
        raise ZeroDivisionError
