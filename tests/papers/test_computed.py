"""Cells that are computed in place of trained: their values, records, pages and figures."""

import json
import math

import numpy as np
import pytest

from papers import (
    audit,
    catalogue,
    computed,
    figures,
    gradient_histogram,
    noise_by_epsilon,
    noise_distance,
    pages,
)
from tfdp.accounting.numerics import renyi_of_noise
from tfdp.noise import NoiseFamily, NoiseSource

NOISES = [
    ("gaussian", None), ("student_t", 9.0), ("laplace", None), ("sech", None),
    ("variance_gamma", None),
]  # fmt: skip


# -- L1 distance ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "nu"), NOISES)
def test_the_mean_size_is_that_of_the_noise_that_is_drawn(noise, nu):
    (drawn,) = NoiseFamily(noise, nu).sample(NoiseSource(seed=1), 0, 1.0, [(400_000,)])
    sizes = np.abs(drawn.numpy().astype(float))
    expected, error = sizes.mean(), sizes.std() / math.sqrt(len(sizes))
    found = noise_distance.mean_size(noise, nu)
    assert abs(found - expected) < 5 * error
    # The test would notice another scale.
    assert min(abs(found * wrong - expected) for wrong in (2 / 3, 3 / 2)) > 100 * error


def test_cauchy_noise_has_no_mean():
    assert noise_distance.mean_size("cauchy") == math.inf
    assert noise_distance.mean_size("student_t", 1.0) == math.inf
    assert noise_distance.mean_size("student_t", 1e6) == pytest.approx(math.sqrt(2 / math.pi), 1e-5)


@pytest.mark.parametrize(
    ("noise", "nu", "divergence"), [("laplace", None, 0.1), ("student_t", 9.0, 2.0)]
)
def test_the_scale_has_the_divergence_by_the_accounting_of_the_whole_codebook(
    noise, nu, divergence
):
    small = {"codebook_size": 5, "num_weights": 60, "seed": 3}
    found = noise_distance.compute(
        noise=noise, degrees_of_freedom=nu, divergence=divergence, **small
    )
    shifts = noise_distance.codebook(5, 60, 3) / found["scale"]
    corners = [renyi_of_noise.corner(noise, each, degrees_of_freedom=nu) for each in shifts]
    accounted = max(renyi_of_noise.subsampled(each, 1.0, (2,))[0] for each in corners)
    assert accounted == pytest.approx(divergence, rel=1e-7)
    assert found["divergence"] == pytest.approx(divergence, rel=1e-8)
    assert found["l1"] == found["scale"] * noise_distance.mean_size(noise, nu)
    gaussian = noise_distance.compute(noise="gaussian", divergence=divergence, **small)
    assert gaussian["scale"] == pytest.approx(1 / math.sqrt(divergence), rel=1e-8)
    assert found["of_gaussian"] == pytest.approx(100 * found["l1"] / gaussian["l1"], rel=1e-6)


def test_vectors_are_those_of_the_paper():
    vectors = noise_distance.codebook(50, 4000, 0)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0) and vectors.min() >= 0
    standard = vectors * math.sqrt(4000)
    assert np.mean(standard) == pytest.approx(math.sqrt(2 / math.pi), abs=0.01)


# -- sigma by epsilon -----------------------------------------------------------------------------


@pytest.mark.parametrize(("composition", "printed"), [("ac", 10.88), ("zcdp", 3.23)])
def test_sigma_on_mnist_is_the_one_that_the_paper_prints(composition, printed):
    (cell,) = catalogue.cells([f"dropout.F1_sigma_mnist.{composition}.0.5"])
    arguments = computed.arguments(cell)
    found = noise_by_epsilon.compute(**arguments)
    assert cell.printed == printed and round(found["sigma"], 2) == printed
    assert found["claimed"] == pytest.approx(0.5, rel=1e-4) and found["claimed"] <= 0.5
    # Clipping two layers one by one, as the paper does, has the guarantee of less noise.
    once = noise_by_epsilon.compute(**arguments | {"clip_groups": 1})
    assert once["sigma"] == found["sigma"] and once["proven"] < found["proven"]


# -- gradients ------------------------------------------------------------------------------------


def test_gradients_of_single_examples_are_those_of_the_definition():
    import keras

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4, 3)).astype("float32"), np.array([0, 1, 1, 0], "int32")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    found = gradient_histogram.gradients(model, x, y)
    probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(model(x)))
    for i in range(4):
        error = probabilities[i] - np.eye(2)[y[i]]
        by_hand = np.concatenate([np.outer(x[i], error).ravel(), error])
        assert np.allclose(found[i], by_hand, atol=1e-6)


def test_the_summary_tells_a_gaussian_from_other_densities():
    rng = np.random.default_rng(1)
    gaussian = gradient_histogram.summary(0.3 + 0.1 * rng.standard_normal((500, 400)))
    assert gaussian["within_one"] == pytest.approx(68.27, abs=0.5)
    assert gaussian["kurtosis"] == pytest.approx(0, abs=0.05)
    assert gaussian["deviation"] == pytest.approx(0.1, rel=0.01)
    assert gaussian["mean"] == pytest.approx(0.3, rel=0.01)
    widths = np.diff(gaussian["edges"])
    assert np.sum(gaussian["density"] * widths) == pytest.approx(1, abs=1e-4)
    middle = np.argmax(gaussian["density"])
    assert abs(gaussian["edges"][middle]) < 0.5
    assert gaussian["density"][middle] == pytest.approx(0.399, abs=0.02)
    laplace = rng.laplace(size=200_000)
    assert gradient_histogram.summary(laplace)["kurtosis"] == pytest.approx(3, abs=0.4)
    laplace[::2] = 0
    found = gradient_histogram.summary(laplace)
    assert found["zeros"] == 50 and found["nonzero_kurtosis"] == pytest.approx(3, abs=0.5)
    assert found["kurtosis"] > 6


# -- records, pages and figures -------------------------------------------------------------------

CATALOGUE = """
paper = "A paper"
[[tables]]
name = "F1"
title = "a figure"
axis = "divergence"
computed = "noise_distance"
columns = ["0.5", "1"]
flags = "--codebook_size=2 --num_weights=20"
column_flags = {"0.5" = "--divergence=0.5", "1" = "--divergence=1"}
note = "A note."
[[tables.rows]]
name = "laplace"
label = "Laplace"
paper = ["", 0.8]
flags = "--noise=laplace"
[[tables.rows]]
name = "cauchy"
label = "Cauchy"
absent = "It has no mean."
[[tables]]
name = "F2"
title = "another figure"
axis = "epsilon"
computed = "noise_by_epsilon"
columns = ["1", "2"]
flags = "--num_examples=100 --lot_size=10 --epochs=2 --delta=1e-4 --clip_groups=1 --composition=ac"
column_flags = {"1" = "--epsilon=1", "2" = "--epsilon=2"}
[[tables.rows]]
name = "ac"
label = "AC"
paper = [5, ""]
[[tables]]
name = "F3"
title = "a histogram"
axis = "epoch"
computed = "gradient_histogram"
columns = ["1"]
flags = "--dataset=digits --model=linear --normalization=none --batch_size=479 --learning_rate=0.1"
column_flags = {"1" = "--examples=5 --seed=1 --epochs=1"}
[[tables.rows]]
name = "digits"
label = "DIGITS"
"""


@pytest.fixture
def page(use, small, tmp_path, monkeypatch):
    """A function that writes the page of the catalogue, and returns its text."""
    use(CATALOGUE)
    path = tmp_path / "pages.toml"
    path.write_text(
        '[[pages]]\npath = "page.md"\ntitle = "A page"\npapers = ["paper"]\nintroduction = "Read."\n'
    )
    monkeypatch.setattr(pages, "_PAGES", path)

    def page():
        assert small("report", f"--out={tmp_path / 'out'}")[0] == 0
        return (tmp_path / "out" / "page.md").read_text()

    return page


def test_cells_are_computed_once_recorded_and_shown(small, use, page, tmp_path):
    status, said = small("run", "paper")
    assert status == 0 and "paper.F1.laplace.1: L1 distance" in said and "ac.2: sigma" in said
    assert "To run" not in small("run", "paper")[1]  # what is there is not computed again
    one, two = (
        json.loads((tmp_path / f"results/paper/F1/laplace/{column}/seed=1/run.json").read_text())
        for column in ("0.5", "1")
    )
    text = page()
    assert f"L1 distance | {one['values']['l1']:.4f} | {two['values']['l1']:.4f} |" in text
    assert "| **Laplace: paper** |  | 0.80 |" in text and "excess kurtosis" in text
    assert "Not run: Cauchy at 0.5, Cauchy at 1." in text
    for i in (1, 2, 3):
        assert (tmp_path / f"out/papers/figures/paper.F{i}.png").stat().st_size > 5000
    # Values of other settings are not shown, and are not computed over.
    use(CATALOGUE.replace("--num_weights=20", "--num_weights=21"))
    assert small("run", "paper.F1.laplace.1")[0] == 2
    assert "L1 distance" not in page()


# -- audits ---------------------------------------------------------------------------------------


def one_audit(bound, claimed=0.05):
    return {"bound": bound, "ceiling": 3.0, "claimed": claimed, "proven": 2.0}


def test_audits_count_what_is_above():
    lines = computed.COMPUTATIONS["audit"].lines

    def texts(audits):
        found = audit.summary(audits)
        return {label: to_text(found[name]) for label, name, to_text in lines}

    sound = texts([one_audit(0.1 * i, claimed=2.5) for i in range(5)])
    assert [*sound.values()] == ["0.2 (0.4)", "5", "2.5", "2", "0", "0", "0.10"]
    false = texts([one_audit(1.0 + 0.1 * i) for i in range(10)])
    assert false["bound"] == "1.45 (1.9)" and false["above proven"] == "0"
    assert false["above claimed"].startswith("10 (p = ") and "refuted" in false["above claimed"]


def test_the_audits_are_drawn(tmp_path):
    (table,) = [table for table in catalogue.tables() if table.computed == "audit"]
    found = {cell.name: audit.summary([one_audit(0.0), one_audit(1.0)]) for cell in table.cells}
    assert figures.draw(table, found, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000


@pytest.mark.slow
def test_an_audit_is_made_as_it_was_recorded():
    (cell,) = catalogue.cells(["audits.digits.claimed_05"])
    found = audit.compute(coins=0, **computed.arguments(cell))
    assert found["claimed"] == pytest.approx(0.5, rel=1e-3)
    assert found["bound"] > found["claimed"] and found["proven"] > 100
