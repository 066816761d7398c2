"""Keras' own tests pass with private models, except for the cases that are listed with a reason."""

import sys
import unittest

import keras
import pytest

from tests.keras_suite import absent, counts, expected, running

with_tests = pytest.mark.skipif(not running.has_tests(), reason=running.MISSING)


@with_tests
def test_a_short_form_of_keras_own_tests():
    done = running.run(["--short"])
    assert done.code == 0, done.output
    assert done.counts.total()["pass"] > 20


@pytest.mark.slow
@with_tests
def test_all_of_keras_own_tests():
    done = running.run()
    assert done.code == 0, done.output
    if keras.__version__ == expected.load().keras:
        assert counts.written() == done.counts.table()


def test_the_list_has_a_reason_and_a_message_for_each_entry():
    listed = expected.load()
    assert listed.entries
    for entry in listed.entries:
        assert entry.kind in expected.KINDS
        assert entry.reason.endswith(".") and len(entry.reason.split()) > 5, entry
        assert entry.message and entry.cases


# -- the plugin notices changes ----------------------------------------------------------------------

_ENTRY = expected.Entry(
    "refusal", "There is a reason.", "a known .*ssage", ("a.py::one", "a.py::t*")
)


@pytest.mark.parametrize(
    ("entry", "outcome", "error", "verdict"),
    [
        (None, "passed", None, "passed"),
        (None, "failed", "anything", "failed"),
        (_ENTRY, "passed", None, "failed"),
        (_ENTRY, "failed", "this is a known message.", "expected"),
        (_ENTRY, "failed", "another message", "failed"),
    ],
)
def test_a_case_that_changes_is_red(entry, outcome, error, verdict):
    found, why = expected.verdict(entry, outcome, error)
    assert found == verdict
    assert bool(why) == (entry is not None)


def test_names_that_are_gone_are_stale_for_the_version_of_the_list():
    listed = expected.Expectations("1.0", (_ENTRY,))
    assert listed.unused(["a.py::two"]) == ["a.py::one"]
    assert listed.unused(["a.py::one", "a.py::three"]) == []


def test_an_entry_may_be_for_earlier_versions_only(tmp_path, monkeypatch):
    text = 'keras = "3.15.1"\nshort = []\n[[entry]]\nkind = "difference"\nreason = "Because."\n'
    path = tmp_path / "listed.toml"
    path.write_text(text + 'before = "3.14"\nmessage = "x"\ncases = ["a.py::one"]\n')
    monkeypatch.setattr(expected, "PATH", path)
    assert expected.load("3.13.2").entry("a.py::one") is not None
    assert expected.load("3.14.0").entry("a.py::one") is None
    assert expected.load("3.9").entry("a.py::one") is not None


def test_the_page_counts_the_cases_of_the_list():
    listed = expected.load()
    if keras.__version__ != listed.keras:
        pytest.skip("The page has the counts of another version of Keras.")
    header, _, *rows = counts.written()
    names = [name.strip() for name in header.strip("|").split("|")]
    total = dict(zip(names, rows[-1].strip("|").split("|"), strict=True))
    for kind in expected.KINDS:
        cases = [case for entry in listed.entries if entry.kind == kind for case in entry.cases]
        assert not any("*" in case for case in cases)
        assert int(total[kind]) == len(cases)
    assert int(total["unexpected"]) == int(total["defect"]) == 0


def test_two_entries_for_one_case_are_refused():
    listed = expected.Expectations("1.0", (_ENTRY, _ENTRY))
    with pytest.raises(ValueError, match="Several entries"):
        listed.entry("a.py::two")


def test_the_table_counts_each_case_once():
    lines = [
        {"case": "a_test.py::T::one", "outcome": "passed", "expected": None},
        {"case": "a_test.py::T::two", "outcome": "skipped", "expected": "refusal: No."},
        {"case": "a_test.py::T::three", "outcome": "skipped", "expected": None},
        {"case": "b_test.py::T::four", "outcome": "failed", "expected": None},
    ]
    *_, first, second, total = counts.Counts.of("1.0", lines).table()
    assert first == "| a_test.py | 2 | 1 | 1 | 0 | 0 | 0 | 0 |"
    assert second == "| b_test.py | 1 | 0 | 0 | 0 | 0 | 0 | 1 |"
    assert total == "| all, Keras 1.0 | 3 | 1 | 1 | 0 | 0 | 0 | 1 |"


@pytest.mark.parametrize(
    ("error", "absent_package"),
    [
        (ModuleNotFoundError("No module named 'jax.numpy'"), True),
        (ImportError("OrbaxCheckpoint requires the 'orbax-checkpoint' package."), True),
        (ImportError("cannot import name 'nothing' from 'keras'"), False),
        (ValueError("jax"), False),
    ],
)
def test_cases_that_need_an_absent_package_are_skipped(monkeypatch, error, absent_package):
    monkeypatch.setattr(absent, "missing", lambda: {"jax", "orbax"})
    assert absent.is_why(error) == absent_package


def test_stand_ins_are_gone_after_the_import(monkeypatch):
    monkeypatch.setattr(absent, "missing", lambda: {"jax"})
    before = set(sys.modules)
    with absent.stand_ins("tensorflow"):
        import jax
        import jax.experimental.sparse as sparse
        from jax import numpy
    assert before >= set(sys.modules)
    for use in (lambda: numpy.ones(1), lambda: sparse.random_bcoo(1), lambda: jax.devices()):
        with pytest.raises(unittest.SkipTest, match="not installed"):
            use()
