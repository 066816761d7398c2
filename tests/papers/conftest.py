"""A small catalogue instead of the papers', and results for its cells."""

import shutil

import pytest

from tests.papers.small_catalogue import CATALOGUE, STARTS, use
from tfdp.experiments import __main__ as command


@pytest.fixture
def small(tmp_path, monkeypatch):
    """An empty folder; the catalogue of tables T1 and T2 is in use, and no records are known."""
    monkeypatch.setattr(command, "_PAGES", str(tmp_path / "none"))
    monkeypatch.setenv("COLUMNS", "120")
    with use(CATALOGUE + STARTS):
        yield tmp_path


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The results of all cells of both tables."""
    results = tmp_path_factory.mktemp("trained") / "results"
    with use(CATALOGUE + STARTS):
        for name, seeds in (
            ("paper.T1.a.2", "1,2"), ("paper.T1.a.3", "1,2"), ("paper.T2.public.-", "1"),
            ("paper.T2.fine.-", "1"),
        ):  # fmt: skip
            assert command.main(["train", name, f"--seeds={seeds}", f"--results={results}"]) == 0
    return results


@pytest.fixture
def results(small, trained):
    """A copy of these results, with the catalogue in use."""
    shutil.copytree(trained, small / "results")
    return small / "results"
