"""SI-DPSGD is Algorithm 1, and no file holds its means."""

import keras
import numpy as np
import pytest
import scipy.stats
from helpers import (
    LOSS,
    SAVES,
    arrays_in,
    clipped_sum,
    data,
    fit,
    plain,
    private,
    si_dpsgd,
    weights,
)

from tfdp.accounting import proven

CLIP, L = 0.3, 8


def by_hand(model, rates, momentum=0.0, nesterov=False):
    """Full lots of 8 rows without noise: SGD as in PyTorch, with the rate outside the velocity."""
    model.compile(loss=LOSS)
    x, y = data(L)
    mean = weights(model).astype(float)
    velocity = np.zeros_like(mean)
    for rate in rates:
        gradient = clipped_sum(model, x, y, CLIP) / L
        velocity = momentum * velocity + gradient
        mean = mean - rate * (gradient + momentum * velocity if nesterov else velocity)
        split = np.split(mean, np.cumsum([w.size for w in model.get_weights()])[:-1])
        shapes = [w.shape for w in model.get_weights()]
        model.set_weights([a.reshape(s) for a, s in zip(split, shapes, strict=True)])
    return mean


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_without_noise_it_is_sgd_with_the_momentum_of_pytorch(momentum, nesterov):
    model = private(si_dpsgd(noise=0.0, clip=CLIP, momentum=momentum, nesterov=nesterov))
    fit(model, epochs=3, rows=L)
    np.testing.assert_allclose(
        weights(model), by_hand(plain(), [0.5] * 3, momentum, nesterov), atol=1e-5
    )


def test_a_schedule_is_followed_to_the_last_step_and_accounted():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
    model = private(si_dpsgd(noise=0.0, clip=CLIP, rate=schedule))
    fit(model, epochs=2, rows=L)
    fit(model, epochs=2, rows=L)
    np.testing.assert_allclose(
        weights(model), by_hand(plain(), [0.5, 0.25, 0.125, 0.0625]), atol=1e-5
    )
    rates = [rate for run in model.privacy.ledger.runs for rate in run.schedule("learning_rates")]
    np.testing.assert_allclose(rates, [0.5, 0.25, 0.125, 0.0625])


def means(model):
    return [m.numpy() for m in model.optimizer._hidden.means]


def test_noise_on_the_weights_is_fresh_each_step_with_the_right_scale():
    keras.utils.set_random_seed(0)
    model = private(
        si_dpsgd(noise=3.0, clip=CLIP, rate=0.5),
        model=keras.Sequential([keras.Input((4,)), keras.layers.Dense(500), keras.layers.Dense(3)]),
    )
    drawn = []
    for _ in range(2):
        model.train_on_batch(*data(L))
        drawn.append(weights(model) - np.concatenate([m.ravel() for m in means(model)]))

    def p_value(values, stddev):
        tail, square = scipy.stats.chi2(len(values)), (values**2).sum() / stddev**2
        return min(tail.cdf(square), tail.sf(square))

    right = 0.5 * CLIP * 3.0 / L
    for values in drawn:
        assert p_value(values, right) > 1e-9
        assert max(p_value(values, right * 2 / 3), p_value(values, right * 3 / 2)) < 1e-9
    assert abs(np.corrcoef(*drawn)[0, 1]) < 0.1


def test_gradients_are_taken_at_the_noisy_weights():
    model = private(si_dpsgd(noise=2.0, clip=CLIP))
    x, y = data(L)
    model.train_on_batch(x, y)
    before = np.concatenate([m.ravel() for m in means(model)])
    expected = before - 0.5 * clipped_sum(model, x, y, CLIP) / L  # at theta, which the model holds
    model.train_on_batch(x, y)
    after = np.concatenate([m.ravel() for m in means(model)])
    np.testing.assert_allclose(after, expected, atol=1e-5)


@pytest.mark.parametrize("way", SAVES)
def test_no_file_holds_the_means(way, tmp_path):
    # Without noise after the last step, weights and means would be equal.
    model = private(si_dpsgd(noise=1.0, momentum=0.5))
    fit(model)
    SAVES[way](model, tmp_path)
    hidden = model.optimizer._hidden
    secrets = [m.numpy().tobytes() for m in hidden.means]
    secrets += [v.numpy().tobytes() for v in hidden.velocities]
    written = list(arrays_in(tmp_path))
    shown = model.trainable_variables[0].numpy().tobytes()
    if way not in ("pickle", "ModelCheckpoint"):
        assert any(shown in content for content in written)  # the search can find arrays
    for secret in secrets:
        assert len(secret) >= 12
        assert not any(secret in content for content in written)


def test_neither_variables_nor_config_hold_the_means():
    model = private(si_dpsgd())
    fit(model)
    known = [*model.optimizer.variables, *model.variables]
    for mean in means(model):
        assert not any(np.array_equal(mean, v.numpy()) for v in known)
    assert "mean" not in model.optimizer.get_config()
    assert not any("mean" in v.path for v in model.optimizer.variables)


@pytest.mark.parametrize("through_file", [False, True])
def test_changed_weights_restart_the_means_in_a_new_entry(through_file, tmp_path):
    model = private(si_dpsgd(noise=0.0, clip=CLIP, momentum=0.9))
    fit(model, epochs=2, rows=L)
    if through_file:
        model.save_weights(tmp_path / "a.weights.h5")
        fit(model, rows=L)
        model.load_weights(tmp_path / "a.weights.h5")
    else:
        model.set_weights([np.flip(w) * 2 for w in model.get_weights()])
    start = model.get_weights()
    entries = len(model.privacy.ledger.runs)
    model.train_on_batch(*data(L))
    reference = plain()
    reference.set_weights(start)
    np.testing.assert_allclose(weights(model), by_hand(reference, [0.5]), atol=1e-5)
    assert len(model.privacy.ledger.runs) == entries + 1


def test_means_never_go_on_from_other_weights_than_were_shown():
    model = private(si_dpsgd(noise=0.0, clip=CLIP))
    model.train_on_batch(*data(L))
    model.set_weights([2 * w for w in model.get_weights()])
    reference = plain()
    reference.set_weights(model.get_weights())
    model.train_on_batch(*data(L))
    np.testing.assert_allclose(weights(model), by_hand(reference, [0.5]), atol=1e-5)
    assert [run.steps for run in model.privacy.ledger.runs] == [1, 1]


def test_backup_and_restore_goes_on_from_what_was_saved(tmp_path):
    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)

    first = private(si_dpsgd(noise=0.0, clip=CLIP))
    fit(first, epochs=2, rows=L, callbacks=[backup()])
    second = private(si_dpsgd(noise=0.0, clip=CLIP), model=plain(seed=9))
    fit(second, epochs=3, rows=L, callbacks=[backup()])
    np.testing.assert_allclose(weights(second), by_hand(plain(), [0.5] * 3), atol=1e-5)
    assert sum(run.steps for run in second.privacy.ledger.runs) == 3


def test_the_learning_rate_cannot_be_assigned():
    model = private(si_dpsgd())
    with pytest.raises(ValueError, match="enters the accounting"):
        model.optimizer.learning_rate = 0.1
    with pytest.raises(ValueError, match="enters the accounting"):
        fit(model, callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)])


def test_update_rules_with_hidden_state_are_claimed_only():
    with pytest.raises(ValueError, match="guarantee='claimed'"):
        si_dpsgd(update_rule=keras.optimizers.Adam(0.01))
    for rule in (keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.01, momentum=0.9, name="sgd")):
        model = private(si_dpsgd(update_rule=rule, guarantee="claimed"))
        before = weights(model)
        fit(model)
        fit(model)
        assert not np.array_equal(weights(model), before)
        assert model.privacy.spent(1e-5, "proven").epsilon == np.inf
        assert model.privacy.spent(1e-5, "claimed").epsilon < np.inf


def test_means_are_released_only_by_an_optimizer_that_accounts_for_it():
    model = private(si_dpsgd())
    fit(model)
    with pytest.raises(RuntimeError, match="release='mu'"):
        model.optimizer.release_means(model.trainable_variables)
    model = private(si_dpsgd(release="mu"))
    fit(model)
    secret = means(model)
    assert proven(model.privacy.current_run, 1e-5).epsilon == np.inf
    model.optimizer.release_means(model.trainable_variables)
    for variable, mean in zip(model.trainable_variables, secret, strict=True):
        np.testing.assert_array_equal(variable.numpy(), np.float32(mean))


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 1.0},
        {"release": "nu"},
        {"guarantee": "none"},
        {"use_ema": True},
        {"weight_decay": 0.1},
        {"clipnorm": 1.0},
        {"rate": -1.0},
        {"rate": float("nan")},
        {"rate": lambda: 0.1},
    ],
)
def test_bad_arguments(options):
    with pytest.raises(ValueError, match=r"Expected"):
        si_dpsgd(**options)


def test_constraints_are_refused():
    layer = keras.layers.Dense(3, kernel_constraint="non_neg")
    with pytest.raises(ValueError, match="constraints"):
        fit(private(si_dpsgd(), model=keras.Sequential([keras.Input((4,)), layer])))


@pytest.mark.slow
def test_xla_follows_the_same_algorithm():
    model = private(si_dpsgd(noise=0.0, clip=CLIP, momentum=0.9), compiled={"jit_compile": True})
    fit(model, epochs=2, rows=L)
    np.testing.assert_allclose(weights(model), by_hand(plain(), [0.5] * 2, 0.9), atol=1e-5)
    fit(model, rows=L)
    assert len(model.privacy.ledger.runs) in (1, 2)
