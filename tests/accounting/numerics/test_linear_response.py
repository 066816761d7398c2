"""The scalar recursion against the explicit matrix, built by running the optimizer itself."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg

from tests.accounting.varying import vary
from tfdp.accounting import describe
from tfdp.accounting.numerics.linear_response import Dynamics, Toeplitz


def make_run(steps, **changes):
    fields = {
        "mechanism": "si_dpsgd",
        "num_examples": max(steps, 1),
        "lot_size": 1,
        "steps": steps,
        "sampling": "cyclic",
        "noise_multiplier": 1.0,
    }
    return describe(**(fields | changes))


def explicit_matrix(run):
    """W column by column: PyTorch's SGD on a unit gradient, rows divided by their noise."""
    lr, beta = run.schedule("learning_rates"), run.schedule("momentum")
    matrix = np.zeros((run.steps, run.steps))
    for s in range(run.steps):
        mean, velocity = 0.0, 0.0
        for t in range(run.steps):
            gradient = 1.0 if t == s else 0.0
            velocity = beta[t] * velocity + gradient
            step = gradient + beta[t] * velocity if run.mechanism.nesterov else velocity
            mean += lr[t] * step
            matrix[t, s] = mean / lr[t]
    return matrix


@st.composite
def runs(draw, max_steps=14):
    steps = draw(st.integers(1, max_steps))
    rates = st.lists(st.floats(0.01, 10), min_size=steps, max_size=steps).map(tuple)
    betas = st.lists(st.floats(0, 0.99), min_size=steps, max_size=steps).map(tuple)
    return make_run(
        steps,
        learning_rates=draw(rates),
        momentum=draw(st.one_of(st.just(0.0), st.just(0.9), betas)),
        nesterov=draw(st.booleans()),
    )


@settings(max_examples=40, deadline=None)
@given(run=runs(), seed=st.integers(0, 1000))
def test_recursions_equal_the_explicit_matrix(run, seed):
    matrix, dynamics = explicit_matrix(run), Dynamics.of(run)
    pattern = np.random.default_rng(seed).integers(0, 3, size=(run.steps, 2))
    expected = np.sum((matrix @ pattern) ** 2, axis=0)
    np.testing.assert_allclose(dynamics.squared_response(pattern), expected, rtol=1e-10)
    every = np.sum((matrix @ np.ones(run.steps)) ** 2)
    assert dynamics.cyclic(1) == pytest.approx(every, rel=1e-10)
    np.testing.assert_allclose(dynamics.column_norms(), np.linalg.norm(matrix, axis=0), rtol=1e-9)
    last = matrix[-1] * run.schedule("learning_rates")[-1]
    np.testing.assert_allclose(dynamics.full_columns(), last, rtol=1e-10)


@settings(max_examples=40, deadline=None)
@given(run=runs(), period=st.integers(1, 6))
def test_cyclic_scan_is_the_maximum_over_offsets(run, period):
    matrix, steps = explicit_matrix(run), run.steps
    patterns = [np.arange(steps) % period == o for o in range(period)]
    expected = max(np.sum((matrix @ p) ** 2) for p in patterns)
    assert Dynamics.of(run).cyclic(period) == pytest.approx(expected, rel=1e-9)


def shuffles(steps, period, seed):
    """Yields participation patterns with one random step in every epoch."""
    rng = np.random.default_rng(seed)
    for _ in range(20):
        chosen = np.arange(0, steps, period)
        chosen = chosen + rng.integers(period, size=len(chosen))
        pattern = np.zeros(steps)
        pattern[chosen[chosen < steps]] = 1
        yield pattern


@settings(max_examples=25, deadline=None)
@given(run=runs(max_steps=10), period=st.integers(1, 4), seed=st.integers(0, 1000))
def test_envelope_covers_every_shuffle(run, period, seed):
    matrix, steps = explicit_matrix(run), run.steps
    bound = Dynamics.of(run).shuffled(period)
    for pattern in shuffles(steps, period, seed):
        assert np.sum((matrix @ pattern) ** 2) <= bound * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(run=runs(max_steps=10), period=st.integers(1, 4), seed=st.integers(0, 1000))
def test_offset_zero_covers_every_shuffle_when_nothing_increases(run, period, seed):
    rates = tuple(sorted(run.schedule("learning_rates"), reverse=True))
    betas = tuple(sorted(run.schedule("momentum"), reverse=True))
    run = vary(run, learning_rates=rates, momentum=betas)
    dynamics, matrix, steps = Dynamics.of(run), explicit_matrix(run), run.steps
    assert dynamics.non_increasing
    bound = dynamics.cyclic(period)
    for pattern in shuffles(steps, period, seed):
        assert np.sum((matrix @ pattern) ** 2) <= bound * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(run=runs(), seed=st.integers(0, 1000), length=st.integers(1, 5), period=st.integers(1, 3))
def test_draws_in_blocks_move_no_more_than_their_numbers(run, seed, length, period):
    dynamics = Dynamics.of(run)
    square = dynamics.joint_square(period, length)
    if length == period == 1:
        assert square == pytest.approx(np.linalg.norm(explicit_matrix(run), 2) ** 2)
    elif not dynamics.non_increasing:
        assert square == math.inf
    rates = tuple(sorted(run.schedule("learning_rates"), reverse=True))
    falling = vary(run, learning_rates=rates, momentum=0.5)
    column = np.random.default_rng(seed).normal(size=run.steps)
    for response, bounded in (
        (explicit_matrix(falling), Dynamics.of(falling)),
        (linalg.toeplitz(np.abs(column), 0 * column), Toeplitz(np.abs(column), run.steps)),
    ):
        check_blocks(response, bounded.joint_square(period, length), period, length, seed)


def check_blocks(matrix, square, period, length, seed):
    """Compares ||W m|| with lambda ||n|| for random draws m and their numbers n in the blocks."""
    turns = -(-len(matrix) // period)
    draws = np.random.default_rng(seed).poisson(0.5, size=(50, turns))
    for offset in range(period):
        columns = matrix[:, offset::period]
        for m in draws[:, : columns.shape[1]]:
            numbers = np.add.reduceat(m, np.arange(0, len(m), length)) if len(m) else m
            assert np.sum((columns @ m) ** 2) <= square * np.sum(numbers**2) * (1 + 1e-12)


def test_many_blocks_of_one_step_are_bounded_by_the_sum_of_a_row():
    few = Toeplitz(np.array([1.0, 0.5, 0.25]), 3000)
    assert few.joint_square(1, 1) == pytest.approx(1.75**2)
    assert few.joint_square(2, 1) == pytest.approx(1.25**2 + 0.5**2)
    assert few.joint_square(3, 1) == pytest.approx(1 + 0.25 + 0.0625)
    assert few.joint_square(1, 2) == math.inf


def norm(run, period):
    return math.sqrt(Dynamics.of(run).cyclic(period))


def test_golden_norms():
    assert norm(make_run(100), 10) == pytest.approx(62.048368229954285, rel=1e-12)
    assert norm(make_run(18750), 1875) == pytest.approx(849.6322733983214, rel=1e-12)
    assert norm(make_run(4, momentum=0.9), 4) == pytest.approx(4.87655831504146, rel=1e-12)
    rates = make_run(3, learning_rates=(1.0, 0.5, 0.25))
    assert Dynamics.of(rates).squared_response([1, 0, 0]) == 21


def test_a_row_without_noise_is_found():
    run = make_run(4, learning_rates=(0.0, 0.0, 1.0, 0.0))
    assert Dynamics.of(run).bare_step == 3
    assert Dynamics.of(vary(run, steps=3)).bare_step is None
