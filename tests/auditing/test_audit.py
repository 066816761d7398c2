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

CLIP = 1.0
# A confidence with which six mechanisms do not alarm by luck.
CONFIDENCE = 0.9999

SETTINGS = {
    "dpsgd": {"momentum": 0.9},
    "si_dpsgd": {},
    "dp_dropout": {"clipping": "global"},
    "sgld": {"clipping": "global", "num_examples": 10**12},
    "matrix": {"strategy": Strategy(name="banded_toeplitz", coefficients=(1.0, 0.5, 0.2))},
    "discrete_sgd": {"noise": "gaussian", "denoise": False, "encode": False},
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


@pytest.mark.parametrize("mechanism", SETTINGS)
def test_effect_over_noise_is_what_is_accounted(mechanism):
    found = auditing.audit(
        one_lot(mechanism, **SETTINGS[mechanism]),
        auditing.DiracCanaries(1000, blanks=4000),
        confidence=CONFIDENCE,
        seed=1,
    )
    proven = found.stated("proven")
    assert found.effect.holds(proven.mu), (found.effect, proven.mu)
    assert found.effect.high - found.effect.low < 0.2 * proven.mu
    assert not found.refutes("proven")
    assert all(bound.epsilon <= proven.epsilon for bound in found.others.values())


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
    assert json.loads(json.dumps(found.to_dict()))["refuted"] == {"claimed": True, "proven": False}


def test_stated_epsilons_of_others_are_compared_too(capsys, tmp_path):
    found = auditing.audit(
        one_lot("dpsgd", multiplier=0.2), auditing.DiracCanaries(100), stated={"claimed": 0.5}
    )
    assert found.refutes("claimed")
    with pytest.raises(ValueError, match="claimed"):
        found.refutes("proven")
    auditing.print_table(found)
    assert "refuted" in capsys.readouterr().out
    pytest.importorskip("matplotlib")
    auditing.draw(found, tmp_path / "audit.png")
    assert (tmp_path / "audit.png").stat().st_size > 10_000


def test_runs_count_together():
    canaries = auditing.DiracCanaries(40, blanks=50)
    found = auditing.audit(one_lot("dpsgd", steps=1), canaries, runs=3, guesses=10)
    assert found.bound.counts["guesses"] == 30 and found.bound.counts["canaries"] == 120
    assert len(found.scores.values) == 120


def small(world):
    model = world.model(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    model = tfdp.make_private(model)
    model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=4.0), "mse")
    x, y = world.data(np.zeros((20, 2), "float32"), np.ones((20, 1), "float32"))
    model.fit(x, y, batch_size=20, verbose=0)
    return model


def without_canaries(world):
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


@pytest.mark.parametrize(
    ("train", "options", "match"),
    [
        (lambda world: None, {}, "return model"),
        (without_canaries, {"stated": {"claimed": 1.0}}, "world.model"),
        (lambda world: world.model(without_canaries(world)), {}, "states none"),
        (lambda world: world.model(tfdp.make_private(without_canaries(world))), {}, "make_private"),
        (small, {"stated": {"true": 1.0}}, "claimed"),
        (small, {"guesses": 21}, "guesses"),
    ],
)
def test_mistakes_of_a_train_function_are_named(train, options, match):
    with pytest.raises(ValueError, match=match):
        auditing.audit(train, auditing.DiracCanaries(20), **options)


def test_callbacks_that_were_forgotten_are_named(caplog):
    found = auditing.audit(small, auditing.DiracCanaries(20, blanks=10), stated={"proven": 30.0})
    assert "world.callbacks" in caplog.text
    assert "could not have refuted" in auditing.verdict(found, "proven")
