"""The catalogue of what the papers print, and the commands that its cells stand for."""

import json
import shlex
from pathlib import Path

import pytest
from absl import flags

from tests.papers.small_catalogue import CATALOGUE, STARTS, use
from tfdp.experiments import command
from tfdp.papers import catalogue, computed
from tfdp.papers.catalogue import UnknownName, cells, merged, tables

ROOT = Path(__file__).resolve().parents[2]
CELLS = [cell for table in tables() for cell in table.cells]
TRAINED = [cell for cell in CELLS if cell.seeds and not cell.computed]


def test_names_are_unique():
    assert len({cell.name for cell in CELLS}) == len(CELLS)
    assert len({table.name for table in tables()}) == len(tables())
    assert not any(cell.seeds for cell in CELLS if cell.quoted)


def _effective(experiment):
    """The settings of a training; where it leaves one open, the default of its optimizer."""
    settings = {**experiment.recorded()}
    if settings["mechanism"] == "discrete_sgd":
        for name in ("encode", "denoise"):  # both are True by default
            settings[name] = settings[name] is not False
    return json.dumps(settings, sort_keys=True, default=str)


@pytest.mark.parametrize(
    "table", [t for t in tables() if not t.computed], ids=lambda table: table.name
)
def test_the_cells_of_a_table_are_different_trainings_with_its_epsilons(table):
    found = {}
    for cell in table.cells:
        if not cell.seeds:
            continue
        experiment = cell.experiment(seed=7, data_dir=".")
        assert experiment.seed == 7
        assert (experiment.data_dir is None) == (experiment.dataset == "digits")
        if cell.column == "inf":
            assert not experiment.private
        elif table.guarantee:  # the column says which epsilon the training is calibrated to
            assert experiment.guarantee == table.guarantee
            assert experiment.epsilon == float(cell.column)
        if cell.source == cell.name and cell.column != "inf":
            other = found.setdefault(_effective(experiment), cell.name)
            assert other == cell.name


@pytest.mark.parametrize("table", [t for t in tables() if t.computed], ids=lambda table: table.name)
def test_the_arguments_of_computed_cells_agree_with_their_columns(table):
    for cell in table.cells:
        if not cell.seeds:
            continue
        found = computed.settings(cell)
        of_column = {
            "noise_distance": "divergence",
            "noise_by_epsilon": "epsilon",
            "gradient_histogram": "epochs",
        }[table.computed]
        assert found["computed"] == table.computed and found[of_column] == float(cell.column)
        assert cell.seeds == (1,)


@pytest.mark.parametrize(
    "cell", [*TRAINED[::40], *[c for c in TRAINED if c.needs][:2]], ids=lambda cell: cell.name
)
def test_the_command_that_is_listed_trains_the_cell(cell, tmp_path, monkeypatch):
    python, program, *words = shlex.split(cell.command(7, tmp_path))
    assert (python, program) == ("python", "train.py")
    start = None
    if cell.needs:
        start = tmp_path / catalogue.initial_weights(cell.needs)
        start.parent.mkdir(parents=True)
        start.touch()
        start = str(start)
    values = flags.FlagValues()
    command.define(values)
    monkeypatch.chdir(ROOT)
    command.parse(["train.py", *words], values)
    # With the recipes that train.py has for a data set and a mechanism.
    (point,) = command.points(["train.py", *words])
    assert point.experiment == cell.experiment(7, start=start)


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
            (other,) = [each for each in CELLS if each.name == cell.source]
            assert cell.flags == other.flags and cell.folder == other.folder
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
    with pytest.raises(UnknownName, match=r"'si_dpsgd\.T4'"):
        cells(["si_dpsg.T4"])
    with pytest.raises(UnknownName):  # 0.5, 0.1, 0.05 and 0.025 begin with it
        cells(["si_dpsgd.T4.dpsgd_lenet5.0"])
    with pytest.raises(UnknownName, match="a cell"):
        catalogue.named("batch_norm.T5.ln")


def test_later_flags_replace_earlier_ones():
    assert merged("--a=1 --b=2", "--a=3", "--b= --c") == ("--a=3", "--c")


@pytest.mark.parametrize("row", ['same_as = "paper.T2.same"', 'needs = "paper.T2.other.-"'])
def test_trainings_are_taken_from_cells_that_have_some(row):
    more = f'[[tables.rows]]\nname = "last"\nlabel = "Last"\n{row}\n'
    with use(CATALOGUE + STARTS + more), pytest.raises(ValueError, match=r"paper\.T2\.last"):
        catalogue.tables()
