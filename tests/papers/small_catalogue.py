"""Catalogues of a few cells that train in a second, and their training in this process."""

from tfdp.papers import running

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

STARTS = """
paper = "A paper"
[[tables]]
name = "T2"
title = "fine-tuning"
columns = ["-"]
flags = "--model=linear --sampling=cyclic --batch_size=479 --steps=3"
[[tables.rows]]
name = "fine"
label = "Fine-tuned"
flags = "--mechanism=dpsgd --noise_multiplier=4"
needs = "paper.T2.public.-"
seeds = 1
[[tables.rows]]
name = "public"
label = "Public"
flags = "--mechanism=none"
seeds = 1
[[tables.rows]]
name = "same"
label = "The same"
same_as = "paper.T2.fine"
"""


def train_here(monkeypatch, fail=()):
    """Cells are trained in this process in place of processes of their own."""

    class Ended:
        def __init__(self, code):
            self.returncode = code

        def poll(self):
            return self.returncode

    def start(cell, seeds, results, data_dir, jobs):
        log = results / cell.folder / "log.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("It failed.\n" if cell.name in fail else "")
        if cell.name not in fail:
            running.train(cell, seeds, results, data_dir)
        return running._Running(Ended(int(cell.name in fail)), cell, seeds, 0.0, log)

    monkeypatch.setattr(running, "_start", start)
