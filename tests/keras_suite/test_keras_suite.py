"""Keras' own tests pass with private models, except for the cases that are listed with a reason."""

import pytest

from tests.keras_suite import running

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
