"""Adaptive clipping: sum and count share one noise multiplier, and the clip norm adapts."""

import dp_accounting
import keras
import numpy as np
import pytest
import tensorflow as tf
from dp_accounting.pld import PLDAccountant
from helpers import data, fit, plain, private, sgd, si_dpsgd, weights

from tests.accounting.varying import vary
from tests.noise.assertions import assert_normal, assert_unrelated
from tests.optimizers.step_suite import flat, gradients_of_rows, set_flat
from tests.rounding import FUNCTION, OF_EPSILON, assert_close, rounding, terms_of
from tfdp.accounting import Run, proven
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import bounded_sum, choose_engine
from tfdp.optimizers.adaptive_clipping import AdaptiveClipping


def adaptive(**kwargs):
    return sgd(**{"clipping": "adaptive"} | kwargs)


# -- the share of the budget ---------------------------------------------------------------------


def test_the_noise_is_split_as_in_theorem_1():
    """z_sum = (z^-2 - (2 sigma_b)^-2)^(-1/2), as the paper prints it; sigma_b is 5 z by default."""
    made = AdaptiveClipping(4.0, quantile_noise_multiplier=3.0)
    assert made.sum_noise == pytest.approx((4.0**-2 - 6.0**-2) ** -0.5)
    assert AdaptiveClipping(1.0).count_noise == 5.0
    assert AdaptiveClipping(1.0).sum_noise == pytest.approx(1.005037815)


def test_sum_and_count_cost_what_one_gaussian_mechanism_does():
    """By dp-accounting, two Gaussian queries with their own noises cost what the stated one costs."""
    made = AdaptiveClipping(1.3, quantile_noise_multiplier=0.8)

    def epsilon(*multipliers):
        accountant = PLDAccountant()
        for multiplier in multipliers:
            accountant.compose(dp_accounting.GaussianDpEvent(multiplier), 3)
        return accountant.get_epsilon(1e-5)

    # The sensitivity of the count is 1/2, so its noise multiplier is 2 sigma_b.
    joint = epsilon(made.sum_noise, 2 * made.count_noise)
    assert joint == pytest.approx(epsilon(1.3), rel=OF_EPSILON)
    assert epsilon(made.sum_noise) < joint  # the count is not free


# -- sensitivity and noise -----------------------------------------------------------------------


@pytest.mark.parametrize(("microbatch_size", "views"), [(1, 1), (3, 1), (1, 3)])
def test_sum_and_count_together_move_by_at_most_one_over_z(microbatch_size, views):
    optimizer = adaptive(noise=2.0, clip=0.2, quantile_noise_multiplier=1.5)
    model, made = private(optimizer), optimizer.adaptive_clipping
    optimizer.build(model.trainable_variables)
    engine, forward = choose_engine("auto", model), Forward(model)

    @tf.function(autograph=False)
    def queries(x, y, weight):
        """The sum and the count of a lot, each in units of its noise."""
        bound = optimizer.bound(model.trainable_variables)
        options = {"microbatch_size": microbatch_size, "views": views}
        bounded = bounded_sum(engine, forward, bound, x, y, weight, **options)
        noise = made.sum_noise * bounded.l2_norm_clip
        parts = [tf.reshape(s / noise, [-1]) for s in bounded.sums]
        return tf.concat([*parts, [made.count(bounded) / made.count_noise]], axis=0)

    def ask(x, y, weight):
        return queries(tf.constant(x), tf.constant(y), tf.constant(weight, tf.float32)).numpy()

    x, y = data(6)
    null, full, rows = np.ones(6), np.ones(6), slice(3 - views, 3)
    null[rows] = 0.0
    base, removed, replaced = ask(x, y, full), [], []
    for extreme in (0.0, 1.0, 1e4, 3e38, np.inf, np.nan):
        for label in range(3):
            other, labels = x.copy(), y.copy()
            other[rows], labels[rows] = extreme, label
            moved = ask(other, labels, full)
            removed.append(np.linalg.norm(moved - ask(other, labels, null)))
            replaced.append(np.linalg.norm(moved - base))
    limit = 1 / 2.0
    rounded = rounding(terms_of(model, 6))
    if microbatch_size == 1:
        # A clipped gradient attains the limit, so half of the limit would be wrong.
        assert_close(max(removed), limit, terms_of(model, 6))
        assert limit < max(replaced) <= 2 * limit * (1 + rounded)
    else:
        assert 0.5 * limit < max(removed + replaced) <= 2 * limit * (1 + rounded)


def test_both_noises_have_the_scale_that_the_accounting_takes():
    """Steps on lots without examples show the noise on the count and on the sum."""
    optimizer = adaptive(
        noise=2.0, clip=0.7, rate=1.0, quantile_noise_multiplier=1.2, quantile_learning_rate=0.1
    )
    model, (x, y) = private(optimizer), data(8)
    counts, sums, clip = [], [], 0.7
    for _ in range(300):
        before = weights(model)
        model.train_on_batch(x, y, sample_weight=np.zeros(8))
        after = optimizer.scalars([])["l2_norm_clip"]
        counts.append(-np.log(after / clip) * 8 / 0.1)
        sums.append((before - weights(model)) * 8 / clip)
        clip = after
    assert_normal(counts, 1.2)
    # The stated noise multiplier, 2, would be too small for the sum alone.
    assert_normal(sums, (2.0**-2 - (2 * 1.2) ** -2) ** -0.5)
    assert_unrelated(counts, *np.transpose(sums))


# -- training ------------------------------------------------------------------------------------


def test_two_steps_by_hand():
    """Without noise: clipped at C_0, then C_1 = C_0 exp(-rate (fraction - quantile)), clipped at it."""
    optimizer = adaptive(noise=0.0, clip=0.5, target_quantile=0.3, quantile_learning_rate=0.7)
    model, reference = private(optimizer, physical_batch_size=4), plain()
    x, y = data(16)
    clip = 0.5
    for rows in (slice(0, 8), slice(8, 16)):
        gradients = [flat(row) for row in gradients_of_rows(reference, x[rows], y[rows])]
        norms = [np.linalg.norm(gradient) for gradient in gradients]
        total = sum(g * min(1.0, clip / n) for g, n in zip(gradients, norms, strict=True))
        set_flat(reference, weights(reference) - 0.5 * total / 8)
        clip *= np.exp(-0.7 * (np.mean(np.array(norms) <= clip) - 0.3))
    fit(model, rows=16)
    assert_close(optimizer.scalars([])["l2_norm_clip"], clip, 2 * FUNCTION)
    assert_close(weights(model), weights(reference), terms_of(model, 8, steps=2))


def test_it_is_accounted_with_the_stated_noise_and_the_clip_norm_is_saved(tmp_path):
    model = private(adaptive(noise=1.5, quantile_noise_multiplier=7.0, target_quantile=0.25))
    fit(model)
    run = model.privacy.current_run
    assert run.contribution.adaptive_clipping and run.mechanism.noise_multiplier == 1.5
    assert proven(run, 1e-5).epsilon == proven(vary(run, adaptive_clipping=False), 1e-5).epsilon
    assert Run.from_dict(run.to_dict()) == run
    model.save(tmp_path / "a.keras")
    loaded = keras.models.load_model(tmp_path / "a.keras")
    before = model.optimizer.scalars([])
    assert before["l2_norm_clip"] != 1.0
    assert loaded.optimizer.scalars([]) == before
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    fit(loaded)
    assert loaded.optimizer.scalars([]) != before


def test_the_clip_norm_stays_a_number():
    made = AdaptiveClipping(1.0)
    for count in (1e30, -1e30):
        clip = 2.0
        for _ in range(60):
            clip = float(made.next_clip_norm(tf.constant(clip), count, 8, 2.0))
        assert 1e-8 <= clip <= 2e8


# -- refusals ------------------------------------------------------------------------------------


def test_mechanisms_with_shared_noise_refuse_it():
    model = private(si_dpsgd(clipping="adaptive"))
    with pytest.raises(ValueError, match="adaptive_clipping"):
        fit(model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_quantile": float("nan")}, "target_quantile"),
        ({"quantile_learning_rate": 0.0}, "quantile_learning_rate"),
        ({"noise": 2.0, "quantile_noise_multiplier": 1.0}, "quantile_noise_multiplier"),
        ({"noise": 0.0, "quantile_noise_multiplier": -1.0}, "quantile_noise_multiplier"),
        ({"clip": 0.0}, "l2_norm_clip"),
        ({"clipping": "global", "target_quantile": 0.5}, "target_quantile"),
    ],
    ids=str,
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        adaptive(**options)
