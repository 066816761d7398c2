"""Small trainings, and planted faults: patches that break what a training promises."""

import contextlib
import dataclasses
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tfdp
from tfdp.accounting.contribution import Contribution
from tfdp.accounting.ledger import Ledger
from tfdp.data import schemes
from tfdp.gradients import first_pass
from tfdp.gradients.bounds import GlobalL2Clip, L2Clip
from tfdp.gradients.engines import lotwise
from tfdp.noise.gaussian import NoiseSource
from tfdp.optimizers import DPKerasOptimizer, SIDPSGDOptimizer
from tfdp.training import step

N, L = 120, 12
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def examples():
    draw = np.random.default_rng(0)
    return draw.normal(size=(N, 6)).astype("float32"), draw.integers(0, 4, N)


def network(*extra):
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(6, activation="tanh"), *extra, layers.Dense(4)]
    )


def optimizer(kind=tfdp.DPKerasSGDOptimizer, **options):
    options = {"learning_rate": 0.3, "l2_norm_clip": 0.1, "noise_multiplier": 1.0} | options
    return kind(**options)


def training(with_optimizer=None, model=None, sampling="poisson", epochs=3, **options):
    """Returns a compiled private model, and the function that trains it."""
    made = tfdp.make_private(network() if model is None else model, **options)
    made.compile(optimizer() if with_optimizer is None else with_optimizer, LOSS)
    together = made.optimizer.microbatch_size(L)
    lots = tfdp.data.make_lots(sampling, *examples(), lot_size=L, microbatch_size=together)
    return made, lambda: made.fit(lots, epochs=epochs, verbose=0)


@keras.saving.register_keras_serializable(package="faults")
class Centred(layers.Layer):
    """Subtracts the mean of the batch: what a batch normalization without its other parts does."""

    def call(self, x):
        return x - tf.reduce_mean(x, axis=0, keepdims=True)

    def compute_output_shape(self, shape):
        return shape


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        patches: (owner, name, function of the original that returns the broken one).
        training: returns a compiled model and the function that trains it.
    """

    patches: tuple
    training: Callable = training

    @contextlib.contextmanager
    def planted(self):
        """Context in which the library is broken."""
        originals = [(owner, name, vars(owner)[name]) for owner, name, _ in self.patches]
        try:
            for owner, name, broken in self.patches:
                setattr(owner, name, broken(vars(owner)[name]))
            yield
        finally:
            for owner, name, original in originals:
                setattr(owner, name, original)


def _no_clip(original):
    return lambda self, square_norms: tf.ones_like(original(self, square_norms))


def _two_thirds(original):
    return lambda self, *arguments: 2.0 / 3.0 * original(self, *arguments)


def _same_noise_twice(original):
    return lambda self, draw: original(self, (draw + 1) // 2)


def _releases_means(original):
    def broken(self, bounded, session, variables, regularization):
        scale = original(self, bounded, session, variables, regularization)
        for mean, variable in zip(self._hidden.means, variables, strict=True):
            variable.assign(tf.cast(mean, variable.dtype))
        return scale

    return broken


def _fixed_order(original):
    def broken(self, random, turn):
        def draw(number):
            return L * (number % (N // L)) + tf.range(L, dtype=tf.int64)

        return tf.data.Dataset.counter().map(draw)

    return broken


def _one_behind(original):
    return lambda self, run_id, steps, taken=None: original(self, run_id, max(0, steps - 1))


def _always(value):
    return lambda original: lambda self, *arguments: value


FAULTS = {
    "no clip": Fault(((GlobalL2Clip, "scales", _no_clip),)),
    "two thirds of the noise": Fault(((DPKerasOptimizer, "_stddev", _two_thirds),)),
    "the same noise twice": Fault(((NoiseSource, "_counter_of", _same_noise_twice),)),
    "means released": Fault(
        ((SIDPSGDOptimizer, "update", _releases_means),),
        lambda: training(optimizer(tfdp.SIDPSGDOptimizer), sampling="cyclic"),
    ),
    "batch statistics": Fault(
        (
            (step, "choose_engine", lambda original: lambda *arguments: lotwise.bounded_sum),
            (lotwise, "_relative_sensitivity", lambda original: lambda *arguments: 1.0),
            (first_pass, "refuse_mixed_rows", lambda original: lambda *arguments: None),
        ),
        lambda: training(model=network(Centred())),
    ),
    "fixed order as Poisson": Fault(((schemes.PoissonLots, "_draw", _fixed_order),)),
    "microbatches as examples": Fault(
        (
            (Contribution, "sensitivity", _always(1.0)),
            (L2Clip, "relative_sensitivity", lambda original: lambda self, size=1: 1.0),
        ),
        lambda: training(optimizer(num_microbatches=L // 2)),
    ),
    "ledger one step behind": Fault(((Ledger, "record", _one_behind),)),
}
