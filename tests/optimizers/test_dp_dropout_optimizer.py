"""DP dropout and SGLD: the paper's step, its noise and what the accounting declares."""

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from helpers import LOSS, data, fit, plain, private, weights
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tfdp
from tfdp.accounting import claimed, noise_for, proven
from tfdp.callbacks import PrivacyTensorBoard
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import bounded_sum, choose_engine
from tfdp.optimizers.langevin import PowerDecay


def dp_dropout(noise=0.0, clip=0.3, rate=0.8, **kwargs):
    return tfdp.DPDropoutOptimizer(rate, l2_norm_clip=clip, noise_multiplier=noise, **kwargs)


def sgld(noise=0.0, clip=0.3, rate=0.8, num_examples=24, **kwargs):
    return tfdp.SGLDOptimizer(
        rate, l2_norm_clip=clip, noise_multiplier=noise, num_examples=num_examples, **kwargs
    )


def layerwise_sum(model, x, y, clip):
    """The sum of gradients with each layer clipped at C, by a tape over one example at a time."""
    total = 0.0
    for row in range(len(x)):
        with tf.GradientTape() as tape:
            loss = LOSS(y[row : row + 1], model(x[row : row + 1]))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        gradients = [g.numpy() for g in gradients]
        parts = []
        for kernel, bias in zip(gradients[::2], gradients[1::2], strict=True):
            flat = np.concatenate([kernel.ravel(), bias.ravel()])
            parts.append(flat * min(1.0, clip / np.linalg.norm(flat)))
        total = total + np.concatenate(parts)
    return total


@pytest.mark.parametrize("compiled", [{}, {"run_eagerly": True}, {"jit_compile": True}], ids=str)
def test_two_steps_by_hand(compiled):
    model = private(dp_dropout(learning_rate_exponent=0.5), compiled=compiled)
    reference, (x, y) = plain(), data(16)
    for t, rows in enumerate((slice(0, 8), slice(8, 16)), start=1):
        gradient = layerwise_sum(reference, x[rows], y[rows], 0.3) / 8
        moved = weights(reference) - 0.8 / t**0.5 / 2 * gradient
        shapes = [w.shape for w in reference.get_weights()]
        split = np.split(moved, np.cumsum([np.prod(s) for s in shapes])[:-1])
        reference.set_weights([w.reshape(s) for w, s in zip(split, shapes, strict=True)])
    fit(model, rows=16)
    np.testing.assert_allclose(weights(model), weights(reference), atol=2e-6)


def wide():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(400), keras.layers.Dense(3)])


def noise_on_weights(make, seed):
    """Returns the noise on the weights after one step of eight examples, from two runs."""
    moved = []
    for made in (make(seed=seed), make(seed=seed + 1)):
        model = private(made, model=wide())
        model.fit(
            np.ones((8, 4), "float32"), np.zeros(8, int), batch_size=8, shuffle=False, verbose=0
        )
        moved.append(weights(model))
    return (moved[1] - moved[0]) / np.sqrt(2)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        # eta / 2 * 2 C sigma / L with sigma = z / 2.
        (lambda **seed: dp_dropout(noise=3.0, **seed), 0.8 / 2 * 2 * 0.3 * 1.5 / 8),
        # The Langevin noise sqrt(eta / N) is 0.183, and larger than the private noise.
        (lambda **seed: sgld(noise=3.0, **seed), (0.8 / 24) ** 0.5),
        # With more examples, the private noise is larger.
        (lambda **seed: sgld(noise=3.0, num_examples=10**6, **seed), 0.8 / 2 * 0.3 * 3.0 / 8),
    ],
    ids=["dp_dropout", "sgld_posterior", "sgld_private"],
)
def test_noise_has_the_stated_scale(make, expected):
    drawn = noise_on_weights(make, seed=5)

    def p_value(stddev):
        tail, square = scipy.stats.chi2(len(drawn)), (drawn**2).sum() / stddev**2
        return min(tail.cdf(square), tail.sf(square))

    assert p_value(expected) > 1e-6
    assert max(p_value(expected * 2 / 3), p_value(expected * 3 / 2)) < 1e-6


@pytest.mark.parametrize("make", [dp_dropout, sgld])
def test_the_noise_is_never_below_what_is_accounted(make):
    """The bound has the sensitivity and the noise multiplier that the run declares."""
    for clipping, groups in [("each_layer", 2), ("per_layer", 1), ("global", 1)]:
        optimizer = make(noise=2.0, clipping=clipping)
        model = private(optimizer)
        bound = optimizer.bound(model.trainable_variables)
        run = optimizer.run_fields(model.trainable_variables)
        assert (run["clip_groups"], run["noise_multiplier"]) == (groups, 2.0)
        assert bound.sensitivity() == pytest.approx(0.3 * np.sqrt(groups))


def test_layers_that_are_clipped_one_by_one_are_accounted_so():
    def spent(clipping):
        model = private(dp_dropout(noise=3.0, clipping=clipping))
        fit(model)
        return model.privacy.current_run

    one, each = spent("global"), spent("each_layer")
    assert (one.clip_groups, each.clip_groups) == (1, 2)
    same = one.with_(noise_multiplier=3.0 / np.sqrt(2))
    assert proven(each, 1e-5).epsilon == proven(same, 1e-5).epsilon > proven(one, 1e-5).epsilon


def test_the_papers_noise_comes_back_from_its_claim_with_what_is_proven():
    """MNIST, epsilon 0.5, two layers, each clipped at C."""
    model = keras.Sequential(
        [keras.Input((784,)), keras.layers.Dense(1000, "relu"), keras.layers.Dense(10)]
    )
    for composition, sigma, sound in [("ac", 10.8756, 0.2519), ("zcdp", 3.2298, 1.0006)]:
        optimizer = dp_dropout(clip=3.0, composition=composition)
        fields = optimizer.run_fields(model.trainable_variables)
        run = tfdp.accounting.Run(
            num_examples=60_000, lot_size=600, steps=20_000, sampling="poisson", **fields
        )
        z = noise_for(0.5, 1e-4, run, kind="claimed")
        assert z / 2 == pytest.approx(sigma, rel=2e-4)
        done = run.with_(noise_multiplier=z)
        assert claimed(done, 1e-4).epsilon == pytest.approx(0.5, rel=1e-4)
        assert proven(done, 1e-4).epsilon == pytest.approx(sound, rel=6e-3)


class NoClip(GlobalL2Clip):
    """A broken bound, which does not clip."""

    def scales(self, square_norms):
        return tf.ones_like(square_norms)


def sums(model, bound, x, y, weight):
    forward, engine = Forward(model), choose_engine("auto", model)
    lot = bounded_sum(engine, forward, bound, x, y, tf.constant(weight, tf.float32))
    return np.concatenate([s.numpy().ravel() for s in lot.sums])


def largest_move(model, bound):
    """Returns how far the sum moves if one of four examples becomes a null example."""
    x, y = data(4)
    full = sums(model, bound, x, y, np.ones(4))
    return max(
        np.linalg.norm(full - sums(model, bound, x, y, 1.0 - np.eye(4)[i])) for i in range(4)
    )


def test_sensitivity_and_broken_variants_of_clipping_by_layer():
    optimizer = dp_dropout(clip=0.01)
    model = private(optimizer)
    bound = optimizer.bound(model.trainable_variables)
    assert bound.sensitivity() == 0.01 * np.sqrt(2)
    # Every layer's gradient is longer, so the bound is attained, and exceeds that of one group.
    moved = largest_move(model, bound)
    assert moved == pytest.approx(bound.sensitivity(), rel=1e-4)
    assert moved > 1.4 * GlobalL2Clip(0.01).sensitivity()
    assert largest_move(model, NoClip(0.01)) > 2 * bound.sensitivity()


def test_the_gradient_of_a_lot_clipped_as_a_whole_moves_by_twice_the_clip_norm():
    """The other interpretation of Algorithm 1: one example can reverse the clipped gradient."""
    model = private(model=keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)]))
    x = np.array([[1.0]] * 3 + [[1e3]], np.float32)
    y = np.array([0, 0, 0, 1])
    model.set_weights([np.zeros((1, 2)), np.zeros(2)])
    parts = [sums(model, NoClip(1.0), x, y, weight) for weight in ([1, 1, 1, 1], [1, 1, 1, 0])]
    clipped = [part * min(1.0, 0.01 / np.linalg.norm(part)) for part in parts]
    assert np.linalg.norm(clipped[0] - clipped[1]) > 1.8 * GlobalL2Clip(0.01).sensitivity()


def scalars(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [float(tf.make_ndarray(e.tensor_proto)) for e in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
        if tag.startswith("mechanism/")
    }


def test_implied_dropout_rates_in_tensorboard(tmp_path):
    model = private(dp_dropout(noise=1.6, clip=0.5, learning_rate_exponent=0.0))
    fit(model, callbacks=[PrivacyTensorBoard(tmp_path, 1e-5)])
    values = scalars(tmp_path)
    expected = {}
    for layer in model.layers:
        squares = np.concatenate([w.ravel() for w in layer.get_weights()]) ** 2
        name = layer.kernel.path.rpartition("/")[0]
        alpha = 4 * 0.5**2 * 0.8**2 / squares.mean()
        expected[f"mechanism/dropout_alpha/{name}"] = [alpha]
        expected[f"mechanism/dropout_alpha_of_step/{name}"] = [alpha * (0.8 / 2 / 8) ** 2]
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        assert values[name] == pytest.approx(value, rel=1e-5)


def test_weights_of_zero_have_an_infinite_dropout_rate_or_none():
    zero = keras.Variable(np.zeros(3), name="kernel")
    assert set(dp_dropout(noise=1.0).scalars([zero]).values()) == {np.inf}
    assert set(dp_dropout(noise=0.0).scalars([zero]).values()) == {0.0}


def test_rates_of_the_schedule():
    steps = [PowerDecay(0.1, 1.0)(t) for t in range(4)]
    np.testing.assert_allclose(steps, [0.1, 0.05, 0.1 / 3, 0.025], rtol=1e-6)
    rounds = [PowerDecay(0.1, 2.0, steps_per_round=2)(t) for t in range(4)]
    np.testing.assert_allclose(rounds, [0.1, 0.1, 0.025, 0.025], rtol=1e-6)


@pytest.mark.parametrize(
    "optimizer",
    [
        dp_dropout(noise=1.5, learning_rate_exponent=0.5, steps_per_epoch=2, composition="zcdp_a"),
        dp_dropout(rate=keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5)),
        sgld(noise=1.5, composition="ac", clipping="global"),
    ],
    ids=["dp_dropout", "schedule", "sgld"],
)
def test_round_trips(optimizer, tmp_path):
    again = type(optimizer).from_config(optimizer.get_config())
    assert again.get_config() == optimizer.get_config()
    model = private(optimizer)
    fit(model)
    model.save(tmp_path / "a.keras")
    loaded = keras.models.load_model(tmp_path / "a.keras").optimizer
    assert loaded.get_config() == optimizer.get_config()
    assert loaded.ledger.runs == model.privacy.ledger.runs
    assert model.privacy.ledger.runs[0].composition == optimizer.composition


@pytest.mark.parametrize("make", [dp_dropout, sgld])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 0.9}, "momentum"),
        ({"nesterov": True}, "nesterov"),
        ({"composition": "rdp"}, "composition"),
        ({"rate": 0.0}, "learning_rate"),
        ({"learning_rate_exponent": -1.0}, "learning_rate_exponent"),
        ({"learning_rate_exponent": float("nan")}, "learning_rate_exponent"),
        ({"steps_per_epoch": 0}, "steps_per_epoch"),
        ({"rate": PowerDecay(0.1, 1.0), "learning_rate_exponent": 1.0}, "schedule already"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_bad_arguments(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_sgld_needs_the_number_of_examples():
    with pytest.raises(ValueError, match="num_examples"):
        sgld(num_examples=0)
    with pytest.raises(TypeError, match="num_examples"):
        tfdp.SGLDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0)
