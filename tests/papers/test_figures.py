"""The figures of tables: no two curves of one panel look alike."""

import dataclasses

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
