"""Catalogues of a few cells that train in a second."""

import contextlib
import pathlib
import tempfile

import pytest

from tfdp.papers import catalogue

CATALOGUE = """
paper = "A paper"
[[tables]]
name = "T1"
title = "a table"
axis = "steps"
columns = ["2", "3"]
flags = "--mechanism=dpsgd --model=linear --sampling=cyclic --batch_size=479 --noise_multiplier=4"
column_flags = {"2" = "--steps=2", "3" = "--steps=3"}
note = "A note."
[[tables.rows]]
name = "a"
label = "Row A"
paper = [50.0, "NC"]
paper_error = [0.5, ""]
seeds = 2
differs = "All of it."
[[tables.rows]]
name = "b"
label = "Row B"
paper = [51.0, 52.0]
absent = "It would cost an hour."
[[tables.rows]]
name = "c"
label = "Row C"
paper = [1.0, 2.0]
quoted = true
"""
# Without privacy, since private training refuses weights that were trained on the same data.
STARTS = """
[[tables]]
name = "T2"
title = "fine-tuning"
columns = ["-"]
flags = "--mechanism=none --model=linear --sampling=cyclic --batch_size=479 --steps=3"
[[tables.rows]]
name = "fine"
label = "Fine-tuned"
flags = "--learning_rate=0.3"
needs = "paper.T2.public.-"
seeds = 2
[[tables.rows]]
name = "public"
label = "Public"
seeds = 1
[[tables.rows]]
name = "same"
label = "The same"
same_as = "paper.T2.fine"
"""


@contextlib.contextmanager
def use(text):
    """Context in which a text is the whole catalogue, of a paper that is called `paper`."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        pathlib.Path(folder, "paper.toml").write_text(text)
        patch.setattr(catalogue, "_FOLDER", pathlib.Path(folder))
        catalogue.tables.cache_clear()
        try:
            yield
        finally:
            catalogue.tables.cache_clear()
