"""What every mechanism keeps to, in whole training steps, and that the same checks catch what does not.

Two models train one step on neighbouring data, with the same noise: what they differ by, in units of
the sum of the lot, is what one example did.
"""

import time

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from helpers import data, plain, private, weights
from keras import layers

from tfdp.accounting import Strategy
from tfdp.data import make_lots
from tfdp.layers import PublicBatchNormalization, PublicExamples
from tfdp.optimizers import MECHANISMS

CLIP, L, RATE, VICTIM = 0.02, 8, 0.5, 3
SETTINGS = {
    "dp_dropout": {"clipping": "each_layer"},
    # So many examples that Langevin noise is nothing beside the private noise.
    "sgld": {"clipping": "each_layer", "num_examples": 10**12},
    "matrix": {"strategy": Strategy(name="banded_toeplitz", coefficients=(1.0, 0.5))},
    "discrete_sgd": {"noise": "gaussian", "denoise": False},
}
HALF_STEPS = ("dp_dropout", "sgld")


def optimizer(mechanism, noise):
    make = MECHANISMS[mechanism](keras.optimizers.SGD)
    return make(
        learning_rate=RATE,
        l2_norm_clip=CLIP,
        noise_multiplier=noise,
        seed=11,
        **SETTINGS.get(mechanism, {}),
    )


def one_step(mechanism, model, present, noise=1.0):
    """(What a step moved the weights by, in units of the sum; the model)."""
    made = private(optimizer(mechanism, noise), model)
    x, y = data(L)
    x[VICTIM] *= 2.0
    before = weights(made)
    made.fit(make_lots("cyclic", x, y, lot_size=L, sample_weight=present), epochs=1, verbose=0)
    unit = RATE / L * (0.5 if mechanism in HALF_STEPS else 1.0)
    return (weights(made) - before).astype(float) / unit, made


def moved(mechanism, model=plain):
    """By how far one example moves the sum, and by how far it may."""
    everybody = np.ones(L)
    without = everybody.copy()
    without[VICTIM] = 0.0
    first, made = one_step(mechanism, model(), everybody)
    second, _ = one_step(mechanism, model(), without)
    bound = made.optimizer.bound(made.trainable_variables)
    (run,) = made.ledger.runs
    assert bound.sensitivity() == pytest.approx(CLIP * np.sqrt(run.clip_groups))
    return np.linalg.norm(first - second), bound.sensitivity()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_one_example_moves_a_step_by_no_more_than_the_sensitivity(mechanism):
    distance, sensitivity = moved(mechanism)
    # Gradients are longer than C, so clipping attains the bound; encoding stays inside of it.
    assert 0.3 * sensitivity < distance <= sensitivity * (1 + 1e-3)
    if mechanism != "discrete_sgd":
        assert distance == pytest.approx(sensitivity, rel=1e-3)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_without_a_bound_it_moves_further(mechanism, monkeypatch):
    kind = type(optimizer(mechanism, 1.0).bound(plain().trainable_variables))
    monkeypatch.setattr(kind, "scales", lambda _, square_norms: tf.ones_like(square_norms))
    monkeypatch.setattr(kind, "bounded", lambda _, rows: rows, raising=False)
    distance, sensitivity = moved(mechanism)
    assert distance > 3 * sensitivity


@pytest.mark.parametrize("statistics", ["example", "batch"])
@pytest.mark.parametrize("mechanism", [m for m in MECHANISMS if m != "discrete_sgd"])
def test_batch_statistics_let_it_move_further(mechanism, statistics):
    def normalized():
        keras.utils.set_random_seed(0)
        network = keras.Sequential(
            [keras.Input((4,)), layers.Dense(5), PublicBatchNormalization(), layers.Dense(3)]
        )
        public = np.random.default_rng(5).normal(size=(6, 4)).astype("float32")
        examples = PublicExamples(network, public, statistics)
        return keras.Sequential([keras.Input((4,)), examples])

    distance, sensitivity = moved(mechanism, normalized)
    assert (distance > 1.2 * sensitivity) == (statistics == "batch")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_noise_is_what_is_accounted(mechanism):
    def wide():
        keras.utils.set_random_seed(0)
        return keras.Sequential([keras.Input((4,)), layers.Dense(400), layers.Dense(3)])

    noisy, made = one_step(mechanism, wide(), np.ones(L), noise=3.0)
    silent, _ = one_step(mechanism, wide(), np.ones(L), noise=0.0)
    drawn = noisy - silent

    def accepts(noise_multiplier):
        square = (drawn**2).sum() / (noise_multiplier * CLIP) ** 2
        tail = scipy.stats.chi2(len(drawn))
        return min(tail.cdf(square), tail.sf(square)) > 1e-6

    (run,) = made.ledger.runs
    assert accepts(run.noise_multiplier)
    # As if two thirds, or three halves, of what is accounted had been added.
    assert not accepts(run.noise_multiplier * 3 / 2)
    assert not accepts(run.noise_multiplier * 2 / 3)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_xla_compiles_once_and_not_for_every_poisson_lot(mechanism):
    class Clock(keras.callbacks.Callback):
        seconds = ()

        def on_train_batch_begin(self, batch, logs=None):
            self.start = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            self.seconds += (time.perf_counter() - self.start,)

    model = private(optimizer(mechanism, 1.0), plain(), {"jit_compile": True})
    clock = Clock()
    model.fit(*data(10 * L), batch_size=L, callbacks=[clock], verbose=0)
    # A compilation takes about a second, a step milliseconds.
    assert sum(clock.seconds[2:]) < clock.seconds[0] / 4
