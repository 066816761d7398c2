"""Cells that are computed in place of trained: noise, gradients and audits."""

import dataclasses
import math

import numpy as np
import pytest

from papers import audit, catalogue, computed, gradient_histogram, noise
from tfdp.accounting.numerics import renyi_of_noise
from tfdp.noise import NoiseFamily, NoiseSource

NOISES = [
    ("gaussian", None), ("student_t", 9.0), ("laplace", None), ("sech", None),
    ("variance_gamma", None),
]  # fmt: skip


@pytest.mark.parametrize(("family", "nu"), NOISES)
def test_the_mean_size_is_that_of_the_noise_that_is_drawn(family, nu):
    (drawn,) = NoiseFamily(family, nu).sample(NoiseSource(seed=1), 0, 1.0, [(400_000,)])
    sizes = np.abs(drawn.numpy().astype(float))
    expected, error = sizes.mean(), sizes.std() / math.sqrt(len(sizes))
    found = noise.mean_size(family, nu)
    assert abs(found - expected) < 5 * error
    # The test would notice another scale.
    assert min(abs(found * wrong - expected) for wrong in (2 / 3, 3 / 2)) > 100 * error


def test_cauchy_noise_has_no_mean():
    assert noise.mean_size("cauchy") == noise.mean_size("student_t", 1.0) == math.inf
    assert noise.mean_size("student_t", 1e6) == pytest.approx(math.sqrt(2 / math.pi), 1e-5)


@pytest.mark.parametrize(
    ("family", "nu", "divergence"), [("laplace", None, 0.1), ("student_t", 9.0, 2.0)]
)
def test_the_scale_has_the_divergence_by_the_accounting_of_the_whole_codebook(
    family, nu, divergence
):
    small = {"codebook_size": 5, "num_weights": 20, "seed": 3, "divergence": divergence}
    found = noise.distance(noise=family, degrees_of_freedom=nu, **small)
    shifts = noise.codebook(5, 20, 3) / found["scale"]
    corners = [renyi_of_noise.corner(family, each, degrees_of_freedom=nu) for each in shifts]
    accounted = max(renyi_of_noise.subsampled(each, 1.0, (2,))[0] for each in corners)
    assert accounted == pytest.approx(divergence, rel=1e-7)
    assert found["l1"] == found["scale"] * noise.mean_size(family, nu)
    gaussian = noise.distance(noise="gaussian", **small)
    assert gaussian["scale"] == pytest.approx(1 / math.sqrt(divergence), rel=1e-8)
    assert found["of_gaussian"] == pytest.approx(100 * found["l1"] / gaussian["l1"], rel=1e-6)


@pytest.mark.parametrize(("composition", "printed"), [("ac", 10.88), ("zcdp", 3.23)])
def test_sigma_on_mnist_is_the_one_that_the_paper_prints(composition, printed):
    (cell,) = catalogue.cells([f"dropout.F1_sigma_mnist.{composition}.0.5"])
    found = computed.compute(cell, 1)
    assert cell.printed == printed and round(found["sigma"], 2) == printed
    assert found["claimed"] == pytest.approx(0.5, rel=1e-4) and found["claimed"] <= 0.5
    # Clipping two layers one by one, as the paper does, has the guarantee of less noise.
    once = noise.by_epsilon(**cell.settings | {"clip_groups": 1})
    assert once["sigma"] == found["sigma"] and once["proven"] < found["proven"]


def test_the_summary_tells_a_gaussian_from_other_densities():
    rng = np.random.default_rng(1)
    gaussian = gradient_histogram.summary(0.3 + 0.1 * rng.standard_normal((500, 400)))
    assert gaussian["within_one"] == pytest.approx(68.27, abs=0.5)
    assert gaussian["kurtosis"] == pytest.approx(0, abs=0.05)
    assert gaussian["deviation"] == pytest.approx(0.1, rel=0.01)
    assert np.sum(gaussian["density"] * np.diff(gaussian["edges"])) == pytest.approx(1, abs=1e-4)
    assert gaussian["density"][80] == pytest.approx(0.399, abs=0.02)
    laplace = rng.laplace(size=200_000)
    laplace[::2] = 0
    found = gradient_histogram.summary(laplace)
    assert found["zeros"] == 50 and found["nonzero_kurtosis"] == pytest.approx(3, abs=0.5)
    assert found["kurtosis"] > 6


def test_a_histogram_is_computed_from_its_flags():
    (cell,) = catalogue.cells(["encoding.F1.mnist.1"])
    small = {"dataset": "digits", "model": "linear", "train_split": None, "batch_size": 479}
    settings = cell.settings | small | {"examples": 5}
    found = computed.compute(dataclasses.replace(cell, settings=settings), 1)
    assert {*computed.COMPUTATIONS["gradient_histogram"].lines} < {*found}


def test_audits_count_what_is_above():
    lines = computed.COMPUTATIONS["audit"].lines

    def texts(bounds, claimed):
        audits = [{"bound": bound, "claimed": claimed, "proven": 2.0} for bound in bounds]
        found = audit.summary(audits)
        return {label: text(found[name]) for name, (label, text) in lines.items()}

    sound = texts([0.1 * i for i in range(5)], claimed=2.5)
    assert [*sound.values()] == ["0.2 (0.4)", "5", "2.5", "2", "0", "0", "0.10"]
    false = texts([1.0 + 0.1 * i for i in range(10)], claimed=0.05)
    assert false["bound"] == "1.45 (1.9)" and false["above proven"] == "0"
    assert false["above claimed"].startswith("10 (p = ") and "refuted" in false["above claimed"]


@pytest.mark.slow
def test_an_audit_is_made_as_it_was_recorded():
    (cell,) = catalogue.cells(["audits.digits.claimed_05"])
    found = computed.compute(cell, 0)
    assert found["claimed"] == pytest.approx(0.5, rel=1e-3)
    assert found["bound"] > found["claimed"] and found["proven"] > 100
