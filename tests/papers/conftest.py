"""A catalogue of a few cells in place of that of the papers."""

import pytest

from tests.papers.small_catalogue import CATALOGUE
from tfdp.papers import catalogue


@pytest.fixture
def small(tmp_path, monkeypatch):
    (tmp_path / "paper.toml").write_text(CATALOGUE)
    monkeypatch.setattr(catalogue, "_FOLDER", tmp_path)
    catalogue.tables.cache_clear()
    yield tmp_path
    catalogue.tables.cache_clear()
