"""A pytest plugin that runs Keras' own test files with private models.

`python -m tests.keras_suite` runs pytest with it. Each case is compared with `expected.toml`: a case that
is listed there has to fail with the message that is expected, and every other case has to pass.
"""

import json
import unittest

import keras
import pytest

from tests.keras_suite import absent, expected
from tests.keras_suite.private import private_models


def pytest_addoption(parser):
    group = parser.getgroup("private models")
    group.addoption(
        "--plain", action="store_true", help="plain models, and no list of expectations"
    )
    group.addoption("--unlisted", action="store_true", help="private models, without the list")
    group.addoption("--results", help="file that gets one line of JSON for each case")


def pytest_configure(config):
    global _results
    _results = config.getoption("results")
    for marker in ("requires_trainable_backend", "multi_device"):
        config.addinivalue_line("markers", f"{marker}: a marker of Keras")
    config.stash[_PRIVATE] = None
    if not config.getoption("plain"):
        config.stash[_PRIVATE] = private_models()
        config.stash[_PRIVATE].__enter__()
    listed = config.getoption("plain") or config.getoption("unlisted")
    config.stash[_LIST] = expected.Expectations() if listed else expected.load()


def pytest_unconfigure(config):
    if config.stash[_PRIVATE] is not None:
        config.stash[_PRIVATE].__exit__(None, None, None)


_PRIVATE = pytest.StashKey()
_LIST = pytest.StashKey()
_ENTRY = pytest.StashKey()
_results = None  # the file of `--results`


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    if not isinstance(collector, pytest.Module):
        return (yield)
    with absent.stand_ins(keras.backend.backend()):
        return (yield)


def pytest_collection_modifyitems(config, items):
    for item in items:
        item.stash[_ENTRY] = config.stash[_LIST].entry(item.nodeid)


def pytest_runtest_logreport(report):
    """Notes what became of a case as soon as it is known."""
    if _results is None or (report.when != "call" and report.outcome == "passed"):
        return
    line = {"case": report.nodeid, "outcome": report.outcome}
    line["expected"] = getattr(report, "wasxfail", None)
    line["error"] = dict(report.user_properties).get("error")
    with open(_results, "a") as file:
        file.write(json.dumps(line) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in absent.missing():
            raise unittest.SkipTest(str(error)) from error
        raise


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.excinfo is not None:
        report.user_properties.append(("error", f"{call.excinfo.typename}: {call.excinfo.value}"))
    entry = item.stash.get(_ENTRY, None)
    if call.when != "call" or entry is None or report.skipped:
        return report
    if report.passed:
        report.outcome = "failed"
        report.longrepr = (
            f"This case passes, and the list expects that it fails ({entry.kind}: {entry.reason}). "
            "Take it out of tests/keras_suite/expected.toml."
        )
    elif entry.matches(str(call.excinfo.value)):
        report.outcome = "skipped"
        report.wasxfail = f"{entry.kind}: {entry.reason}"
    else:
        report.sections.append(
            ("expected", f"The list expects another message: {entry.message!r} ({entry.reason})")
        )
    return report
