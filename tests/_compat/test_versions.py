"""Supported versions are accepted, and the messages about other versions are right."""

import warnings

import pytest

from tfdp._compat import versions


def test_tested_versions_say_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for version in ("3.12.0", "3.15.0rc1", "3.13"):
            versions.check("keras", version)


@pytest.mark.parametrize(
    ("package", "version"),
    [("keras", "2.15.0"), ("keras", "3.9.2"), ("tensorflow", "2.17.1")],
)
def test_older_versions_are_refused(package, version):
    with pytest.raises(ImportError, match=version):
        versions.check(package, version)


@pytest.mark.parametrize(
    ("package", "version"),
    [("keras", "3.16.0.dev20260101"), ("keras", "4.0"), ("tensorflow", "2.22.0-rc0")],
)
def test_newer_versions_are_warned_of(package, version):
    with pytest.warns(UserWarning, match=version):
        versions.check(package, version)


def test_a_missing_attribute_is_named():
    class Layer:
        _present = None

    assert versions.borrowed(Layer(), "_present") is None
    with pytest.raises(ImportError, match="_gone"):
        versions.borrowed(Layer(), "_gone")


def test_a_missing_name_is_named():
    for kind in (ImportError, AttributeError, KeyError):
        with pytest.raises(ImportError, match="gone"), versions.borrowing("a rule"):
            raise kind("gone")
    with pytest.raises(ZeroDivisionError), versions.borrowing("a rule"):
        raise ZeroDivisionError
