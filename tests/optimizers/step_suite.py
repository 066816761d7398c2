"""Whole training steps of a mechanism: a suite that the test module of each mechanism inherits.

A step without noise is compared with gradients of single examples, and one example is left out of it.
A step with much noise, in a model with many weights, shows the scale of the noise.
"""

import time

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from helpers import LOSS, data, plain, private, weights
from keras import layers

from tests.rounding import rounding, terms_of
from tests.seeds import seed_keras
from tfdp.optimizers import MECHANISMS

CLIP, L, RATE, VICTIM, NOISE = 0.02, 8, 0.5, 3, 30.0
EVERYBODY = np.ones(L)
WITHOUT_VICTIM = np.where(np.arange(L) == VICTIM, 0.0, 1.0)


def wide():
    """A model with so many weights that one step shows the scale of the noise."""
    seed_keras(0)
    return keras.Sequential([keras.Input((4,)), layers.Dense(400), layers.Dense(3)])


def gradients_of_rows(model, x, y):
    """Yields the gradient of each example alone, one array for each variable."""
    for row in range(len(x)):
        with tf.GradientTape() as tape:
            loss = LOSS(y[row : row + 1], model(x[row : row + 1], training=True))
        found = tape.gradient(loss, [v.value for v in model.trainable_variables])
        yield [gradient.numpy() for gradient in found]


def flat(arrays):
    return np.concatenate([np.ravel(a) for a in arrays])


def set_flat(model, values):
    """Gives a model the weights of one flat array."""
    arrays = model.get_weights()
    parts = np.split(values, np.cumsum([a.size for a in arrays])[:-1])
    model.set_weights([p.reshape(a.shape) for p, a in zip(parts, arrays, strict=True)])


def clipped(gradients):
    """A gradient that is clipped as a whole."""
    whole = flat(gradients)
    return whole * min(1.0, CLIP / np.linalg.norm(whole))


def clipped_by_layer(gradients):
    """A gradient of which each layer, with a kernel and a bias, is clipped."""
    pairs = zip(gradients[::2], gradients[1::2], strict=True)
    return flat([clipped(pair) for pair in pairs])


class StepSuite:
    """Properties of whole training steps that every optimizer must have.

    Attributes:
        mechanism: name of the mechanism in `tfdp.optimizers.MECHANISMS`.
        settings: further arguments of the optimizer.
        step_over_rate: how far a unit of the lot's mean moves a weight, over the learning rate.
        physical_batch_size: of the noisy steps: noise is drawn once for all chunks of a lot.
        attains_the_bound: whether a long gradient moves a step by exactly the sensitivity.
    """

    mechanism: str
    settings: dict = {}
    step_over_rate = 1.0
    physical_batch_size: int | None = None
    attains_the_bound = True

    def squares_per_weight(self):
        """(mean, variance) of the squared noise on a weight, over (noise multiplier * clip norm)^2."""
        return 1.0, 2.0  # of a Gaussian

    def bounded(self, gradients):
        """What an example with these gradients adds to the sum."""
        return clipped(gradients)

    def optimizer(self, noise):
        make = MECHANISMS[self.mechanism](keras.optimizers.SGD)
        return make(learning_rate=RATE, l2_norm_clip=CLIP, noise_multiplier=noise, **self.settings)

    def begin(self, noise, network, compiled=None, **made):
        """Returns a model, the bounded gradient of each row, and a function that takes a step.

        Every step starts at the same weights. It takes the presence of each row, and returns the
        noisy sum. `made` goes to make_private.
        """
        model = private(self.optimizer(noise), network, compiled, **made)
        x, y = data(L)
        x[VICTIM] *= 2.0
        rows = [self.bounded(gradients) for gradients in gradients_of_rows(model, x, y)]
        start = model.get_weights()

        def step(present):
            model.set_weights(start)
            model.train_on_batch(x, y, sample_weight=present)
            moved = (flat(start) - weights(model)).astype(float)
            return moved * L / RATE / self.step_over_rate

        return model, np.array(rows), step

    def rounded(self, model):
        """The largest difference of an entry of the sum; one rounding is that of the weight."""
        weight = np.max(np.abs(weights(model))) * L / RATE / self.step_over_rate
        return rounding(terms_of(model, L), L * CLIP) + rounding(1, weight)

    def test_one_example_moves_a_step_by_no_more_than_the_sensitivity(self):
        model, rows, step = self.begin(0.0, plain())
        full, without = step(EVERYBODY), step(WITHOUT_VICTIM)
        rounded = self.rounded(model)
        np.testing.assert_allclose(full, EVERYBODY @ rows, rtol=0, atol=rounded)
        np.testing.assert_allclose(without, WITHOUT_VICTIM @ rows, rtol=0, atol=rounded)
        bound = model.optimizer.bound(model.trainable_variables)
        run = model.privacy.ledger.runs[0]
        sensitivity = CLIP * bound.relative_sensitivity()
        assert sensitivity == pytest.approx(CLIP * np.sqrt(run.contribution.clip_groups))
        distance = np.linalg.norm(full - without)
        longest = 2 * rounded * np.sqrt(full.size)
        # The gradients are longer than C, so clipping attains the bound; encoding stays below.
        assert 0.3 * sensitivity < distance <= sensitivity + longest
        if self.attains_the_bound:
            assert distance == pytest.approx(sensitivity, abs=longest)

    @pytest.fixture(scope="class")
    @classmethod
    def noisy(cls):
        """What `begin` returns for a model whose steps show the noise."""
        return cls().begin(NOISE, wide(), physical_batch_size=cls.physical_batch_size)

    def test_the_noise_is_what_is_accounted_and_what_the_step_reports(self, noisy):
        model, rows, step = noisy
        signal = EVERYBODY @ rows
        drawn = step(EVERYBODY) - signal
        ratio = model.privacy.diagnostics(reset=True)["noise_to_signal"]
        reported = ratio * np.linalg.norm(signal) / np.sqrt(len(signal))
        mean, variance = self.squares_per_weight()

        def accepts(noise_multiplier):
            squares = (drawn / (noise_multiplier * CLIP)) ** 2
            error = (squares.mean() - mean) / np.sqrt(variance / len(drawn))
            return 2 * scipy.stats.norm.sf(abs(error)) > 1e-6

        (run,) = model.privacy.ledger.runs
        assert accepts(run.mechanism.noise_multiplier)
        # Wrong noise, as if 2/3 or 3/2 of the accounted noise had been added, is detected.
        assert not accepts(run.mechanism.noise_multiplier * 3 / 2)
        assert not accepts(run.mechanism.noise_multiplier * 2 / 3)
        assert accepts(reported / np.sqrt(mean) / CLIP)
        # The next step has noise of its own (of a mechanism with correlated noise, in part).
        assert abs(np.corrcoef(drawn, step(EVERYBODY) - signal)[0, 1]) < 0.6
        model.privacy.account.session.entry.close()  # the next step is of another run
        assert abs(np.corrcoef(drawn, step(EVERYBODY) - signal)[0, 1]) < 0.2

    def test_a_file_brings_the_settings_the_slots_and_the_ledger(self, tmp_path, noisy):
        model, _, step = noisy
        step(EVERYBODY)
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        assert loaded.optimizer.get_config() == model.optimizer.get_config()
        assert {*loaded.privacy.ledger.runs} == {*model.privacy.ledger.runs}
        for ours, theirs in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
            np.testing.assert_array_equal(ours, theirs)

    @pytest.mark.slow
    def test_xla_takes_the_same_step_and_compiles_once_for_all_lots(self):
        xla = {"jit_compile": True}
        model, rows, step = self.begin(0.0, plain(), xla)
        rounded = self.rounded(model) + 2**-15 * L * CLIP  # which lots leave as room under XLA
        np.testing.assert_allclose(step(EVERYBODY), EVERYBODY @ rows, rtol=0, atol=rounded)

        times = [time.process_time()]
        clock = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: times.append(time.process_time())
        )
        model = private(self.optimizer(1.0), plain(), xla)
        model.fit(*data(10 * L), batch_size=L, callbacks=[clock], verbose=0)
        seconds = np.diff(times)
        # A compilation takes about a second, a step takes milliseconds. Time of the processor does
        # not depend on other processes; one step may have met the garbage collector.
        assert sum(sorted(seconds[2:])[:-1]) < seconds[0] / 4
