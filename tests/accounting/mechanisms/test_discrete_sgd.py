"""Gradient encoding with any noise: golden values, and every case without a proven guarantee."""

import json
import math
import time

import numpy as np
import pytest

from tfdp.accounting import (
    Encoding,
    Ledger,
    Run,
    claimed,
    epsilon_curve,
    max_steps,
    noise_for,
    proven,
    proven_composition,
    statement,
)
from tfdp.accounting.analysis import analyse
from tfdp.accounting.encoding import normal_quantiles
from tfdp.accounting.numerics.privacy_loss import RenyiLoss

DELTA = 1e-5
T9 = Encoding(noise="student_t", degrees_of_freedom=9.0, num_weights=26010)
MNIST = Run(
    mechanism="discrete_sgd",
    num_examples=60000,
    lot_size=256,
    steps=14062,
    sampling="poisson",
    noise_multiplier=1.0,
    encoding=T9,
)
TINY = Encoding(
    noise="student_t", degrees_of_freedom=9.0, num_weights=2, codebook=((0.8, 0.6), (1.0, 0.0))
)
SMALL = MNIST.with_(num_examples=100, lot_size=10, steps=20, noise_multiplier=4.0, encoding=TINY)


@pytest.mark.parametrize(
    ("scale", "classic", "improved"),
    [
        (0.9, 3.641119, 3.162650),
        (1.0, 3.030005, 2.615133),
        (1.1, 2.609096, 2.236121),
        (1.2, 2.298982, 1.956615),
        (1.3, 2.059371, 1.741284),
        (1.4, 1.866692, 1.569927),
        (1.5, 1.708517, 1.430097),
    ],
)
def test_golden_table(scale, classic, improved):
    run = MNIST.with_(noise_multiplier=scale)
    assert claimed(run, DELTA).epsilon == pytest.approx(classic, rel=1e-6)
    assert proven(run, DELTA).epsilon == pytest.approx(improved, rel=1e-6)


@pytest.mark.parametrize(
    ("size", "classic", "improved"), [(61706, 3.030046, 2.615167), (1_000_000, 3.030074, 2.615189)]
)
def test_golden_sizes(size, classic, improved):
    encoding = Encoding(noise="student_t", degrees_of_freedom=9.0, num_weights=size)
    run = MNIST.with_(encoding=encoding)
    assert claimed(run, DELTA).epsilon == pytest.approx(classic, rel=1e-6)
    assert proven(run, DELTA).epsilon == pytest.approx(improved, rel=1e-6)


def test_golden_details():
    found = proven(MNIST, DELTA)
    assert found.details["K_2"] == pytest.approx(0.83331637, rel=1e-7)
    assert found.details["conversion"] == "RDP"
    words = " ".join(found.assumptions)
    assert "student_t with 9 degrees" in words
    assert "26010 quantiles" in words
    assert "Gaussian" not in words


@pytest.mark.parametrize(
    ("variance", "classic"), [(0.9, 4.1952), (1.0, 3.7720), (1.2, 3.2104), (1.5, 2.6830)]
)
def test_golden_variance_reading(variance, classic):
    run = MNIST.with_(noise_multiplier=math.sqrt(7 * variance / 9))
    assert claimed(run, DELTA).epsilon == pytest.approx(classic, rel=2e-5)


def test_golden_calibration():
    scale = noise_for(2.596981, DELTA, MNIST)
    assert scale == pytest.approx(1.004144, rel=5e-5)
    assert proven(MNIST.with_(noise_multiplier=scale), DELTA).epsilon <= 2.596981
    by_claim = noise_for(3.0, DELTA, MNIST, "claimed")
    assert claimed(MNIST.with_(noise_multiplier=by_claim), DELTA).epsilon == pytest.approx(
        3.0, rel=1e-4
    )


def test_gaussian_noise_is_dpsgd():
    run = MNIST.with_(encoding=Encoding(num_weights=100), noise_multiplier=1.1)
    assert claimed(run, DELTA).epsilon == pytest.approx(3.009100, rel=1e-6)
    found = proven(run, DELTA)
    assert found.details["epsilon_rdp"] == pytest.approx(2.596981, rel=2e-4)
    assert found.epsilon == pytest.approx(2.3817, rel=1e-3)
    for sampling, adjacency in (("cyclic", "zero_out"), ("poisson", "replace_one")):
        same = run.with_(mechanism="dpsgd", encoding=None, sampling=sampling)
        assert (
            proven(run.with_(sampling=sampling), DELTA, adjacency).epsilon
            == proven(same, DELTA, adjacency).epsilon
        )
    long = Encoding(num_weights=2, codebook=((3.0, 4.0), (1.0, 1.0)))
    assert (
        proven(run.with_(encoding=long, noise_multiplier=5.5), DELTA).epsilon
        == pytest.approx(found.epsilon)
    )  # fmt: skip


@pytest.mark.parametrize("noise", ["laplace", "sech", "variance_gamma", "cauchy"])
def test_other_families(noise):
    run = MNIST.with_(encoding=Encoding(noise=noise, num_weights=26010), noise_multiplier=1.5)
    found = proven(run, DELTA)
    assert 0 < found.epsilon < claimed(run, DELTA).epsilon < math.inf
    assert found.epsilon < proven(run.with_(noise_multiplier=1.0), DELTA).epsilon


@pytest.mark.parametrize(
    ("change", "adjacency", "words"),
    [
        ({"noise_multiplier": 0.0}, "zero_out", "No noise"),
        ({"microbatch_size": 2}, "zero_out", "microbatch_size 1"),
        ({"sampling": "cyclic"}, "zero_out", "Poisson lots"),
        ({"sampling": "shuffle"}, "zero_out", "Poisson lots"),
        ({"sampling": "with_replacement"}, "zero_out", "Poisson lots"),
        ({"sampling": "unknown"}, "zero_out", "Poisson lots"),
        ({"sampling": "cyclic_poisson", "groups": 2}, "zero_out", "Poisson lots"),
        ({"batch_statistics": True}, "zero_out", "statistics"),
        ({"clip_groups": 2}, "zero_out", "2 groups"),
        ({}, "replace_one", "no dominating pair"),
    ],
)
def test_what_is_not_proven_is_infinite(change, adjacency, words):
    found = proven(SMALL.with_(**change), DELTA, adjacency)
    assert found.epsilon == math.inf
    assert words in found.reason
    assert proven(SMALL, DELTA).epsilon < math.inf
    if change.get("noise_multiplier") != 0.0:
        assert claimed(SMALL.with_(**change), DELTA, adjacency).epsilon < math.inf


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_a_codebook_fitted_to_private_gradients(noise):
    encoding = Encoding(noise=noise, num_weights=5, private_codebook=True)
    found = proven(SMALL.with_(encoding=encoding), DELTA)
    assert found.epsilon == math.inf
    assert "private gradients" in found.reason


def test_adding_and_removing_is_zero_out():
    run = SMALL.with_(nominal=True)
    both = [proven(run, DELTA, a).epsilon for a in ("zero_out", "add_or_remove_one")]
    assert both[0] == both[1]
    with pytest.raises(ValueError, match="zero_out"):
        proven(SMALL.with_(sampling="cyclic"), DELTA, "add_or_remove_one")


def test_noise_that_is_too_small_to_tell():
    found = proven(SMALL.with_(noise_multiplier=1e-3), DELTA)
    assert found.epsilon == math.inf
    assert "too small" in found.reason


def test_the_worst_vector_counts():
    vectors = [Encoding(noise="laplace", num_weights=2, codebook=(v,)) for v in TINY.codebook]
    pair = Encoding(noise="laplace", num_weights=2, codebook=TINY.codebook)
    each = [proven(SMALL.with_(encoding=e), DELTA).epsilon for e in vectors]
    assert proven(SMALL.with_(encoding=pair), DELTA).epsilon >= max(each)


def test_signs_and_order_do_not_matter():
    turned = Encoding(
        noise="student_t", degrees_of_freedom=9.0, num_weights=2, codebook=((-0.6, 0.8), (0.0, -1.0))
    )  # fmt: skip
    assert proven(SMALL.with_(encoding=turned), DELTA).epsilon == pytest.approx(
        proven(SMALL, DELTA).epsilon, rel=1e-12
    )


def test_any_codebook_of_unit_vectors():
    rng = np.random.default_rng(0)
    vectors = np.abs(rng.normal(size=(3, 300)))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True) * (1 + 1e-12)
    codebook = tuple(tuple(v) for v in vectors)
    noise = {"noise": "student_t", "degrees_of_freedom": 3.0, "num_weights": 300}
    exact = MNIST.with_(encoding=Encoding(codebook=codebook, **noise))
    bound = MNIST.with_(encoding=Encoding(largest_entry=float(vectors.max()), **noise))
    low, high = proven(exact, DELTA).epsilon, proven(bound, DELTA).epsilon
    assert low <= high <= 1.02 * low
    assert "at most" in " ".join(proven(bound, DELTA).assumptions)


def test_lots_that_are_cut_are_charged_to_delta():
    run = SMALL.with_(max_lot_size=40)
    loss = analyse(run, DELTA, "zero_out").losses[0]
    assert 0 < loss.overflow < 1e-12
    assert proven(run, DELTA).epsilon == pytest.approx(proven(SMALL, DELTA).epsilon, rel=1e-6)
    tight = proven(SMALL.with_(max_lot_size=12), DELTA)
    assert tight.epsilon == math.inf
    assert "charged to delta" in tight.reason


def test_whole_data_lots_are_not_amplified():
    run = SMALL.with_(lot_size=100, steps=1, encoding=Encoding(noise="laplace", num_weights=1))
    # One Laplace release of scale 4 is (1/4, 0)-DP; Rényi orders up to 64 give hardly less.
    assert 0.2 < proven(run, DELTA).epsilon < 0.5


def test_composition():
    half = MNIST.with_(steps=7031)
    two = proven_composition([half, half], DELTA)
    assert two.epsilon == pytest.approx(proven(MNIST, DELTA).epsilon, rel=1e-9)
    dpsgd = MNIST.with_(mechanism="dpsgd", encoding=None, steps=1000)
    cyclic = dpsgd.with_(sampling="cyclic", noise_multiplier=20.0)
    mixed = proven_composition([MNIST, dpsgd, cyclic], DELTA)
    alone = [proven(run, DELTA).epsilon for run in (MNIST, dpsgd, cyclic)]
    assert max(alone) < mixed.epsilon < sum(alone)
    assert mixed.details["bound"] == "RDP"
    microbatches = dpsgd.with_(microbatch_size=2, noise_multiplier=20.0)
    assert proven_composition([MNIST, microbatches], DELTA).epsilon == pytest.approx(
        proven(MNIST, DELTA / 2).epsilon + proven(microbatches, DELTA / 2).epsilon
    )


def test_progress():
    values = epsilon_curve(MNIST, [0, 5000, 14062], DELTA)
    assert values[0] == 0
    assert values[2] == proven(MNIST, DELTA).epsilon
    assert values[1] == pytest.approx(proven(MNIST.with_(steps=5000), DELTA).epsilon)
    steps = max_steps(2.0, DELTA, MNIST)
    assert proven(MNIST.with_(steps=steps), DELTA).epsilon <= 2.0
    assert proven(MNIST.with_(steps=steps + 1), DELTA).epsilon > 2.0
    for guarantee in (proven, claimed):
        assert guarantee(MNIST.with_(steps=0), DELTA).epsilon == 0


def test_ledger_and_words():
    ledger = Ledger()
    ledger.record(ledger.open(SMALL), 7)
    restored = Ledger.from_json(ledger.to_json())
    assert restored == ledger
    assert restored.runs[0].encoding == TINY
    assert Run.from_dict(json.loads(json.dumps(MNIST.to_dict()))) == MNIST
    text = statement(MNIST, DELTA)
    assert "student_t (9 degrees of freedom) noise of scale 1" in text


def test_speed():
    start = time.process_time()
    proven(MNIST.with_(noise_multiplier=1.2345), DELTA)
    assert time.process_time() - start < 20  # well below one second on a usual machine


@pytest.mark.parametrize(
    "fields",
    [
        {"noise": "uniform"},
        {"noise": "student_t"},
        {"noise": "student_t", "degrees_of_freedom": 0.0},
        {"noise": "student_t", "degrees_of_freedom": math.nan},
        {"noise": "laplace", "degrees_of_freedom": 3.0},
        {"num_weights": 0},
        {"num_weights": 2.5},
        {"codebook": ()},
        {"codebook": ((1.0,),)},
        {"codebook": ((1.0, math.nan),)},
        {"codebook": ((1.0, 0.0),), "largest_entry": 0.5},
        {"largest_entry": 0.0},
        {"largest_entry": 1.5},
    ],
)
def test_bad_encodings_are_refused(fields):
    with pytest.raises(ValueError, match="Expected"):
        Encoding(**({"num_weights": 2} | fields))


@pytest.mark.parametrize("change", [{"encoding": None}, {"mechanism": "dpsgd", "encoding": T9}])
def test_the_encoding_belongs_to_the_mechanism(change):
    with pytest.raises(ValueError, match="encoding"):
        SMALL.with_(**change)


def test_default_codebook():
    for size in (1, 2, 1001):
        vector = normal_quantiles(size)
        assert np.linalg.norm(vector) == pytest.approx(1.0)
        assert np.all(np.diff(vector) >= 0)
    assert isinstance(analyse(MNIST, DELTA, "zero_out").losses[0], RenyiLoss)
