"""Lists and pages: what the papers print beside what was measured."""

import math
import shutil

import pytest

from papers import figures, pages, records
from papers.catalogue import cells, tables
from papers.computed import shown
from papers.records import Measured


def test_the_list_has_what_is_recorded_and_what_is_here(results, small, tmp_path):
    records.write(tmp_path / "kept/paper.json", records.collect(results, cells(["paper.T1"])))
    shutil.rmtree(results / "paper/T1/a/3")
    assert "paper.T1 4 4 2 a table" in " ".join(small("list")[1].split())
    said = small("list", "paper")[1]
    assert "50.0; recorded 61.50 ± 0.50 (2), 0.5 min each; here 61.50 ± 0.50 (2)" in said
    assert "not run: It would cost an hour." in said and "the paper quotes it" in said
    assert "'paper.T" in small("run", "paper.T")[1]


def test_the_pages_have_the_figures_of_the_records(results, small, tmp_path):
    shutil.rmtree(results / "paper/T2/fine")
    assert small("report", f"--out={tmp_path / 'out'}")[0] == 0
    page = (tmp_path / "out/p/page.md").read_text()
    assert page.startswith("# A page\n\nBy hand.\n\n<!--") and "Old." not in page
    for text in (
        "| **Row A: paper** | 50.00 ± 0.50 | NC |",
        "| &emsp;here | 61.50 ± 0.50 (2) | ",
        "| **Row C: quoted** | 1.00 | 2.00 |",
        "| **Laplace: paper** |  | 0.80 |",
        "&emsp;L1 distance | ",
        "![A paper, a table](../papers/figures/paper.T1.png)",
        "Row A: All of it.",
        "Not run: Row B at 2, Row B at 3. It would cost an hour.",
        "A note.",
        "Trainings: 4; 0.5 minutes each; commits: abc; steps lost in crashes, which stay counted: 20.",
        "Not measured yet: Fine-tuned at -, The same at -.",
    ):
        assert text in page
    # They can be made again without the results.
    shutil.copytree(tmp_path / "out/papers/records", tmp_path / "kept")
    shutil.rmtree(results)
    assert small("report", f"--out={tmp_path / 'again'}")[0] == 0
    assert (tmp_path / "again/p/page.md").read_text() == page


def test_results_take_the_place_of_records_of_their_seeds(results, small, tmp_path):
    found = records.collect(results, cells(["paper.T1.a.2"]))
    poor = {name: records.Record(r.flags, {1: {**r.seeds[1], "test_accuracy": 0.1}}) for name, r in
            found.items()}  # fmt: skip
    records.write(tmp_path / "kept/paper.json", poor)
    small("report")
    assert "61.50 ± 0.50 (2)" in (results / "pages/p/page.md").read_text()


@pytest.mark.parametrize(
    ("epsilon", "said"),
    [(2.00001, "2.001"), (50.5, "(51)"), (1.2e5, "(120,000)"), (math.inf, "infinite")],
)
def test_epsilons_of_a_table_are_short_and_not_too_small(epsilon, said):
    assert pages._epsilon(epsilon) == said


@pytest.mark.parametrize(
    "name",
    ["si_dpsgd.F1", "dropout.F1_digits", "encoding.F5", "dropout.F2_clip", "encoding.F2_mnist",
     "dropout.F1_sigma_mnist", "encoding.F1", "audits.digits"],
)  # fmt: skip
def test_every_kind_of_figure_is_drawn(name, tmp_path):
    recorded = records.read()
    (table,) = [table for table in tables() if table.name == name]
    found = {cell.name: shown(cell, recorded) for cell in table.cells}
    figures.draw(table, found, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000


def test_a_point_that_one_curve_lacks_is_left_out():
    (table,) = [table for table in tables() if table.name == "encoding.F5"]
    curves = ([[1.0, 0.5], [2.0, 0.6], [3.0, 0.7]], [[1.0, 0.52], [3.0, 0.72]])
    known = {table.cells[0].name: Measured(tuple({"curve": curve} for curve in curves))}
    (axes,) = figures._curves(table, known).axes
    (line, *_) = axes.containers[0].lines
    assert list(line.get_xdata()) == [1.0, 3.0] and list(line.get_ydata()) == [51.0, 71.0]
