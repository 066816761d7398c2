"""Small trainings, and the planted faults that have to be found in them."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tfdp
from tests.faults import change
from tfdp.gradients.engines import lotwise

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


def of_batch_statistics(put):
    """Plants the sums of whole lots with the sensitivity of single rows."""
    for path, value in (
        ("training.step:choose_engine", lotwise.bounded_sum),
        ("gradients.engines.lotwise:_relative_sensitivity", 1.0),
        ("gradients.first_pass:refuse_mixed_rows", None),
    ):
        change(path, lambda original, *arguments, value=value: value, put)


# Faults of tests/faults.py, by their names or as functions, and a training that has them.
BROKEN = [
    (["gradients_are_clipped_at_three_halves"], training),
    (["noise_has_two_thirds_of_its_scale"], training),
    (["noise_repeats_in_every_step"], training),
    (["poisson_lots_have_a_fixed_order"], training),
    (["a_ledger_counts_every_second_step"], training),
    (
        ["si_dpsgd_shows_its_means"],
        lambda: training(optimizer(tfdp.SIDPSGDOptimizer), sampling="cyclic"),
    ),
    (
        [
            "microbatches_declare_the_sensitivity_of_single_examples",
            "the_accounting_assumes_half_the_sensitivity",
        ],
        lambda: training(optimizer(num_microbatches=L // 2)),
    ),
    ([of_batch_statistics], lambda: training(model=network(Centred()))),
]
