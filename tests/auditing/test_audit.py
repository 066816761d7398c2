"""Whole audits: what is sound stands, what is claimed too small is refuted."""

import json

import keras
import numpy as np
import pytest
from keras import layers

import tfdp
from tfdp import auditing
from tfdp.accounting import Strategy
from tfdp.experiments import Experiment, audit_experiment
from tfdp.optimizers import MECHANISMS

CANARIES = 4000
CLIP = 1.0
# A confidence with which eight mechanisms do not alarm by luck.
CONFIDENCE = 0.9999

SETTINGS = {
    "dpsgd": {},
    "si_dpsgd": {},
    "dp_dropout": {"clipping": "global"},
    "sgld": {"clipping": "global", "num_examples": 10**12},
    "matrix": {"strategy": Strategy(name="banded_toeplitz", coefficients=(1.0, 0.5, 0.2))},
    "discrete_sgd": {"noise": "gaussian", "denoise": False, "encode": False},
}
VARIANTS = {name: (name, options) for name, options in SETTINGS.items()} | {
    "dpsgd, momentum": ("dpsgd", {"momentum": 0.9}),
    "dpsgd, automatic clipping": ("dpsgd", {"clipping": "automatic"}),
}


def one_lot(mechanism, steps=4, multiplier=0.5, **options):
    """Trains in lots of all examples, so that a canary takes part in each of the steps."""

    def train(world):
        draw = np.random.default_rng(0)
        x, y = draw.normal(size=(40, 3)).astype("float32"), draw.integers(0, 2, 40)
        model = world.model(keras.Sequential([keras.Input((3,)), layers.Dense(2)]))
        model = tfdp.make_private(model)
        optimizer = MECHANISMS[mechanism](keras.optimizers.SGD)(
            learning_rate=0.1, l2_norm_clip=CLIP, noise_multiplier=multiplier, **options
        )
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        x, y = world.data(x, y)
        lots = tfdp.data.make_lots("cyclic", x, y, lot_size=len(y))
        model.fit(lots, epochs=steps, verbose=0, callbacks=world.callbacks)
        return model

    return train


def test_every_mechanism_has_settings():
    assert set(SETTINGS) == set(MECHANISMS)


@pytest.mark.parametrize("name", VARIANTS)
def test_effect_over_noise_is_what_is_accounted(name):
    mechanism, options = VARIANTS[name]
    found = auditing.audit(
        one_lot(mechanism, **options),
        auditing.DiracCanaries(CANARIES, blanks=26_000),
        confidence=CONFIDENCE,
        seed=1,
    )
    proven = found.stated("proven")
    effect = found.effect
    assert proven.mu is not None
    assert effect.holds(proven.mu), (effect, proven.mu)
    width = (effect.high - effect.low) / (2 * proven.mu)
    # The interval of 95% is half as wide as that of 99.99%.
    assert width * 1.96 / 3.89 <= 0.02
    assert not found.refutes("proven")
    assert all(bound.epsilon <= proven.epsilon for bound in found.others.values())
    tight = found.others["many_runs_gaussian"]
    assert tight.epsilon > 0.5 * min(proven.epsilon, tight.ceiling)


@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_other_noise_is_outside_of_the_interval(factor, monkeypatch):
    stddev = tfdp.DPKerasOptimizer._stddev
    monkeypatch.setattr(
        tfdp.DPKerasOptimizer, "_stddev", lambda self, *args: factor * stddev(self, *args)
    )
    found = auditing.audit(
        one_lot("dpsgd"), auditing.DiracCanaries(1000, 4000), confidence=CONFIDENCE, seed=1
    )
    assert not found.effect.holds(found.stated("proven").mu)


def test_a_claim_that_is_too_small_is_refuted_by_one_training():
    experiment = Experiment(
        mechanism="si_dpsgd", guarantee="claimed", epsilon=0.05, model="linear",
        normalization="layer", batch_size=32, epochs=10.0, sampling="cyclic", learning_rate=0.1,
    )  # fmt: skip
    found = audit_experiment(experiment, canaries=100)
    assert found.refutes("claimed") and not found.refutes("proven")
    assert found.bound.epsilon > 1.0
    assert "refuted" in auditing.verdict(found, "claimed")
    content = json.loads(json.dumps(found.to_dict()))
    assert content["refuted"] == {"claimed": True, "proven": False}


def test_stated_epsilons_of_others_are_compared_too(capsys):
    found = auditing.audit(
        one_lot("dpsgd", multiplier=0.2), auditing.DiracCanaries(100), stated={"claimed": 0.5}
    )
    assert found.refutes("claimed")
    with pytest.raises(ValueError, match="claimed"):
        found.refutes("proven")
    auditing.print_table(found)
    assert "refuted" in capsys.readouterr().out


def test_the_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    found = auditing.audit(one_lot("dpsgd"), auditing.DiracCanaries(100))
    auditing.draw(found, tmp_path / "audit.png")
    assert (tmp_path / "audit.png").stat().st_size > 10_000


def test_runs_count_together():
    canaries = auditing.DiracCanaries(40, blanks=50)
    found = auditing.audit(one_lot("dpsgd", steps=1), canaries, runs=3, guesses=10)
    assert found.bound.counts["guesses"] == 30 and found.bound.counts["canaries"] == 120
    assert len(found.scores.values) == 120


def test_what_cannot_be_audited_is_refused():
    with pytest.raises(ValueError, match="private mechanism"):
        audit_experiment(Experiment(mechanism="none"))
    with pytest.raises(ValueError, match="guesses"):
        auditing.audit(one_lot("dpsgd"), auditing.DiracCanaries(5), guesses=6)
    with pytest.raises(ValueError, match="states none"):
        auditing.audit(
            lambda world: world.model(keras.Sequential([keras.Input((3,)), layers.Dense(2)])),
            auditing.DiracCanaries(5, blanks=0),
        )


def small(world):
    model = world.model(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    model = tfdp.make_private(model)
    model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=4.0), "mse")
    x, y = world.data(np.zeros((20, 2), "float32"), np.ones((20, 1), "float32"))
    model.fit(x, y, batch_size=20, verbose=0)
    return model


def without_return(world):
    small(world)


def without_canaries(world):
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


def private_before(world):
    return world.model(tfdp.make_private(without_canaries(world)))


@pytest.mark.parametrize(
    ("train", "options", "words"),
    [
        (without_return, {}, "return model"),
        (without_canaries, {"stated": {"claimed": 1.0}}, "world.model"),
        (private_before, {}, "make_private\\(world.model"),
        (small, {"stated": 1.0}, "by kind"),
        (small, {"stated": {"true": 1.0}}, "claimed"),
    ],
)
def test_mistakes_of_a_train_function_are_named(train, options, words):
    with pytest.raises(ValueError, match=words):
        auditing.audit(train, auditing.DiracCanaries(20), **options)


def test_what_an_audit_could_not_have_refuted_is_said():
    found = auditing.audit(small, auditing.DiracCanaries(20, blanks=10), stated={"proven": 30.0})
    assert "could not have refuted" in auditing.verdict(found, "proven")
    assert str(found) == auditing.verdict(found, "proven")
    with pytest.raises(ValueError, match="DiracCanaries"):
        auditing.audit(small, 20)


def test_callbacks_that_were_forgotten_are_named(caplog):
    found = auditing.audit(small, auditing.DiracCanaries(20, blanks=10))
    assert "callbacks=world.callbacks" in caplog.text and "at the end" in found.observed


def test_lists_of_numbers_are_data():
    world = auditing.DiracCanaries(2).world(seed=0)
    (x, numbers), y = world.data([1.0, 2.0, 3.0], [0, 1, 0])
    assert x.shape == (5,) and y.tolist() == [0, 1, 0, 1, 0] and numbers.shape == (5, 1)
