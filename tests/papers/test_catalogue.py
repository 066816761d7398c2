"""The catalogue of what the papers print, and the commands that its cells stand for."""

import json
import shlex
from pathlib import Path

import pytest
from absl import flags

from tests.papers.small_catalogue import STARTS
from tfdp.experiments import command_line
from tfdp.papers import catalogue
from tfdp.papers.catalogue import UnknownName, cells, merged, tables

ROOT = Path(__file__).resolve().parents[2]
CELLS = [cell for table in tables() for cell in table.cells]
TRAINED = [cell for cell in CELLS if cell.seeds and not cell.computed]


def test_names_are_unique():
    names = [cell.name for cell in CELLS]
    assert len(set(names)) == len(names) and len({t.name for t in tables()}) == len(tables())


@pytest.mark.parametrize("cell", TRAINED, ids=lambda cell: cell.name)
def test_the_settings_of_a_cell_are_valid(cell):
    experiment = cell.experiment(seed=7, data_dir=".")
    assert experiment.seed == 7
    assert (experiment.data_dir is None) == (experiment.dataset == "digits")
    (table,) = [table for table in tables() if table.name == cell.table]
    # The column says which epsilon the training is calibrated to.
    if table.guarantee and cell.column != "inf":
        assert experiment.guarantee == table.guarantee
        assert experiment.epsilon == float(cell.column)
    if cell.column == "inf":
        assert not experiment.private


@pytest.mark.parametrize(
    "cell", [*TRAINED[::5], *(c for c in TRAINED[1::5] if c.needs)], ids=lambda cell: cell.name
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
    command_line.define(values)
    monkeypatch.chdir(ROOT)
    command_line.parse(["train.py", *words], values)
    # With the recipes that train.py has for a data set and a mechanism.
    (point,) = command_line.points(["train.py", *words], ROOT / "flags" / "defaults", values)
    assert point.experiment == cell.experiment(7, start=start)


def test_quoted_rows_are_never_run():
    quoted = [cell for cell in CELLS if cell.quoted]
    assert quoted and not any(cell.seeds for cell in quoted)


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("si_dpsgd.T4.si_bn_lenet5", [99.20, 99.17, 99.17, 99.15, 99.18, 99.14, 99.12, 98.58]),
        ("si_dpsgd.T4.dpsgd_ln_lenet5", [99.20, 97.35, 97.05, 96.68, 94.81, 87.45, 75.76, 49.53]),
        ("batch_norm.T5.bn", [99.20, 98.68, 98.18, 97.61, 96.83, 90.68, 88.15]),
        ("dropout.T1_mnist.zcdp", [97.18, 94.70, 92.05]),
        ("dropout.T1_digits.sgld", [94.03, 91.87, 88.21]),
    ],
)
def test_the_figures_are_those_that_the_papers_print(name, figures):
    assert [cell.printed for cell in cells([name])] == figures


def test_the_errors_are_those_that_the_papers_print():
    vgg = cells(["si_dpsgd.T2.vgg16"])
    assert [cell.printed_error for cell in vgg] == [0.16, 0.56, 6.11, 8.21, None]
    printed = [cell for cell in CELLS if cell.printed_error is not None]
    assert {cell.table for cell in printed} == {"si_dpsgd.T1", "si_dpsgd.T2"}
    assert all(isinstance(cell.printed, float) for cell in printed)


def test_rows_with_the_trainings_of_others():
    for cell in CELLS:
        if cell.source != cell.name and cell.seeds:
            (other,) = [each for each in CELLS if each.name == cell.source]
            assert cell.flags == other.flags and cell.folder == other.folder
    (ours,) = cells(["batch_norm.T5.ln.0.5"])
    assert ours.source == "si_dpsgd.T4.dpsgd_ln_lenet5.0.5" and ours.printed == 94.81
    assert catalogue.named("batch_norm.T5.ln.0.5") == ours
    other, ours = cells(["dropout.F2_clip.zcdp.2", "dropout.F2_clip.zcdp.3"])  # one cell of a row
    assert other.source == other.name and ours.source == "dropout.F2_epochs.zcdp.50"
    assert {*ours.flags} == {f.replace("norm_clip=2", "norm_clip=3") for f in other.flags}
    with pytest.raises(UnknownName, match="the name of a cell"):
        catalogue.named("batch_norm.T5.ln")


def test_names_of_tables_rows_and_cells():
    assert len(cells(["dropout.T1_digits"])) == 12
    assert [c.column for c in cells(["dropout.T1_digits.ac"])] == ["10", "1", "0.5"]
    assert [c.column for c in cells(["dropout.T1_digits.ac.0.5"])] == ["0.5"]
    assert [c.column for c in cells(["dropout.digits_noise.gamma_0.0"])] == ["0"]
    twice = cells(["dropout.T1_digits.ac", "dropout.T1_digits.ac.1"])
    assert len(twice) == 3
    with pytest.raises(UnknownName, match=r"Did you mean 'si_dpsgd\.T4'"):
        cells(["si_dpsg.T4"])


def test_a_name_that_is_no_cell_is_no_column():
    with pytest.raises(UnknownName):
        cells(["si_dpsgd.T4.dpsgd_lenet5.0"])  # 0.5, 0.1, 0.05 and 0.025 begin with it


def _effective(cell):
    """The settings that a cell trains with; those of its optimizer's defaults where it names none."""
    settings = {**cell.experiment(1).recorded()}
    if settings["mechanism"] == "discrete_sgd":
        for name in ("encode", "denoise"):  # both are True by default
            settings[name] = settings[name] is not False
    return json.dumps(settings, sort_keys=True, default=str)


@pytest.mark.parametrize("table", tables(), ids=lambda table: table.name)
def test_no_two_cells_of_a_table_are_the_same_training(table):
    trained = [c for c in table.cells if c.seeds and not c.computed and c.source == c.name]
    found = {}
    for cell in trained:
        found.setdefault(_effective(cell), []).append(cell.name)
    alike = [names for names in found.values() if len(names) > 1 and "inf" not in names[0]]
    assert not alike


def test_later_flags_replace_earlier_ones():
    assert merged("--a=1 --b=2", "--a=3", "--b= --c") == ("--a=3", "--c")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('same_as = "paper.T2.same"', "which has others'"),
        ('needs = "paper.T2.same.-"', "no cell with trainings"),
        ('needs = "paper.T2.other.-"', "no cell with trainings"),
    ],
)
def test_trainings_are_taken_from_cells_that_have_some(tmp_path, monkeypatch, row, message):
    more = f'[[tables.rows]]\nname = "last"\nlabel = "Last"\n{row}\n'
    (tmp_path / "paper.toml").write_text(STARTS + more)
    monkeypatch.setattr(catalogue, "_FOLDER", tmp_path)
    catalogue.tables.cache_clear()
    with pytest.raises(ValueError, match=message):
        catalogue.tables()
    catalogue.tables.cache_clear()
