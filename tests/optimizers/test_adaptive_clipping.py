"""Adaptive clipping: sum and count share one noise multiplier, and the clip norm adapts."""

import dataclasses
import types

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from helpers import data, fit, plain, private, sgd, si_dpsgd, weights

import tfdp
from tfdp.accounting import Run, proven
from tfdp.accounting.mechanisms.base import Mechanism
from tfdp.accounting.mechanisms.discrete_sgd import DiscreteSGD
from tfdp.accounting.mechanisms.matrix import Matrix
from tfdp.accounting.mechanisms.si_dpsgd import SIDPSGD
from tfdp.gradients.contract import BoundedSum
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import bounded_sum, choose_engine
from tfdp.optimizers.adaptive_clipping import AdaptiveClipping


def adaptive(**kwargs):
    return sgd(**{"clipping": "adaptive"} | kwargs)


# -- the share of the budget ---------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "count_noise"), [(1.1, 12.8), (1.0, 0.6), (4.0, 3.0)])
def test_theorem_1(noise, count_noise):
    """z_sum = (z^-2 - (2 sigma_b)^-2)^(-1/2), as the paper prints it."""
    made = AdaptiveClipping(noise, count_noise=count_noise)
    assert made.sum_noise == pytest.approx((noise**-2 - (2 * count_noise) ** -2) ** -0.5)
    assert made.sum_noise > noise


def test_golden_value():
    """z = 1 and sigma_b = 100 / 20, as in the paper's experiments with 100 clients in a round."""
    assert AdaptiveClipping(1.0, count_noise=5.0).sum_noise == pytest.approx(1.005037815, rel=1e-9)
    assert AdaptiveClipping(1.0).count_noise == 5.0


@pytest.mark.parametrize("count_noise", [0.8, 3.0, 50.0])
def test_sum_and_count_cost_what_one_gaussian_mechanism_does(count_noise):
    """By dp-accounting, two Gaussian queries with their own noises cost what the stated one costs."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    z = 1.3
    made = AdaptiveClipping(z, count_noise=count_noise)

    def epsilon(*multipliers):
        accountant = PLDAccountant()
        for multiplier in multipliers:
            accountant.compose(dp_accounting.GaussianDpEvent(multiplier), 3)
        return accountant.get_epsilon(1e-5)

    # The sensitivity of the count is 1/2, so its noise multiplier is 2 sigma_b.
    joint = epsilon(made.sum_noise, 2 * made.count_noise)
    assert joint == pytest.approx(epsilon(z), rel=1e-3)
    # Broken variants: the count costs nothing, or it is not centred and has sensitivity 1.
    assert epsilon(made.sum_noise) < joint
    if count_noise < 5:
        assert epsilon(made.sum_noise, made.count_noise) > 1.02 * joint


# -- sensitivity ---------------------------------------------------------------------------------


def queries(model, optimizer, microbatch_size=1):
    """Returns a function that maps a lot to its sum and count, each in units of its noise."""
    engine, forward = choose_engine("auto", model), Forward(model)

    @tf.function(autograph=False)
    def lot(x, y, weight):
        bound = optimizer.bound(model.trainable_variables)
        bounded = bounded_sum(engine, forward, bound, x, y, weight, microbatch_size=microbatch_size)
        made = optimizer._adaptive
        noise = made.sum_noise * bounded.l2_norm_clip
        parts = [tf.reshape(s / noise, [-1]) for s in bounded.sums]
        return tf.concat([*parts, [made.count(bounded) / made.count_noise]], axis=0)

    return lambda x, y, weight: lot(
        tf.constant(x), tf.constant(y), tf.constant(weight, tf.float32)
    ).numpy()


@pytest.mark.parametrize("microbatch_size", [1, 3])
def test_sum_and_count_together_move_by_at_most_one_over_z(microbatch_size):
    optimizer = adaptive(noise=2.0, clip=0.05, quantile_noise_multiplier=1.5)
    model = private(optimizer)
    optimizer.build(model.trainable_variables)
    optimizer._clip_norm.assign(0.2)  # the clip norm has changed since the start
    x, y = data(6)
    null, full = np.array([1.0, 1, 0, 1, 1, 1]), np.ones(6)
    ask = queries(model, optimizer, microbatch_size)
    base, removed, replaced = ask(x, y, full), [], []
    for extreme in (0.0, 1.0, 1e4, 3e38, np.inf, np.nan):
        for label in range(3):
            other, labels = x.copy(), y.copy()
            other[2], labels[2] = extreme, label
            moved = ask(other, labels, full)
            removed.append(np.linalg.norm(moved - ask(other, labels, null)))
            replaced.append(np.linalg.norm(moved - base))
    limit = 1 / 2.0
    if microbatch_size == 1:
        # A clipped gradient attains the limit, so half of the limit would be wrong.
        assert max(removed) == pytest.approx(limit, rel=1e-4)
        assert limit < max(replaced) <= 2 * limit * (1 + 1e-5)
    else:
        assert 0.5 * limit < max(removed + replaced) <= 2 * limit * (1 + 1e-5)


def test_a_count_that_is_not_centred_is_caught():
    @dataclasses.dataclass(frozen=True)
    class NotCentred(AdaptiveClipping):
        def count(self, bounded):
            present = tf.cast(bounded.present, tf.float32)
            return tf.reduce_sum(present * (1.0 - bounded.clipped))

    optimizer = adaptive(noise=2.0, clip=10.0, quantile_noise_multiplier=1.01)
    model = private(optimizer)
    x, y = data(6)
    moved = {}
    for made in (optimizer._adaptive, NotCentred(2.0, count_noise=1.01)):
        optimizer._adaptive = made
        ask = queries(model, optimizer)
        gone = ask(x, y, np.array([0.0, 1, 1, 1, 1, 1]))
        moved[type(made)] = np.linalg.norm(ask(x, y, np.ones(6)) - gone)
    assert moved[AdaptiveClipping] <= 1 / 2.0 < moved[NotCentred]


# -- noise ---------------------------------------------------------------------------------------


STEPS, LOT, RATE = 300, 8, 0.1


def noise_of_steps(adaptive_class=AdaptiveClipping):
    """Returns the released counts and sums of lots without examples, for every step."""
    optimizer = adaptive(
        noise=2.0,
        clip=0.7,
        rate=1.0,
        seed=4,
        quantile_noise_multiplier=1.2,
        quantile_learning_rate=RATE,
    )
    optimizer._adaptive = adaptive_class(2.0, learning_rate=RATE, count_noise=1.2)
    variable = keras.Variable(np.zeros(4, "float32"), name="kernel")
    optimizer.build([variable])
    run = types.SimpleNamespace(noise_multiplier=2.0, l2_norm_clip=0.7)
    session = types.SimpleNamespace(run=run, divisor=LOT, value=lambda name: getattr(run, name))

    @tf.function(autograph=False)
    def step():
        bound, nobody = optimizer.bound([variable]), tf.zeros([LOT])
        lot = BoundedSum(
            sums=[tf.zeros(4)],
            norms=nobody,
            present=nobody > 0,
            clipped=nobody,
            non_finite=tf.constant(0),
            losses=nobody,
            output_losses=tf.zeros([LOT, 0]),
            outputs=nobody,
            state=[],
            sensitivity=bound.sensitivity(),
            l2_norm_clip=bound.l2_norm_clip,
            relative_sensitivity=1.0,
        )
        optimizer.update(lot, session, [variable], [None])

    counts, sums = [], []
    for _ in range(STEPS):
        before, clip = variable.numpy(), float(optimizer._clip_norm.numpy())
        step()
        moved = np.log(float(optimizer._clip_norm.numpy()) / clip)
        counts.append(-moved * LOT / RATE)
        sums.append((before - variable.numpy()) * LOT / clip)
    return np.array(counts), np.concatenate(sums)


def p_value(drawn, stddev):
    tail, square = scipy.stats.chi2(len(drawn)), (drawn**2).sum() / stddev**2
    return min(tail.cdf(square), tail.sf(square))


def test_both_noises_have_the_scale_that_the_accounting_takes():
    counts, sums = noise_of_steps()
    z_sum = (2.0**-2 - (2 * 1.2) ** -2) ** -0.5
    for drawn, stddev in ((counts, 1.2), (sums, z_sum)):
        assert p_value(drawn, stddev) > 1e-6
        assert max(p_value(drawn, stddev * 2 / 3), p_value(drawn, stddev * 3 / 2)) < 1e-6
    # The stated noise multiplier is too small for the sum alone, and this test detects that.
    assert p_value(sums, 2.0) < 1e-6
    # Count and sum have independent noise.
    for coordinate in sums.reshape(-1, 4).T:
        assert abs(np.corrcoef(counts, coordinate)[0, 1]) < 0.25


def test_a_noisy_count_without_noise_on_the_sum():
    """A planned run has noise multiplier 0 until it is calibrated; nothing is proven about it."""
    optimizer = adaptive(noise=0.0, quantile_noise_multiplier=3.0)
    model = private(optimizer)
    fit(model, rows=8)
    assert np.isfinite(weights(model)).all() and optimizer.scalars([])["l2_norm_clip"] != 1.0
    assert proven(model.privacy.current_run, 1e-5).epsilon == np.inf


def test_broken_variants_are_caught():
    class FreeCount(AdaptiveClipping):
        """A broken variant that releases the count without noise."""

        def __post_init__(self):
            object.__setattr__(self, "count_noise", 0.0)

        sum_noise = 2.0

    class FreeSum(AdaptiveClipping):
        """A broken variant in which the sum alone uses the whole budget."""

        sum_noise = 2.0

    assert p_value(noise_of_steps(FreeCount)[0], 1.2) < 1e-6
    assert p_value(noise_of_steps(FreeSum)[1], (2.0**-2 - (2 * 1.2) ** -2) ** -0.5) < 1e-6


# -- training ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"compiled": {"run_eagerly": True}},
        {"compiled": {"jit_compile": True}, "physical_batch_size": 4},
        {"engine": "vectorized", "physical_batch_size": 4},
    ],
    ids=str,
)
def test_a_step_by_hand(setting):
    """Without noise: clipped at C_0, then C_1 = C_0 exp(-rate (fraction - quantile)), clipped at it."""
    optimizer = adaptive(noise=0.0, clip=0.5, target_quantile=0.3, quantile_learning_rate=0.7)
    model, reference = private(optimizer, **setting), plain()
    x, y = data(16)
    clip = 0.5
    for rows in (slice(0, 8), slice(8, 16)):
        total, fraction = norms_and_sum(reference, x[rows], y[rows], clip)
        moved = weights(reference) - 0.5 * total / 8
        shapes = [w.shape for w in reference.get_weights()]
        split = np.split(moved, np.cumsum([np.prod(s) for s in shapes])[:-1])
        reference.set_weights([w.reshape(s) for w, s in zip(split, shapes, strict=True)])
        clip *= np.exp(-0.7 * (fraction - 0.3))
    fit(model, rows=16)
    assert optimizer.scalars([])["l2_norm_clip"] == pytest.approx(clip, rel=1e-5)
    # With XLA, sums leave 3e-5 of themselves as room for rounding.
    np.testing.assert_allclose(weights(model), weights(reference), atol=1e-5)


def norms_and_sum(model, x, y, clip):
    total, within = 0.0, 0
    for row in range(len(x)):
        with tf.GradientTape() as tape:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(
                y[row : row + 1], model(x[row : row + 1])
            )
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        flat = np.concatenate([g.numpy().ravel() for g in gradients])
        norm = np.linalg.norm(flat)
        within += norm <= clip
        total = total + flat * min(1.0, clip / norm)
    return total, within / len(x)


@pytest.mark.parametrize("first", [0.01, 30.0])
def test_the_clip_norm_finds_the_quantile(first):
    """Linear regression with frozen weights, in which gradient norms are those of the inputs."""
    rows = 256
    norms = np.sort(np.random.default_rng(0).lognormal(0.0, 0.5, rows)).astype("float32")
    optimizer = adaptive(
        noise=1.0, clip=first, rate=0.0, target_quantile=0.8, quantile_learning_rate=0.5
    )
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = tfdp.make_private(keras.Sequential([keras.Input((1,)), layer]))
    model.compile(optimizer, loss=keras.losses.MeanSquaredError())
    # d/dw (w x - y)^2 = -2 x y at w = 0.
    x, y = norms[:, None], np.full(rows, 0.5, "float32")
    model.fit(x, y, batch_size=rows, shuffle=False, epochs=60, verbose=0)
    found = optimizer.scalars([])["l2_norm_clip"]
    assert np.mean(norms <= found) == pytest.approx(0.8, abs=0.06)


def test_accounting_sees_the_stated_noise_and_the_statement_names_it():
    model = private(adaptive(noise=1.5))
    fit(model)
    run = model.privacy.current_run
    assert run.adaptive_clipping and run.noise_multiplier == 1.5
    assert proven(run, 1e-5).epsilon == proven(run.with_(adaptive_clipping=False), 1e-5).epsilon
    text = model.privacy.statement(1e-5)
    assert "adaptive clipping included" in text
    assert "noisy count of unclipped gradients" in text
    assert Run.from_dict(run.to_dict()) == run


def test_the_clip_norm_is_saved_and_goes_on(tmp_path):
    model = private(adaptive(quantile_noise_multiplier=7.0, target_quantile=0.25))
    fit(model)
    model.save(tmp_path / "a.keras")
    loaded = tfdp.make_private(keras.models.load_model(tmp_path / "a.keras"))
    before = model.optimizer.scalars([])
    assert before["l2_norm_clip"] != 1.0
    assert loaded.optimizer.scalars([]) == before
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    fit(loaded)
    assert loaded.optimizer.scalars([]) != before


def test_the_clip_norm_stays_a_number():
    made = AdaptiveClipping(1.0)
    for count, clip in [(1e30, 0.0), (-1e30, 0.0), (np.float32(3e38), 0.0)]:
        clip = 2.0
        for _ in range(60):
            clip = float(made.next_clip_norm(tf.constant(clip), count, 8, 2.0))
        assert 1e-8 <= clip <= 2e8


# -- refusals ------------------------------------------------------------------------------------


class AnythingNew(Mechanism):
    pass


@pytest.mark.parametrize("mechanism", [SIDPSGD, Matrix, DiscreteSGD, AnythingNew])
def test_other_mechanisms_refuse_it(mechanism):
    class Other(tfdp.DPKerasSGDOptimizer):
        pass

    Other.mechanism = mechanism
    with pytest.raises(ValueError, match="needs one clip norm for all steps"):
        Other(l2_norm_clip=1.0, noise_multiplier=1.0, clipping="adaptive")


def test_si_dpsgd_and_its_accounting_refuse_it():
    with pytest.raises(ValueError, match=r"SI-DPSGD.*one clip norm for all steps"):
        si_dpsgd(clipping="adaptive")
    fields = dict(num_examples=8, lot_size=4, steps=1, sampling="cyclic", noise_multiplier=1.0)
    with pytest.raises(ValueError, match="private one by one"):
        Run(mechanism="si_dpsgd", adaptive_clipping=True, **fields)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_quantile": 1.5}, "target_quantile"),
        ({"target_quantile": float("nan")}, "target_quantile"),
        ({"quantile_learning_rate": 0.0}, "quantile_learning_rate"),
        ({"noise": 2.0, "quantile_noise_multiplier": 1.0}, "above half the noise multiplier"),
        ({"quantile_noise_multiplier": 0.0}, "above half the noise multiplier"),
        ({"quantile_noise_multiplier": float("inf")}, "quantile_noise_multiplier"),
        ({"noise": 0.0, "quantile_noise_multiplier": -1.0}, "quantile_noise_multiplier"),
        ({"clip": 0.0}, "l2_norm_clip"),
        ({"clipping": "global", "target_quantile": 0.5}, "clipping='adaptive' only"),
    ],
    ids=str,
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        adaptive(**options)
