"""Names of TensorFlow Privacy and Opacus work, or raise an error that says what to use."""

import keras
import pytest

import tfdp


def model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])


def sgd(**options):
    return tfdp.DPKerasSGDOptimizer(**{"l2_norm_clip": 1.0, "noise_multiplier": 1.0} | options)


@pytest.mark.parametrize(
    ("call", "fact"),
    [
        (lambda: tfdp.DPKerasSGDOptimizer(learning_rate=0.1), "noise_multiplier"),
        (lambda: tfdp.DPKerasAdamOptimizer(max_grad_norm=1.0), "l2_norm_clip"),
        (lambda: sgd(unroll_microbatches=True), "vectorized"),
        (lambda: tfdp.make_private(model(), max_grad_norm=1.0), "optimizer"),
        (lambda: tfdp.make_private(model(), zzz=3), "'zzz'"),
        (lambda: tfdp.make_private(module=model()), "model"),
        (lambda: tfdp.DPSequential(l2_norm_clip=1.0), "optimizer"),
        (lambda: tfdp.DPModel(noise_multiplier=1.1, inputs=None, outputs=None), "optimizer"),
        (lambda: tfdp.make_private_with_epsilon(target_epsilon=1.0), "epsilon"),
    ],
)
def test_the_answer_says_what_to_do(call, fact):
    with pytest.raises(TypeError, match=fact):
        call()


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("minimize", "model.privacy.steps"),
        ("compute_gradients", "model.privacy.steps"),
        ("zzzz", "'zzzz'"),
    ],
)
def test_members_that_private_optimizers_lack(name, fact):
    with pytest.raises(AttributeError, match=fact):
        getattr(sgd(), name)


@pytest.mark.parametrize(
    ("name", "fact"),
    [("get_epsilon", "spent"), ("zzzz", "'zzzz'")],
)
def test_members_that_model_privacy_lacks(name, fact):
    with pytest.raises(AttributeError, match=fact):
        getattr(tfdp.make_private(model()).privacy, name)


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("PrivacyEngine", "make_private_with_epsilon"),
        ("ModuleValidator", "tfdp.fix"),
        ("BatchMemoryManager", "physical_batch_size"),
        ("get_noise_multiplier", "noise_for"),
    ],
)
def test_members_that_tfdp_lacks(name, fact):
    with pytest.raises(AttributeError, match=fact):
        getattr(tfdp, name)


def test_names_of_tensorflow_privacy():
    assert tfdp.VectorizedDPKerasSGDOptimizer is tfdp.DPKerasSGDOptimizer
    assert tfdp.make_vectorized_keras_optimizer_class is tfdp.make_dp_optimizer_class


def test_dir_shows_the_public_names():
    shown = dir(tfdp)
    assert {n for n in shown if not n.startswith("__")} == {*tfdp.__all__}
    assert "__version__" in shown
