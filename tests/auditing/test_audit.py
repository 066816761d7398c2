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

SETTINGS = {
    "dpsgd": {"momentum": 0.9},
    "si_dpsgd": {},
    "dp_dropout": {"clipping": "global"},
    "sgld": {"clipping": "global", "num_examples": 10**12},
    "matrix": {"strategy": Strategy(name="banded_toeplitz", coefficients=(1.0, 0.5, 0.2))},
    "discrete_sgd": {"noise": "gaussian", "denoise": False, "encode": False},
}


def plain():
    return keras.Sequential([keras.Input((3,)), layers.Dense(2)])


def one_lot(mechanism, steps=4, multiplier=0.5, observed=True, **options):
    """Trains in lots of all examples, so that a canary takes part in each of the steps."""

    def train(world):
        draw = np.random.default_rng(0)
        x, y = draw.normal(size=(40, 3)).astype("float32"), draw.integers(0, 2, 40)
        model = tfdp.make_private(world.model(plain()))
        optimizer = MECHANISMS[mechanism](keras.optimizers.SGD)(
            learning_rate=0.1, l2_norm_clip=1.0, noise_multiplier=multiplier, **options
        )
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        x, y = world.data(x, y)
        lots = tfdp.data.make_lots("cyclic", x, y, lot_size=len(y))
        callbacks = world.callbacks if observed else None
        model.fit(lots, epochs=steps, verbose=0, callbacks=callbacks)
        return model

    return train


def separation(scores):
    """Distance of the two means in standard deviations; for Gaussian noise, an estimate of mu."""
    inside, outside = (scores.values[scores.included == which] for which in (True, False))
    return (inside.mean() - outside.mean()) / np.sqrt((inside.var() + outside.var()) / 2)


# Noise on the sums, on the weights, and correlated noise; tests/optimizers measures the scale of all.
QUICK = ("dpsgd", "si_dpsgd", "matrix")


@pytest.mark.parametrize(
    "mechanism",
    [m if m in QUICK else pytest.param(m, marks=pytest.mark.slow) for m in SETTINGS],
)
def test_canaries_are_told_apart_as_far_as_is_accounted(mechanism):
    train = one_lot(mechanism, **SETTINGS[mechanism])
    found = auditing.audit(train, auditing.DiracCanaries(1000, 4000), confidence=0.9999, seed=1)
    assert not found.refutes("proven")
    # Two thirds or three halves of the noise are far outside.
    assert separation(found.scores) == pytest.approx(found.guarantees["proven"].mu, rel=0.15)


def test_a_claim_that_is_too_small_is_refuted_by_one_training(tmp_path):
    experiment = Experiment(
        mechanism="si_dpsgd", guarantee="claimed", epsilon=0.05, model="linear",
        normalization="layer", batch_size=32, epochs=10.0, sampling="cyclic", learning_rate=0.1,
    )  # fmt: skip
    found = audit_experiment(experiment, canaries=100)
    assert found.refutes("claimed") and not found.refutes("proven")
    assert found.bound.epsilon > 1.0 and "refuted" in found.title
    assert json.loads(json.dumps(found.to_dict()))["refuted"] == {"claimed": True, "proven": False}
    pytest.importorskip("matplotlib")
    auditing.draw(found, tmp_path / "audit.png")
    assert (tmp_path / "audit.png").stat().st_size > 10_000


def test_stated_epsilons_of_others_are_compared_and_runs_count_together(caplog):
    train = one_lot("dpsgd", steps=1, multiplier=0.2, observed=False)
    found = auditing.audit(
        train, auditing.DiracCanaries(40, blanks=50), runs=2, guesses=20, stated={"claimed": 0.5}
    )
    assert found.refutes("claimed") and "The claimed epsilon 0.5 is refuted" in str(found)
    assert found.bound.counts == {"correct": 40, "guesses": 40, "canaries": 80}
    assert len(found.scores.values) == 80
    assert "world.callbacks" in caplog.text  # they were forgotten
    with pytest.raises(KeyError):
        found.refutes("proven")


@pytest.mark.parametrize(
    ("train", "options", "match"),
    [
        (lambda world: None, {}, "return model"),
        (lambda world: plain(), {"stated": {"claimed": 1.0}}, "world.model"),
        (lambda world: world.model(plain()), {}, "states no epsilon"),
        (lambda world: world.model(tfdp.make_private(plain())), {}, "make_private"),
        (one_lot("dpsgd"), {"stated": {"true": 1.0}}, "claimed"),
        (one_lot("dpsgd"), {"guesses": 21}, "guesses"),
    ],
)
def test_mistakes_of_a_train_function_are_named(train, options, match):
    with pytest.raises(ValueError, match=match):
        auditing.audit(train, auditing.DiracCanaries(20), **options)
