"""The catalogue of what the papers print, and the commands that its cells stand for."""

import pytest

from papers import catalogue, records
from papers.catalogue import cells, tables
from tests.papers.conftest import CATALOGUE

CELLS = cells()


def test_names_are_unique():
    names = [cell.name for table in tables() for cell in table.cells]
    assert len({*names}) == len(names) == len(CELLS)
    assert len({table.name for table in tables()}) == len(tables())
    assert not any(cell.seeds for cell in CELLS if cell.quoted)


def test_the_cells_of_a_table_are_different_trainings_with_its_epsilons():
    for table in tables():
        trained = [cell for cell in table.cells if cell.seeds and cell.source == cell.name]
        for cell in trained:
            if cell.column == "inf":
                assert cell.settings["mechanism"] == "none", cell.name
            elif table.guarantee:  # the column says which epsilon the training is calibrated to
                assert f"--epsilon={cell.column}" in cell.flags, cell.name
                claimed = cell.settings.get("guarantee") == "claimed"
                assert claimed == (table.guarantee == "claimed"), cell.name
        own = [{*cell.flags} for cell in trained if cell.column != "inf"]
        assert all(own.count(flags) == 1 for flags in own), table.name


def test_the_arguments_of_computed_cells_agree_with_their_columns():
    of_column = {
        "noise_distance": "divergence",
        "noise_by_epsilon": "epsilon",
        "gradient_histogram": "epochs",
    }
    for cell in CELLS:
        if cell.computed in of_column:
            assert cell.settings[of_column[cell.computed]] == float(cell.column), cell.name
            assert cell.seeds == (() if cell.absent else (1,)), cell.name


def test_every_mechanism_is_audited():
    from tfdp.accounting import mechanism_names

    found = {cell.settings["mechanism"] for cell in cells(["audits"])}
    assert found == {*mechanism_names()} - {"none"}


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("si_dpsgd.T4.si_bn_lenet5", [99.20, 99.17, 99.17, 99.15, 99.18, 99.14, 99.12, 98.58]),
        ("batch_norm.T5.bn", [99.20, 98.68, 98.18, 97.61, 96.83, 90.68, 88.15]),
        ("dropout.T1_mnist.zcdp", [97.18, 94.70, 92.05]),
    ],
)
def test_the_figures_are_those_that_the_papers_print(name, figures):
    assert [cell.printed for cell in cells([name])] == figures


def test_rows_with_the_trainings_of_others():
    for cell in CELLS:
        if cell.source != cell.name and cell.seeds:
            (other,) = cells([cell.source])
            assert cell.flags == other.flags
            assert records.place(".", cell) == records.place(".", other)
    (ours,) = cells(["batch_norm.T5.ln.0.5"])
    assert ours.source == "si_dpsgd.T4.dpsgd_ln_lenet5.0.5" and ours.printed == 94.81
    other, ours = cells(["dropout.F2_clip.zcdp.2", "dropout.F2_clip.zcdp.3"])  # one cell of a row
    assert other.source == other.name and ours.source == "dropout.F2_epochs.zcdp.50"
    assert {*ours.flags} == {f.replace("norm_clip=2", "norm_clip=3") for f in other.flags}


def test_names_of_tables_rows_and_cells():
    assert len(cells(["dropout.T1_digits"])) == 12
    assert [c.column for c in cells(["dropout.T1_digits.ac"])] == ["10", "1", "0.5"]
    assert [c.column for c in cells(["dropout.T1_digits.ac.0.5"])] == ["0.5"]
    assert len(cells(["dropout.T1_digits.ac", "dropout.T1_digits.ac.1"])) == 3
    with pytest.raises(ValueError, match=r"'si_dpsgd\.T4'"):
        cells(["si_dpsg.T4"])
    with pytest.raises(ValueError, match="called"):  # 0.5, 0.1, 0.05 and 0.025 begin with it
        cells(["si_dpsgd.T4.dpsgd_lenet5.0"])


def test_later_flags_replace_earlier_ones(use):
    use("""
        paper = "A paper"
        [[tables]]
        name = "T1"
        title = "a table"
        columns = ["1"]
        flags = {a = 1, b = 2, encode = true}
        column_flags = {"1" = {b = "", c = 0.5}}
        [[tables.rows]]
        name = "r"
        label = "R"
        flags = {a = 3, b = 5, d = true}
        cells = {"1" = {flags = {encode = false}}}
        """)
    (cell,) = cells()
    assert cell.flags == ("--a=3", "--noencode", "--d", "--c=0.5")


@pytest.mark.parametrize(
    "row", ['same_as = "paper.T2.same"', 'flags = {initial_weights = "paper.T2.other.-"}']
)
def test_trainings_are_taken_from_cells_that_have_some(use, row):
    use(f'{CATALOGUE}[[tables.rows]]\nname = "last"\nlabel = "Last"\n{row}\n')
    with pytest.raises(ValueError, match="not a cell with its own"):
        catalogue.tables()
