"""The diagnostics about clipping that the user sees."""

import types

import tensorflow as tf

from tests.rounding import FUNCTION, assert_close
from tfdp.gradients.diagnostics import Diagnostics


def lot(norms, present, clipped):
    return types.SimpleNamespace(
        norms=tf.constant(norms, tf.float32),
        present=tf.constant(present),
        clipped=tf.constant(clipped, tf.float32),
        sums=[tf.constant([3.0, 0.0]), tf.constant([[4.0], [0.0]])],
        l2_norm_clip=2.0,
        non_finite=tf.constant(1),
    )


def test_means_over_lots_and_only_over_those_present():
    diagnostics = Diagnostics()

    def update(a_lot, noise_scale):
        tf.function(
            lambda: diagnostics.update(a_lot, noise_scale), jit_compile=True, autograph=False
        )()

    update(lot([1.0, 9.0, 3.0, 0.0], [True, True, True, False], [0, 1, 1, 0]), 1.0)
    update(lot([5.0, 0.0, 0.0, 0.0], [True, False, False, False], [1, 0, 0, 0]), 1.0)
    update(lot([0.0] * 4, [False] * 4, [0] * 4), 1.0)  # an empty lot has no gradients
    result = diagnostics.result(reset=True)
    assert_close(result["median_gradient_norm"], (3.0 + 5.0) / 2, 2 + FUNCTION)
    assert_close(result["fraction_clipped"], (2 / 3 + 1) / 2, 4 + 2 * FUNCTION)
    assert_close(result["noise_to_signal"], 0.5 * 2.0 * 2.0 / 5.0, 4 + 2 * FUNCTION)
    assert_close(result["non_finite_examples"], 1.0, 3 + FUNCTION)
    assert set(diagnostics.result(reset=False).values()) == {0.0}
