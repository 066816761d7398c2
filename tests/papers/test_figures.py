"""The figures of tables: no two curves of one panel look alike."""

import dataclasses
import math

import pytest
from matplotlib.figure import Figure

from papers import figures
from papers.catalogue import cells, tables
from papers.records import Guarantee, Measured, Training

SOME = Guarantee(1.0, 1e-5, "zero_out")
ONE = Measured((Training(0.6, 1, 1, 1, 1.0, SOME, SOME, 1.0),))


def with_curves(*curves):
    """What trainings with these curves show."""
    one = ONE.trainings[0]
    return Measured(tuple(dataclasses.replace(one, curve=curve) for curve in curves))


@pytest.fixture
def panels(tmp_path, monkeypatch):
    """A function that draws a table and returns the visible axes."""
    seen = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: seen.append(self) or save(self, *a, **k)
    )

    def draw(table, found):
        assert figures.draw(table, found, tmp_path / "figure.png")
        assert (tmp_path / "figure.png").stat().st_size > 5000
        return [axes for axes in seen.pop().axes if axes.get_visible()]

    return draw


def lines(axes):
    """The lines with error bars, and whether they have some."""
    return [(container.lines[0], container.has_yerr) for container in axes.containers]


@pytest.fixture
def curves():
    """A table of curves with more of them than there are colours, all measured."""
    (table,) = [table for table in tables() if table.name == "si_dpsgd.F1"]
    one = with_curves(tuple((float(epoch), 0.5 + epoch / 100) for epoch in range(1, 11)))
    found = {cell.name: None if cell.absent else one for cell in table.cells}
    assert sum(m is not None for m in found.values()) > len(figures.COLOURS)
    return table, found


def test_many_curves_have_a_panel_for_each_row(curves, panels):
    table, found = curves
    drawn = panels(table, found)
    assert [axes.get_title() for axes in drawn] == [row.label for row in table.rows]
    for axes in drawn:
        styles = {(line.get_color(), line.get_marker()) for line, _ in lines(axes)}
        assert len(styles) == len(lines(axes)) > 3
        assert not any(bars for _, bars in lines(axes))  # a single seed has no error
    assert len(panels(dataclasses.replace(table, rows=table.rows[:1]), found)) == 1


def test_a_point_that_one_curve_lacks_is_left_out(curves, panels):
    table, found = curves
    (cell,) = cells(["si_dpsgd.F1.layer.1"])
    two = with_curves(((1.0, 0.5), (2.0, 0.6), (3.0, 0.7)), ((1.0, 0.52), (3.0, 0.72)))
    ((line, _),) = (
        each for axes in panels(table, found | {cell.name: two}) for each in lines(axes) if each[1]
    )
    assert list(line.get_xdata()) == [1.0, 3.0] and list(line.get_ydata()) == [51.0, 71.0]


def test_a_cell_that_was_not_measured_interrupts_its_line(panels):
    (table,) = [table for table in tables() if table.name == "si_dpsgd.T4"]
    found = {cell.name: ONE if cell.seeds else None for cell in table.cells}
    drawn = panels(table, found | {"si_dpsgd.T4.dpsgd_lenet5.0.5": None})
    titles = [axes.get_title() for axes in drawn]
    assert titles == [row.label for row in table.rows if not row.quoted]
    # All lines have the same accuracy, and yet the axis has a range to judge it by.
    assert all(high - low >= 4.999 for low, high in (axes.get_ylim() for axes in drawn))
    ((line, _),) = lines(drawn[titles.index("DPSGD LeNet-5")])
    assert [math.isnan(y) for y in line.get_ydata()] == [False] * 3 + [True] + [False] * 3
