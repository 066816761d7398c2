"""A pytest plugin that runs Keras' own test files with private models.

`python -m tests.keras_suite` runs pytest with it. Each case is compared with `expected.toml`: a case
that is listed has to fail with the message that is expected, and every other case has to pass.
"""

import fnmatch

import keras
import pytest

from tests.keras_suite import absent, expected
from tests.keras_suite.private import private_models

_LIST = pytest.StashKey()
_ENTRY = pytest.StashKey()


def pytest_addoption(parser):
    group = parser.getgroup("private models")
    group.addoption("--plain", action="store_true", help="plain models, and no list")
    group.addoption("--short", action="store_true", help="only the cases of the short form")
    group.addoption("--whole", action="store_true", help="refuse a list with names that are gone")


def pytest_configure(config):
    for marker in ("requires_trainable_backend", "multi_device"):
        config.addinivalue_line("markers", f"{marker}: a marker of Keras")
    if config.getoption("plain"):
        config.stash[_LIST] = expected.Expectations()
        return
    config.stash[_LIST] = expected.load()
    private = private_models()
    private.__enter__()
    config.add_cleanup(lambda: private.__exit__(None, None, None))


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


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.excinfo is not None and absent.is_why(call.excinfo.value):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), None, f"Skipped: {call.excinfo.value}")
    if call.when != "call" or report.skipped:
        return report
    error = None if call.excinfo is None else f"{call.excinfo.typename}: {call.excinfo.value}"
    outcome, why = expected.verdict(item.stash[_ENTRY], report.outcome, error)
    if outcome == "expected":
        report.outcome, report.wasxfail = "skipped", why
    elif outcome != report.outcome:
        report.outcome, report.longrepr = outcome, why
    elif why:
        report.sections.append(("the list of expectations", why))
    return report
