"""A pytest plugin that runs Keras' own test files with private models.

`python -m tests.keras_suite` runs pytest with it. Each case is compared with `expected.toml`: a case
that is listed has to fail with the message that is expected, and every other case has to pass.
"""

import fnmatch
import json
from unittest import mock

import keras
import pytest

from tests.keras_suite import absent, expected
from tests.keras_suite.private import private_models
from tfdp import account


def pytest_addoption(parser):
    group = parser.getgroup("private models")
    group.addoption(
        "--plain", action="store_true", help="plain models, and no list of expectations"
    )
    group.addoption("--unlisted", action="store_true", help="private models, without the list")
    group.addoption("--short", action="store_true", help="only the cases of the short form")
    group.addoption("--whole", action="store_true", help="refuse a list with names that are gone")
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
    unlisted = config.getoption("plain") or config.getoption("unlisted")
    config.stash[_LIST] = expected.Expectations() if unlisted else expected.load()


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
    listed = config.stash[_LIST]
    if config.getoption("short"):
        kept = [i for i in items if any(fnmatch.fnmatchcase(i.nodeid, s) for s in listed.short)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    elif config.getoption("whole") and listed.keras == keras.__version__:
        stale = listed.unused([item.nodeid for item in items])
        if stale:
            raise pytest.UsageError(f"The list names cases that Keras does not have: {stale}")
    for item in items:
        item.stash[_ENTRY] = listed.entry(item.nodeid)


def pytest_runtest_logreport(report):
    """Notes what became of a case as soon as it is known."""
    if _results is None or (report.when != "call" and report.outcome == "passed"):
        return
    line = {"case": report.nodeid, "outcome": report.outcome}
    line["expected"] = getattr(report, "wasxfail", None)
    line["error"] = dict(report.user_properties).get("error")
    with open(_results, "a") as file:
        file.write(json.dumps(line) + "\n")


@pytest.fixture(autouse=True)
def forgetful():
    """Forgets the weights of earlier cases: Keras' tests make equal weights in each of them."""
    with mock.patch.object(account, "_TRAINED_HERE", {}):
        yield


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.excinfo is not None:
        report.user_properties.append(("error", _message(call.excinfo)))
        if absent.is_why(call.excinfo.value):
            report.outcome = "skipped"
            report.longrepr = (str(item.path), None, f"Skipped: {call.excinfo.value}")
    if call.when != "call" or report.skipped:
        return report
    error = None if call.excinfo is None else _message(call.excinfo)
    outcome, why = expected.verdict(item.stash[_ENTRY], report.outcome, error)
    if outcome == "expected":
        report.outcome, report.wasxfail = "skipped", why
    elif outcome != report.outcome:
        report.outcome, report.longrepr = outcome, why
    elif why:
        report.sections.append(("the list of expectations", why))
    return report


def _message(excinfo) -> str:
    return f"{excinfo.typename}: {excinfo.value}"
