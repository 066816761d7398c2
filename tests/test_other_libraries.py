"""What people type who know TensorFlow Privacy or Opacus works, or is answered with the tfdp way."""

import inspect

import keras
import pytest

import tfdp


def model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: tfdp.DPKerasSGDOptimizer(l2_norm_clipp=1.0, noise_multiplier=1.0),
            "DPKerasSGDOptimizer has no argument 'l2_norm_clipp'. Did you mean 'l2_norm_clip'?",
        ),
        (
            lambda: tfdp.SIDPSGDOptimizer(l2_norm_clip=1.0, noise_multiplyer=1.0),
            "SIDPSGDOptimizer has no argument 'noise_multiplyer'. Did you mean 'noise_multiplier'?",
        ),
        (
            lambda: tfdp.DPKerasAdamOptimizer(max_grad_norm=1.0, noise_multiplier=1.0),
            "no argument 'max_grad_norm'. Its name here is l2_norm_clip",
        ),
        (
            lambda: tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0, momentun=0.9),
            "Did you mean 'momentum'?",
        ),
        (
            lambda: tfdp.make_private(model(), max_grad_norm=1.0, noise_multiplier=1.1),
            "make_private has no argument 'max_grad_norm'. It belongs to the optimizer",
        ),
        (
            lambda: tfdp.make_private(model(), phisical_batch_size=3),
            "make_private has no argument 'phisical_batch_size'. Did you mean 'physical_batch_size'?",
        ),
        (lambda: tfdp.make_private(model(), zzz=3), "make_private has no argument 'zzz'."),
        (
            lambda: tfdp.DPSequential(
                l2_norm_clip=1.0, noise_multiplier=1.1, layers=[keras.layers.Dense(1)]
            ),
            "DPSequential has no argument 'l2_norm_clip'. It belongs to the optimizer",
        ),
        (
            lambda: tfdp.DPModel(noise_multiplier=1.1, inputs=None, outputs=None),
            "has no argument 'noise_multiplier'. It belongs to the optimizer",
        ),
        (lambda: tfdp.make_private(module=model()), "Pass the Keras model as the first argument."),
        (
            lambda: tfdp.make_private_with_epsilon(
                module=model(), data_loader=None, target_epsilon=1.0, target_delta=1e-5
            ),
            "make_private_with_epsilon has no argument 'module'. Pass the Keras model as the first",
        ),
        (
            lambda: tfdp.make_private_with_epsilon(target_epsilon=1.0),
            "no argument 'target_epsilon'. Its name here is epsilon.",
        ),
        (
            lambda: tfdp.make_private_with_epsilon(model(), phisical_batch_size=3),
            "Did you mean 'physical_batch_size'?",
        ),
        (tfdp.PrivacyEngine, "tfdp has no PrivacyEngine"),
        (tfdp.ModuleValidator, "Call model = tfdp.fix(model)"),
        (lambda: tfdp.ModuleValidator.fix(model()), "Call model = tfdp.fix(model)"),
        (lambda: tfdp.ModuleValidator.validate(model(), strict=False), "tfdp.make_private(model)"),
        (lambda: tfdp.ModuleValidator.is_valid(model()), "tfdp.make_private(model)"),
        (
            lambda: tfdp.BatchMemoryManager(data_loader=None, max_physical_batch_size=3),
            "Pass physical_batch_size=... to tfdp.make_private",
        ),
        (lambda: tfdp.get_noise_multiplier(target_epsilon=1.0), "tfdp.accounting.noise_for("),
        (lambda: tfdp.PrivacyEngine(accountant="rdp"), "make_private_with_epsilon"),
    ],
)
def test_the_answer_says_what_to_do(call, message):
    with pytest.raises(TypeError) as caught:
        call()
    assert message in str(caught.value)


def test_signatures_are_those_of_the_functions():
    private = inspect.signature(tfdp.make_private).parameters
    assert [*private][:2] == ["model", "engine"]
    assert tfdp.make_private.__name__ == "make_private"
    init = inspect.signature(tfdp.DPKerasOptimizer.__init__).parameters
    assert init["l2_norm_clip"].annotation is float
    for name in private:
        if name not in ("model", "unknown"):  # further arguments go on to make_private
            with pytest.raises(TypeError, match="missing"):
                tfdp.make_private_with_epsilon(**{name: None})


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (
            "DPKerasSGDOptimizer",
            {"learning_rate": 0.1},
            "DPKerasSGDOptimizer needs l2_norm_clip and noise_multiplier, as keywords. "
            "Pass DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.1, ...)",
        ),
        (
            "SIDPSGDOptimizer",
            {"l2_norm_clip": 1.0},
            "SIDPSGDOptimizer needs noise_multiplier, as keywords.",
        ),
    ],
)
def test_what_a_private_optimizer_needs(kind, arguments, message):
    with pytest.raises(TypeError) as caught:
        getattr(tfdp, kind)(**arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("minimize", "model.privacy.steps"),
        ("compute_gradients", "tfdp.make_private(model).fit"),
        ("_compute_gradients", "model.privacy.steps"),
        ("learning_rte", "Did you mean 'learning_rate'?"),
    ],
)
def test_members_that_private_optimizers_lack(name, message):
    optimizer = tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0)
    with pytest.raises(AttributeError, match=f"'DPKerasSGDOptimizer' object .* {name!r}") as caught:
        getattr(optimizer, name)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("get_epsilon", "It is model.privacy.spent(delta).epsilon here."),
        ("ledgr", "Did you mean 'ledger'?"),
    ],
)
def test_members_that_model_privacy_lacks(name, message):
    with pytest.raises(AttributeError) as caught:
        getattr(tfdp.make_private(model()).privacy, name)
    assert message in str(caught.value)


def test_an_unknown_member_without_a_hint_has_pythons_message():
    with pytest.raises(AttributeError) as caught:
        tfdp.make_private(model()).privacy.zzzz  # noqa: B018
    assert str(caught.value) == "'ModelPrivacy' object has no attribute 'zzzz'"


def test_a_property_that_fails_keeps_its_message():
    class Own(tfdp.DPKerasSGDOptimizer):
        @property
        def broken(self):
            raise AttributeError("the reason")

    with pytest.raises(AttributeError, match="the reason"):
        Own(l2_norm_clip=1.0, noise_multiplier=1.0).broken  # noqa: B018


def test_names_of_tensorflow_privacy():
    assert tfdp.VectorizedDPKerasSGDOptimizer is tfdp.DPKerasSGDOptimizer
    assert tfdp.VectorizedDPKerasAdamOptimizer is tfdp.DPKerasAdamOptimizer
    assert tfdp.make_keras_optimizer_class is tfdp.make_dp_optimizer_class
    assert tfdp.make_vectorized_keras_optimizer_class is tfdp.make_dp_optimizer_class


def test_keywords_of_subclasses_are_left_alone():
    class Own(tfdp.DPKerasSGDOptimizer):
        def __init__(self, *args, momenta=None, **kwargs):
            super().__init__(*args, **kwargs)
            self.momenta = momenta

    assert Own(l2_norm_clip=1.0, noise_multiplier=1.0, momenta=3).momenta == 3


def test_dir_shows_the_public_names_once():
    shown = dir(tfdp)
    assert len(shown) == len({*shown})
    assert {n for n in shown if not n.startswith("__")} == {*tfdp.__all__}
    assert {"__version__", "__doc__"} <= {*shown}
