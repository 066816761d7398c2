"""Correlated noise is C^-1 z, and its memory is bounded by the number of bands."""

import numpy as np
import pytest
import tensorflow as tf

from tests.rounding import FUNCTION, assert_close
from tfdp.accounting import Strategy, strategy
from tfdp.accounting.strategies import inverse
from tfdp.noise import CorrelatedNoise

SHAPES = [(2, 3), (5,), ()]
STEPS = 12
PLANS = {
    "identity": Strategy(name="identity"),
    "prefix_sum": Strategy(name="prefix_sum"),
    "prefix_sum_cut": Strategy(name="prefix_sum", bands=3),
    "sqrt_toeplitz_cut": Strategy(name="sqrt_toeplitz", bands=5),
    "sqrt_toeplitz": Strategy(name="sqrt_toeplitz", bands=STEPS),
    "banded_toeplitz": strategy("banded_toeplitz", STEPS, 4),
    "scaled": Strategy(name="banded_toeplitz", coefficients=(2.0, -0.5, 0.25)),
}


def fresh(steps=STEPS, seed=0):
    return np.random.default_rng(seed).normal(size=(steps, 12)).astype("float32")


def split(z):
    return [tf.constant(part) for part in (z[:6].reshape(2, 3), z[6:11], z[11])]


def run(noise, z, wrap=lambda f: f, first=0):
    correlate = wrap(noise.correlate)
    rows = []
    for step, row in enumerate(z, first):
        made = correlate(split(row), tf.constant(step, tf.int64))
        assert [tuple(m.shape) for m in made] == SHAPES
        rows.append(np.concatenate([np.ravel(m) for m in made]))
    return np.array(rows)


@pytest.mark.parametrize("plan", PLANS)
def test_it_is_the_inverse_of_the_strategy(plan):
    xla = plan == "banded_toeplitz"
    plan = PLANS[plan]
    column = inverse(plan.first(STEPS), STEPS)
    c_inverse = [[column[t - s] if t >= s else 0.0 for s in range(STEPS)] for t in range(STEPS)]
    noise, growths = CorrelatedNoise(plan, SHAPES), []

    def wrap(correlate):
        compiled = tf.function(correlate, jit_compile=xla)

        def step(fresh, number):
            growths.append(float(noise.growth(number)))
            return compiled(fresh, number)

        return step

    made = run(noise, fresh(), wrap)
    assert_close(made, np.array(c_inverse) @ fresh(), 2 * STEPS)
    assert_close(growths, np.linalg.norm(c_inverse, axis=1), STEPS + FUNCTION, each=True)


@pytest.mark.parametrize(
    ("plan", "memory"),
    [("identity", 0), ("prefix_sum", 1), ("prefix_sum_cut", 2), ("banded_toeplitz", 3)],
)
def test_the_memory_is_bounded_by_the_bands(plan, memory):
    noise = CorrelatedNoise(PLANS[plan], SHAPES)
    run(noise, fresh(steps=3 * STEPS))
    held = sum(a.size for a in noise.state().values())
    assert (noise.memory, held) == (memory, memory * 12)
    assert all(a.dtype == np.float32 for a in noise.state().values())


@pytest.mark.parametrize("plan", ["prefix_sum", "banded_toeplitz"])
def test_a_state_goes_on_where_it_was(plan):
    whole = run(CorrelatedNoise(PLANS[plan], SHAPES), fresh())
    first, second = (CorrelatedNoise(PLANS[plan], SHAPES) for _ in range(2))
    run(first, fresh()[:5])
    second.take_up(first.state())
    assert_close(run(second, fresh()[5:], first=5), whole[5:], 2 * STEPS)
