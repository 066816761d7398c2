"""Supported versions are accepted, and the messages about other versions are right."""

import configparser
import pathlib
import re
import warnings

import pytest

from tfdp._compat import versions

_SETUP = pathlib.Path(__file__).resolve().parents[2] / "setup.cfg"


def _pin(package):
    setup = configparser.ConfigParser()
    setup.read(_SETUP)
    lines = setup["options"]["install_requires"].split()
    (line,) = [line for line in lines if re.match(rf"{package}[<>=]", line)]
    return line


@pytest.mark.parametrize("package", versions.TESTED)
def test_the_installation_has_the_same_bounds(package):
    _, first, beyond = versions.TESTED[package]
    assert _pin(package) == f"{package}>={first[0]}.{first[1]},<{beyond[0]}.{beyond[1]}"
    assert f"'{_pin(package)}'" in versions.pins()


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
