"""Tested versions are accepted, others are refused or named, and so is a missing name."""

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


def test_newer_versions_give_a_warning():
    with pytest.warns(UserWarning, match="keras 3.16.0.dev20260101"):
        versions.check("keras", "3.16.0.dev20260101")


def test_a_missing_name_is_named():
    for kind in (ImportError, AttributeError, KeyError):
        with pytest.raises(ImportError, match="gone"), versions.borrowing("a rule"):
            raise kind("gone")
    with pytest.raises(ZeroDivisionError), versions.borrowing("a rule"):
        raise ZeroDivisionError
