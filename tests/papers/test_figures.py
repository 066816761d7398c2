"""The figures of tables: no two curves of one panel look alike."""

import dataclasses
import math

import pytest
from PIL import Image

from tfdp.papers import figures
from tfdp.papers.catalogue import cells, tables
from tfdp.papers.records import Measured


@pytest.fixture
def curves():
    """A table of curves with more of them than there are colours, all measured."""
    (table,) = [table for table in tables() if table.name == "si_dpsgd.F1"]
    curve = tuple((float(epoch), 50.0 + epoch) for epoch in range(1, 11))
    one = Measured((60.0,), 1.0, 1.0, 1e-5, 1.0, ("0",), curves=(curve,))
    found = {cell.name: None if cell.absent else one for cell in table.cells}
    assert sum(m is not None for m in found.values()) > len(figures.COLOURS)
    return table, found


def test_many_curves_have_a_panel_for_each_row(curves, tmp_path, monkeypatch):
    table, found = curves
    drawn = []
    draw_series = figures._draw_series

    def watched(axes, table, row, series):
        draw_series(axes, table, row, series)
        lines = [container.lines[0] for container in axes.containers]
        drawn.append((row, {(line.get_color(), line.get_marker()) for line in lines}, len(series)))

    monkeypatch.setattr(figures, "_draw_series", watched)
    assert figures.draw(table, found, tmp_path / "many.png")
    assert [row for row, *_ in drawn] == [row.label for row in table.rows]
    assert all(len(styles) == count > 3 for _, styles, count in drawn)
    few = dataclasses.replace(table, rows=table.rows[:1])
    assert figures.draw(few, found, tmp_path / "few.png")
    assert drawn[-1][0] is None
    heights = [Image.open(tmp_path / f"{name}.png").height for name in ("many", "few")]
    assert heights[0] > 1.5 * heights[1]


def test_a_single_seed_has_no_error_bars(curves, tmp_path, monkeypatch):
    table, found = curves
    seen = []
    draw_series = figures._draw_series

    def watched(axes, *others):
        draw_series(axes, *others)
        seen.extend(container.has_yerr for container in axes.containers)

    monkeypatch.setattr(figures, "_draw_series", watched)
    figures.draw(table, found, tmp_path / "one.png")
    assert seen and not any(seen)
    (cell,) = cells(["si_dpsgd.F1.layer.1"])
    two = dataclasses.replace(
        found[cell.name],
        accuracies=(60.0, 62.0),
        curves=(((1.0, 50.0), (2.0, 60.0)), ((1.0, 52.0), (2.0, 62.0))),
    )
    figures.draw(table, found | {cell.name: two}, tmp_path / "two.png")
    assert sum(seen) == 1


def test_a_point_that_one_curve_lacks_is_left_out(curves):
    table, found = curves
    (cell,) = cells(["si_dpsgd.F1.layer.1"])
    two = dataclasses.replace(
        found[cell.name],
        curves=(((1.0, 50.0), (2.0, 60.0), (3.0, 70.0)), ((1.0, 52.0), (3.0, 72.0))),
    )
    drawn = {s.label: s for s in figures._curves(table, found | {cell.name: two})}
    one = drawn["LN-LeNet-5, 1"]
    assert list(one.x) == [1.0, 3.0] and list(one.y) == [51.0, 71.0]


def drawn_of(table, found, path, monkeypatch):
    """Draws a table by column, and returns its axes."""
    kept = []
    draw_series = figures._draw_series

    def watched(axes, *others):
        kept.append(axes)
        draw_series(axes, *others)

    monkeypatch.setattr(figures, "_draw_series", watched)
    assert figures.draw(table, found, path)
    return kept


def test_many_rows_with_the_papers_figures_have_a_panel_each(tmp_path, monkeypatch):
    (table,) = [table for table in tables() if table.name == "si_dpsgd.T4"]
    one = Measured((60.0,), 1.0, 1.0, 1e-5, 1.0, ("0",))
    found = {cell.name: one if cell.seeds else None for cell in table.cells}
    (hole,) = cells(["si_dpsgd.T4.dpsgd_lenet5.0.5"])
    panels = drawn_of(table, found | {hole.name: None}, tmp_path / "rows.png", monkeypatch)
    titles = [axes.get_title() for axes in panels]
    assert titles == [row.label for row in table.rows if not row.quoted] and len(titles) == 7
    # All lines have the same accuracy, and yet the axis has a range to judge it by.
    assert all(high - low >= 4.999 for low, high in (axes.get_ylim() for axes in panels))
    # No line goes across a cell that was not measured.
    holed = panels[titles.index("DPSGD LeNet-5")].containers[0].lines[0].get_ydata()
    whole = panels[titles.index("DPSGD LN-LeNet-5")].containers[0].lines[0].get_ydata()
    assert [math.isnan(y) for y in holed] == [False] * 3 + [True] + [False] * 3
    assert not any(map(math.isnan, whole))


def test_epsilons_that_came_out_have_round_ticks_with_room(tmp_path, monkeypatch):
    (table,) = [table for table in tables() if table.name == "encoding.F2_mnist"]
    assert table.by
    epsilons = iter([0.6809, 0.9, 0.91, 1.181, 1.7138, 3.1] * 10)
    found = {
        cell.name: Measured((60.0,), next(epsilons), 1.0, 1e-5, 1.0, ("0",)) if cell.seeds else None
        for cell in table.cells
    }
    (axes,) = drawn_of(table, found, tmp_path / "ticks.png", monkeypatch)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2"]
    assert figures._round_ticks([0.03, 7.0]) == pytest.approx([0.05, 0.1, 0.2, 0.5, 1, 2, 5])
