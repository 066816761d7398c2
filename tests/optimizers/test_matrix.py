"""Correlated noise in training: its covariance, its sensitivity and the secrecy of past noise."""

import math

import keras
import numpy as np
import pytest
import scipy.stats
from helpers import SAVES, arrays_in, data, fit, private, weights

from tests.accounting.varying import vary
from tests.rounding import FUNCTION, rounding
from tests.seeds import seed_keras
from tfdp.accounting import Strategy, describe, proven
from tfdp.data import make_lots
from tfdp.noise import NoiseSource
from tfdp.optimizers import make_matrix_optimizer_class

DELTA, L, STEPS = 1e-5, 8, 12
BANDED = Strategy(name="banded_toeplitz", coefficients=(1.0, 0.5, 0.25, -0.125))
PLANS = {
    "identity": Strategy(name="identity"),
    "prefix_sum": Strategy(name="prefix_sum"),
    "sqrt_toeplitz": Strategy(name="sqrt_toeplitz", bands=STEPS),
    "banded_toeplitz": BANDED,
}


def matrix(noise=1.0, clip=1.0, rate=0.5, strategy=BANDED, base=keras.optimizers.SGD, **kwargs):
    return make_matrix_optimizer_class(base)(
        l2_norm_clip=clip,
        noise_multiplier=noise,
        learning_rate=rate,
        strategy=strategy,
        **kwargs,
    )


def toeplitz(column, steps):
    c = np.zeros(steps)
    c[: len(column)] = column[:steps]
    return np.array([[c[t - s] if t >= s else 0.0 for s in range(steps)] for t in range(steps)])


# -- the noise -----------------------------------------------------------------------------------

SIGNIFICANCE = 1e-9  # there are many tests, and the noise is secret
Z, TINY = 3e6, 1e-6  # noise with standard deviation 3 around sums with norms of at most 8e-6


class Watch(keras.callbacks.Callback):
    """Records the change of the weights in every step."""

    def __init__(self):
        super().__init__()
        self.moves, self._last = [], None

    def on_train_begin(self, logs=None):
        self._last = weights(self.model)

    def on_train_batch_end(self, batch, logs=None):
        now = weights(self.model)
        self.moves.append(self._last - now)
        self._last = now


def noisy(strategy, compiled=None, **kwargs):
    """A model that only noise moves: y_t with standard deviation 3 in z, at learning rate L."""
    seed_keras(0)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(120), keras.layers.Dense(3, use_bias=False)]
    )
    return private(matrix(Z, TINY, float(L), strategy), model, compiled, **kwargs)


def lots_of(rows=2 * L, seed=0):
    return make_lots("cyclic", *data(rows, seed), lot_size=L)


def noise_of(model, steps=STEPS, lots=None):
    """Takes steps, and returns the noise of each."""
    watch = Watch()
    lots = lots_of(L) if lots is None else lots
    model.fit(lots, steps_per_epoch=steps, verbose=0, callbacks=[watch])
    return np.array(watch.moves)


def accepts(noise, strategy, stddev):
    """Tests whether C y is white noise: its variance, its shape, its correlation between steps."""
    steps, weights_ = noise.shape
    z = toeplitz(strategy.first(steps), steps) @ noise / stddev
    tail, square = scipy.stats.chi2(z.size), (z**2).sum()
    correlation = np.corrcoef(z)[np.triu_indices(steps, 1)]
    largest = np.abs(correlation).max() * math.sqrt(weights_)
    values = [tail.cdf(square), tail.sf(square), scipy.stats.kstest(z.ravel(), "norm").pvalue]
    values.append(2 * scipy.stats.norm.sf(largest) * len(correlation))
    return min(values) > SIGNIFICANCE


@pytest.mark.parametrize(
    "name", [pytest.param("prefix_sum", marks=pytest.mark.slow), "banded_toeplitz"]
)
def test_the_noise_has_the_covariance_of_the_strategy_and_no_other(name):
    plan = PLANS[name]
    noise = noise_of(noisy(plan, physical_batch_size=3))
    assert accepts(noise, plan, 3.0)
    assert not accepts(noise, plan, 2.0)
    assert not accepts(noise, plan, 4.5)
    for other in PLANS:
        if other != name:
            assert not accepts(noise, PLANS[other], 3.0), other


def test_fits_of_one_run_share_one_stream_of_noise_and_another_run_starts_afresh():
    model, lots = noisy(BANDED), lots_of(L)
    noise = np.concatenate([noise_of(model, 5, lots), noise_of(model, 7, lots)])
    assert accepts(noise, BANDED, 3.0)
    other = noise_of(model, 6)  # new lots may have another order
    assert [run.steps for run in model.privacy.ledger.runs] == [12, 6]
    assert accepts(other, BANDED, 3.0)
    assert not accepts(np.concatenate([noise, other]), BANDED, 3.0)


def test_a_step_that_was_counted_and_not_finished_ends_the_run(monkeypatch):
    """Even the last step of a plan: the memory of the noise has not taken it up."""
    model = private(matrix(), compiled={"run_eagerly": True}, engine="loop")
    lots = make_lots("poisson", *data(24), lot_size=L)
    model.fit(lots, steps_per_epoch=1, verbose=0)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(NoiseSource, "gaussians", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.fit(lots, steps_per_epoch=1, verbose=0)
    model.fit(lots, steps_per_epoch=1, verbose=0)
    assert [run.steps for run in model.privacy.ledger.runs] == [2, 1]


# -- sensitivity ---------------------------------------------------------------------------------

N, EPOCHS, CLIP = 24, 4, 0.7  # an example participates in every third step
# A weight is a sum over the examples of all steps, so the largest is STEPS * L clip norms.
ROUNDED = rounding(STEPS + L + 3 * FUNCTION, STEPS * L)


def test_no_neighbour_moves_more_than_is_accounted():
    """The gradients are x. Without noise, steps show the clipped sums."""
    network = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )
    made = {"loss": lambda y, p: p, "metrics": None}
    model = private(matrix(0.0, CLIP, float(L)), network, made)

    def released_sums(x, present):
        model.set_weights([np.zeros((3, 1))])
        watch = Watch()
        lots = make_lots("cyclic", x, np.zeros(N), lot_size=L, sample_weight=present)
        model.fit(lots, epochs=EPOCHS, verbose=0, callbacks=[watch])
        return np.array(watch.moves)

    rng, victim = np.random.default_rng(0), 2
    x = (rng.normal(size=(N, 3)) * rng.choice([0.1, 1.0, 100.0], (N, 1))).astype("float32")
    x[victim] *= 1000.0  # clipped
    absent = np.where(np.arange(N) == victim, 0.0, 1.0)
    difference = (released_sums(x, np.ones(N)) - released_sums(x, absent)) / CLIP
    moves = np.linalg.norm(difference, axis=1)
    assert np.count_nonzero(moves > ROUNDED) == EPOCHS
    run = model.privacy.ledger.runs[-1]
    for plan in PLANS.values():
        moved = np.linalg.norm(toeplitz(plan.first(STEPS), STEPS) @ difference)
        accounted = vary(run, strategy=plan, noise_multiplier=1.0)
        bound = proven(accounted, DELTA).mu
        assert moved <= bound * (1 + STEPS * ROUNDED)
        if plan is not BANDED:  # the first lot is the worst place; one direction in all lots
            assert moved == pytest.approx(bound, rel=STEPS * ROUNDED)
        # Accounting for one participation only is detected.
        once = proven(vary(accounted, num_examples=L * STEPS), DELTA).mu
        assert moved > 1.3 * once


def test_groups_that_take_turns_are_amplified():
    lots = make_lots("cyclic_poisson", *data(80), lot_size=4, groups=4)
    model = private(matrix(4.0))
    model.fit(lots, epochs=2, verbose=0)
    model.fit(lots, steps_per_epoch=3, verbose=0)
    (run,) = model.privacy.ledger.runs
    lots = run.sampling
    assert (lots.groups, lots.probability, lots.participations(run.steps)) == (4, 0.2, 11)
    amplified = model.privacy.spent(DELTA)
    # The twin has a Poisson-subsampled Gaussian per turn of the group, at the norm of a column.
    twin = describe(
        mechanism="dpsgd", num_examples=20, lot_size=4, steps=11, sampling="poisson",
        noise_multiplier=4.0 / np.linalg.norm(BANDED.coefficients),
    )  # fmt: skip
    assert amplified.epsilon == pytest.approx(proven(twin, DELTA).epsilon)


# -- the state is a secret, and has one future ---------------------------------------------------


def test_no_file_and_no_variable_holds_past_noise(tmp_path):
    model = private(matrix())
    fit(model)
    for way in ("save", "checkpoint", "pickle"):
        folder = tmp_path / way
        folder.mkdir()
        SAVES[way](model, folder)
        state = model.optimizer.secret_state()
        past = [array for name, array in state.items() if name.startswith("past")]
        assert past and all(np.any(array != 0) for array in past)
        written = list(arrays_in(folder))
        for array in past:
            for secret in (array, *array):
                assert not any(secret.tobytes() in content for content in written), way
    known = [v.numpy().ravel() for v in (*model.variables, *model.optimizer.variables)]
    assert not any(np.array_equal(row, v) for array in past for row in array for v in known)


def loaded(path):
    return keras.models.load_model(path)


def test_a_loaded_model_starts_a_new_segment(tmp_path):
    model = noisy(BANDED)
    first = noise_of(model, 6, lots_of())
    model.save(tmp_path / "first.keras")
    futures = [loaded(tmp_path / "first.keras") for _ in range(2)]
    assert futures[0].optimizer.strategy == BANDED
    rest = [noise_of(each, 6) for each in futures]
    for each, noise in zip(futures, rest, strict=True):
        assert [run.steps for run in each.privacy.ledger.runs] == [6, 6]
        assert accepts(noise, BANDED, 3.0)  # with fresh noise
        assert not accepts(np.concatenate([first, noise]), BANDED, 3.0)
    both = np.concatenate([toeplitz(BANDED.first(6), 6) @ noise for noise in rest])
    assert np.abs(np.corrcoef(both) - np.eye(12)).max() < 0.25  # and independent of each other


# -- construction --------------------------------------------------------------------------------


def test_a_strategy_by_name_is_made_for_the_planned_steps():
    made = matrix(strategy="banded_toeplitz", bands=4, steps=50)
    column = np.array(made.strategy.coefficients)
    assert len(column) == made.strategy.bands == 4
    np.testing.assert_array_equal(column, column.astype(np.float32))  # as the noise is made
    again = keras.optimizers.deserialize(keras.optimizers.serialize(made))
    assert again.strategy == made.strategy
    assert matrix(strategy="sqrt_toeplitz", steps=9).strategy.bands == 9
    assert matrix(strategy="sqrt_toeplitz", bands=3, steps=9).strategy.bands == 3
    assert matrix(strategy="prefix_sum", steps=9).strategy == Strategy(name="prefix_sum")


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "surprise"},
        {"strategy": "banded_toeplitz", "bands": 9, "steps": 8},
        {"strategy": "sqrt_toeplitz"},
        {"strategy": BANDED, "bands": 4},
    ],
)
def test_bad_arguments(options):
    with pytest.raises(ValueError, match=r"prefix_sum|strategy|bands"):
        matrix(**options)


def test_a_strategy_that_is_optimized_asks_for_the_plan():
    with pytest.raises(ValueError, match="steps=300, bands=8"):
        matrix(strategy="banded_toeplitz")
