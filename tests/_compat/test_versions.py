"""Supported versions are accepted, and the messages about other versions are right."""

import warnings

import pytest

from tfdp._compat import versions


def test_tested_versions_say_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for version in ("3.12.0", "3.15.0rc1", "3.13"):
            versions.check({"keras": version, "tensorflow": "2.21.0"})


@pytest.mark.parametrize(
    ("package", "version"),
    [("keras", "2.15.0"), ("keras", "3.9.2"), ("tensorflow", "2.17.1")],
)
def test_older_versions_are_refused(package, version):
    with pytest.raises(ImportError, match=version):
        versions.check({package: version})


def test_newer_versions_give_one_warning():
    with pytest.warns(UserWarning, match="3.16.0.dev20260101 and TensorFlow 2.22.0-rc0") as given:
        versions.check({"keras": "3.16.0.dev20260101", "tensorflow": "2.22.0-rc0"})
    assert len(given) == 1


def test_a_missing_name_is_named():
    for kind in (ImportError, AttributeError, KeyError):
        with pytest.raises(ImportError, match="gone"), versions.borrowing("a rule"):
            raise kind("gone")
    with pytest.raises(ZeroDivisionError), versions.borrowing("a rule"):
        raise ZeroDivisionError
