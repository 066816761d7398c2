"""SI-DPSGD is Algorithm 1, and no file holds its means."""

import keras
import numpy as np
import pytest
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

from tests.noise.assertions import assert_normal, assert_unrelated
from tests.optimizers.step_suite import flat, set_flat, wide
from tests.rounding import assert_close, terms_of
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
        set_flat(model, mean)
    return mean


def means(model):
    """Returns the secret means, one array for each variable."""
    state = model.optimizer.secret_state()
    return [state[f"mean_{i}"] for i in range(len(model.trainable_variables))]


def test_without_noise_it_is_sgd_with_the_momentum_of_pytorch():
    model = private(si_dpsgd(noise=0.0, clip=CLIP, momentum=0.9, nesterov=True))
    fit(model, epochs=3, rows=L)
    assert_close(
        weights(model), by_hand(plain(), [0.5] * 3, 0.9, nesterov=True), terms_of(model, L, steps=3)
    )


def test_a_schedule_is_followed_to_the_last_step_and_accounted():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
    model = private(si_dpsgd(noise=0.0, clip=CLIP, rate=schedule))
    fit(model, epochs=2, rows=L)
    fit(model, epochs=2, rows=L)
    expected = by_hand(plain(), [0.5, 0.25, 0.125, 0.0625])
    assert_close(weights(model), expected, terms_of(model, L, steps=4))
    rates = [rate for run in model.privacy.ledger.runs for rate in run.schedule("learning_rates")]
    np.testing.assert_allclose(rates, [0.5, 0.25, 0.125, 0.0625])


def test_noise_on_the_weights_is_fresh_each_step_with_the_right_scale():
    model = private(si_dpsgd(noise=3.0, clip=CLIP, rate=0.5), wide())
    drawn = []
    for _ in range(2):
        model.train_on_batch(*data(L))
        drawn.append(weights(model) - flat(means(model)))
        assert_normal(drawn[-1], 0.5 * CLIP * 3.0 / L)
    assert_unrelated(*drawn)


def test_gradients_are_taken_at_the_noisy_weights():
    model = private(si_dpsgd(noise=2.0, clip=CLIP))
    x, y = data(L)
    model.train_on_batch(x, y)
    expected = (
        flat(means(model)) - 0.5 * clipped_sum(model, x, y, CLIP) / L
    )  # at theta, which the model holds
    model.train_on_batch(x, y)
    assert_close(flat(means(model)), expected, terms_of(model, L, steps=2))


def test_no_file_and_no_variable_holds_the_means(tmp_path):
    # Without noise after the last step, weights and means would be equal.
    model = private(si_dpsgd(noise=1.0, momentum=0.5))
    fit(model)
    for way, save in SAVES.items():
        folder = tmp_path / way
        folder.mkdir()
        save(model, folder)
        secrets = [value.tobytes() for value in model.optimizer.secret_state().values()]
        assert len(secrets) == 8 and min(map(len, secrets)) >= 12  # means and velocities
        written = list(arrays_in(folder))
        shown = model.trainable_variables[0].numpy().tobytes()
        if way not in ("pickle", "ModelCheckpoint"):
            assert any(shown in content for content in written)  # the search can find arrays
        assert not any(secret in content for secret in secrets for content in written), way
    known = [*model.optimizer.variables, *model.variables]
    for mean in means(model):
        assert not any(np.array_equal(mean, v.numpy()) for v in known)


def test_changed_weights_restart_the_means_in_a_new_entry(tmp_path):
    model = private(si_dpsgd(noise=0.0, clip=CLIP, momentum=0.9))
    model.train_on_batch(*data(L))
    model.save_weights(tmp_path / "a.weights.h5")
    model.train_on_batch(*data(L))
    for change in (
        lambda: model.load_weights(tmp_path / "a.weights.h5"),
        lambda: model.set_weights([np.flip(w) * 2 for w in model.get_weights()]),
    ):
        change()
        start, entries = model.get_weights(), len(model.privacy.ledger.runs)
        model.train_on_batch(*data(L))
        reference = plain()
        reference.set_weights(start)
        assert_close(weights(model), by_hand(reference, [0.5]), terms_of(model, L))
        assert len(model.privacy.ledger.runs) == entries + 1


def test_the_learning_rate_cannot_be_assigned():
    model = private(si_dpsgd())
    with pytest.raises(ValueError, match="learning rate"):
        model.optimizer.learning_rate = 0.1
    with pytest.raises(ValueError, match="learning rate"):
        fit(model, callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)])


def test_update_rules_with_hidden_state_are_claimed_only():
    with pytest.raises(ValueError, match="guarantee='claimed'"):
        si_dpsgd(update_rule=keras.optimizers.Adam(0.01))
    # Its name is no excuse.
    rule = keras.optimizers.SGD(0.01, momentum=0.9, name="sgd")
    model = private(si_dpsgd(update_rule=rule, guarantee="claimed"))
    before = weights(model)
    model.train_on_batch(*data(L))
    assert not np.array_equal(weights(model), before)
    assert model.privacy.spent(1e-5, "proven").epsilon == np.inf
    assert model.privacy.spent(1e-5, "claimed").epsilon < np.inf


def test_means_are_released_only_by_an_optimizer_that_accounts_for_it():
    with pytest.raises(RuntimeError, match="release='mu'"):
        si_dpsgd().release_means([])
    model = private(si_dpsgd(release="mu"))
    model.train_on_batch(*data(L))
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
        {"use_ema": True},
        {"weight_decay": 0.1},
        {"rate": float("nan")},
        {"rate": lambda: 0.1},
    ],
)
def test_bad_arguments(options):
    with pytest.raises(ValueError):
        si_dpsgd(**options)


def test_constraints_are_refused():
    layer = keras.layers.Dense(3, kernel_constraint="non_neg")
    with pytest.raises(ValueError, match="constraints"):
        fit(private(si_dpsgd(), model=keras.Sequential([keras.Input((4,)), layer])))
