"""Settings are checked: their ranges, that they have an effect, and that they fit together."""

import math

import pytest

from tfdp.experiments import Experiment

TEXTS = {"dataset": "glue/sst2", "model": "bilstm"}


def experiment(**changes):
    return Experiment(**({"epsilon": 2.0} | changes))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mechanism", "magic"), ("optimizer", "magic"), ("sampling", "magic"), ("strategy", "magic"),
        ("learning_rate", 0.0), ("learning_rate", math.nan), ("l2_norm_clip", math.inf),
        ("epochs", -1.0), ("batch_size", 0), ("batch_size", None), ("steps", 0),
        ("noise_multiplier", -1.0), ("noise_multiplier", math.nan), ("epsilon", math.nan),
        ("epsilon", -1.0), ("delta", 0.0), ("delta", 1.0), ("seed", -1),
        ("momentum", 1.0), ("public_examples", 1),
        ("weight_noise", -1.0),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused(name, value):
    with pytest.raises(ValueError, match=f"--{name}"):
        experiment(**{name: value})


def test_without_a_budget_it_is_the_usual_one():
    assert experiment(epsilon=None).epsilon == 2.0
    assert experiment(epsilon=None, noise_multiplier=1.0).epsilon is None


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"mechanism": "none"}, "epsilon"),
        ({"mechanism": "none", "epsilon": None, "l2_norm_clip": 2.0}, "l2_norm_clip"),
        ({"release": "mu"}, "release"),
        ({"mechanism": "si_dpsgd", "noise": "laplace"}, "noise"),
        ({"mechanism": "sgld", "momentum": 0.9}, "momentum"),
        ({"mechanism": "dp_dropout", "optimizer": "adam"}, "optimizer"),
        ({"mechanism": "matrix", "strategy": "identity", "bands": 3}, "bands"),
        (
            {"mechanism": "discrete_sgd", "noise": "laplace", "degrees_of_freedom": 9.0},
            "degrees_of",
        ),
        ({"mechanism": "discrete_sgd", "encode": False, "codebook_size": 9}, "codebook_size"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum"),
        ({"groups": 3}, "groups"),
        ({"statistics": "batch"}, "statistics"),
        ({"public_data": "kmnist"}, "public_data"),
        ({"normalize_output": True}, "normalize_output"),
        ({"model": "linear", "width": 0.25}, "width"),
        ({"train_split": "test[:9]"}, "train_split"),
        ({"sequence_length": 20}, "sequence_length"),
        ({"weight_noise": 0.1}, "weight_noise"),
        ({"update_noise": 0.1}, "update_noise"),
        ({"mechanism": "none", "epsilon": None, "noise_draws": 3}, "noise_draws"),
    ],
    ids=str,
)
def test_a_setting_without_an_effect_is_refused(changes, name):
    with pytest.raises(ValueError, match=f"--{name}"):
        experiment(**changes)


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"mechanism": "dpsdg"}, "'dpsgd'"),
        ({"dataset": "cifar1"}, "'cifar10'"),
        ({"dataset": "glue/sst2"}, "texts"),
        ({"model": "bilstm"}, "images"),
        ({"dataset": "lm1b_characters"}, "--model=tutorial_lstm"),
        ({"model": "tutorial_logistic", "normalization": "layer"}, "--normalization"),
        ({"normalization": "private_batch", "optimizer": "adam"}, "--optimizer=sgd"),
        ({"normalization": "private_batch", "momentum": 0.9}, "--momentum=0"),
        ({"normalization": "batch", "dataset": "cifar100"}, "private and public"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_together_are_refused(changes, fact):
    with pytest.raises(ValueError, match=fact):
        experiment(**changes)


def test_settings_that_have_an_effect_are_allowed():
    experiment(noise_multiplier=0.0, steps=1, normalization="batch", public_examples=2)
    experiment(clipping="adaptive", momentum=0.9)
    experiment(mechanism="matrix", sampling="cyclic_poisson", groups=3, bands=3, objective="max")
    experiment(mechanism="si_dpsgd", optimizer="adam", guarantee="claimed", release="mu")
    experiment(mechanism="discrete_sgd", sampling="shuffle", noise="gaussian")
    experiment(**TEXTS, embeddings="frozen")
    experiment(batch_size=1437, microbatches=1437)
    experiment(dataset="cifar100", normalization="batch", public_data="strokes")
    Experiment(mechanism="none", dataset="cifar100", normalization="batch", public_data="cifar100")
