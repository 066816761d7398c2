"""Keras' own tests pass with private models, except for the cases that are listed with a reason."""

import pytest

from tests.keras_suite import expected, running

with_tests = pytest.mark.skipif(not running.has_tests(), reason=running.MISSING)


@with_tests
def test_a_short_form_of_keras_own_tests():
    done = running.run(["--short"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@with_tests
def test_all_of_keras_own_tests():
    done = running.run(capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


ENTRY = expected.Entry("refusal", "There is a reason.", "a known .*ssage", ("a.py::*",))


@pytest.mark.parametrize(
    ("entry", "outcome", "error", "verdict"),
    [
        (None, "passed", None, "passed"),
        (None, "failed", "anything", "failed"),
        (ENTRY, "passed", None, "failed"),
        (ENTRY, "failed", "this is a known message.", "expected"),
        (ENTRY, "failed", "another message", "failed"),
    ],
)
def test_a_case_that_changes_is_red(entry, outcome, error, verdict):
    assert expected.verdict(entry, outcome, error)[0] == verdict
