"""Whole training steps of a mechanism: a suite that the test module of each mechanism inherits.

Two models train one step on neighbouring data with the same noise. The difference of their weights,
in units of the sum over the lot, is the influence of one example.
"""

import time

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from helpers import data, plain, private, weights
from keras import layers

from tfdp.data import make_lots
from tfdp.layers import PublicBatchNormalization, PublicExamples
from tfdp.optimizers import MECHANISMS

CLIP, L, RATE, VICTIM = 0.02, 8, 0.5, 3
EVERYBODY = np.ones(L)
WITHOUT_VICTIM = np.where(np.arange(L) == VICTIM, 0.0, 1.0)


def wide():
    """A model with so many weights that one step shows the scale of the noise."""
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((4,)), layers.Dense(400), layers.Dense(3)])


class StepSuite:
    """Properties of whole training steps that every optimizer must have.

    Attributes:
            mechanism: name of the mechanism in `tfdp.optimizers.MECHANISMS`.
        settings: further arguments of the optimizer.
        step_over_rate: how far a unit of the lot's mean moves a weight, over the learning rate.
        attains_the_bound: whether a long gradient moves a step by exactly the sensitivity.
        normalizes_batches: whether to train with batch statistics as well; that is the engine's doing,
            and one mechanism shows it.
    """

    mechanism: str
    settings: dict = {}
    step_over_rate = 1.0
    attains_the_bound = True
    normalizes_batches = False

    def squares_per_weight(self):
        """(mean, variance) of the squared noise on a weight, over (noise multiplier * clip norm)^2."""
        return 1.0, 2.0  # of a Gaussian

    def optimizer(self, noise):
        make = MECHANISMS[self.mechanism](keras.optimizers.SGD)
        return make(
            learning_rate=RATE,
            l2_norm_clip=CLIP,
            noise_multiplier=noise,
            seed=11,
            **self.settings,
        )

    def one_step(self, model, present, noise=1.0, compiled=None):
        """Returns the change of the weights in one step, in units of the lot's sum, and the model."""
        made = private(self.optimizer(noise), model, compiled)
        x, y = data(L)
        x[VICTIM] *= 2.0
        before = weights(made)
        made.fit(make_lots("cyclic", x, y, lot_size=L, sample_weight=present), verbose=0)
        unit = RATE / L * self.step_over_rate
        return (weights(made) - before).astype(float) / unit, made

    def moved(self, model=plain):
        """Returns how far one example moves the sum, and the declared sensitivity."""
        first, made = self.one_step(model(), EVERYBODY)
        second, _ = self.one_step(model(), WITHOUT_VICTIM)
        bound = made.optimizer.bound(made.trainable_variables)
        (run,) = made.privacy.ledger.runs
        assert bound.sensitivity() == pytest.approx(CLIP * np.sqrt(run.clip_groups))
        return np.linalg.norm(first - second), bound.sensitivity()

    def test_one_example_moves_a_step_by_no_more_than_the_sensitivity(self):
        distance, sensitivity = self.moved()
        # The gradients are longer than C, so clipping attains the bound; encoding stays below.
        assert 0.3 * sensitivity < distance <= sensitivity * (1 + 1e-3)
        if self.attains_the_bound:
            assert distance == pytest.approx(sensitivity, rel=1e-3)

    def test_without_a_bound_it_moves_further(self, monkeypatch):
        kind = type(self.optimizer(1.0).bound(plain().trainable_variables))
        monkeypatch.setattr(kind, "scales", lambda _, square_norms: tf.ones_like(square_norms))
        monkeypatch.setattr(kind, "bounded", lambda _, rows: rows, raising=False)
        distance, sensitivity = self.moved()
        assert distance > 3 * sensitivity

    @pytest.mark.parametrize("statistics", ["example", "batch"])
    def test_batch_statistics_let_it_move_further(self, statistics):
        if not self.normalizes_batches:
            return

        def normalized():
            keras.utils.set_random_seed(0)
            network = keras.Sequential(
                [keras.Input((4,)), layers.Dense(5), PublicBatchNormalization(), layers.Dense(3)]
            )
            public = np.random.default_rng(5).normal(size=(6, 4)).astype("float32")
            examples = PublicExamples(network, public, statistics)
            return keras.Sequential([keras.Input((4,)), examples])

        distance, sensitivity = self.moved(normalized)
        assert (distance > 1.2 * sensitivity) == (statistics == "batch")

    def test_the_noise_is_what_is_accounted(self):
        noisy, made = self.one_step(wide(), EVERYBODY, noise=3.0)
        silent, _ = self.one_step(wide(), EVERYBODY, noise=0.0)
        drawn = noisy - silent
        mean, variance = self.squares_per_weight()

        def accepts(noise_multiplier):
            squares = (drawn / (noise_multiplier * CLIP)) ** 2
            error = (squares.mean() - mean) / np.sqrt(variance / len(drawn))
            return 2 * scipy.stats.norm.sf(abs(error)) > 1e-6

        (run,) = made.privacy.ledger.runs
        assert accepts(run.noise_multiplier)
        # Wrong noise, as if 2/3 or 3/2 of the accounted noise had been added, is detected.
        assert not accepts(run.noise_multiplier * 3 / 2)
        assert not accepts(run.noise_multiplier * 2 / 3)

    def test_it_says_the_standard_deviation_that_it_adds(self, monkeypatch):
        kind, said = type(self.optimizer(1.0)), []
        update = kind.update

        def followed(*arguments):
            said.append(float(update(*arguments)))
            return tf.constant(said[-1])

        monkeypatch.setattr(kind, "update", followed)
        eagerly = {"run_eagerly": True}
        noisy, _ = self.one_step(wide(), EVERYBODY, noise=3.0, compiled=eagerly)
        silent, _ = self.one_step(wide(), EVERYBODY, noise=0.0, compiled=eagerly)
        mean, variance = self.squares_per_weight()
        squares = ((noisy - silent) / said[0]) ** 2
        error = (squares.mean() - 1) / np.sqrt(variance / mean**2 / len(squares))
        assert abs(error) < 5
        assert said[1] < 1e-2 * said[0]  # SGLD has a little of its own

    def test_xla_compiles_once_and_not_for_every_poisson_lot(self):
        class Clock(keras.callbacks.Callback):
            seconds = ()

            def on_train_batch_begin(self, batch, logs=None):
                self.start = time.process_time()

            def on_train_batch_end(self, batch, logs=None):
                self.seconds += (time.process_time() - self.start,)

        model = private(self.optimizer(1.0), plain(), {"jit_compile": True})
        clock = Clock()
        model.fit(*data(10 * L), batch_size=L, callbacks=[clock], verbose=0)
        # A compilation takes about a second, a step takes milliseconds. Time of the processor does
        # not depend on other processes; one step may have met the garbage collector.
        assert sum(sorted(clock.seconds[2:])[:-1]) < clock.seconds[0] / 4
