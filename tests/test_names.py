"""Public names of the package, and those of TensorFlow Privacy that mean the same."""

import keras
import pytest

import tfdp
from tfdp.experiments import Experiment


def test_names_of_tensorflow_privacy():
    assert tfdp.VectorizedDPKerasSGDOptimizer is tfdp.DPKerasSGDOptimizer
    assert tfdp.make_vectorized_keras_optimizer_class is tfdp.make_dp_optimizer_class
    for name in ("DPModel", "DPSequential", "PrivacyEngine"):
        with pytest.raises(AttributeError, match="make_private"):
            getattr(tfdp, name)


def test_the_nearest_name_is_told():
    for module, name, meant in (
        (tfdp, "make_privat", "'make_private'"),
        (tfdp.optimizers, "DPAdamGaussianOptimizer", "'DPKerasAdamOptimizer'"),
        (tfdp.layers, "NoisyConv2d", "'NoisyConv2D'"),
    ):
        with pytest.raises(AttributeError, match=f"Did you mean {meant}"):
            getattr(module, name)
    for name, place in (("PrivacyProgress", "callbacks"), ("NoisyDense", "layers")):
        with pytest.raises(AttributeError, match=f"use tfdp.{place}.{name}"):
            getattr(tfdp, name)
    for name, meant in (
        ("beta1", "beta_1"),
        ("lr", "learning_rate"),
        ("clip_norm", "l2_norm_clip"),
    ):
        with pytest.raises(TypeError, match=f"no argument '{name}'. Did you mean '{meant}'"):
            tfdp.DPKerasAdamOptimizer(noise_multiplier=1.0, **{name: 0.1})


def test_an_epsilon_of_adam_is_no_budget(caplog):
    rest = {"l2_norm_clip": 1.0, "noise_multiplier": 1.0}
    tfdp.DPKerasAdamOptimizer(epsilon=1e-5, **rest)
    assert not caplog.records
    tfdp.DPKerasAdamOptimizer(epsilon=2.0, **rest)
    assert "no privacy budget" in caplog.text and "make_private_with_epsilon" in caplog.text
    for cls in (tfdp.DPKerasSGDOptimizer, tfdp.DPKerasAdamOptimizer):
        with pytest.raises(TypeError, match="make_private_with_epsilon"):
            cls(epsilon=0.05, delta=1e-5)


def test_dir_shows_the_public_names():
    shown = dir(tfdp)
    assert {n for n in shown if not n.startswith("__")} == {*tfdp.__all__}
    assert "__version__" in shown


def test_dir_shows_what_a_user_needs():
    model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    optimizer = tfdp.SIDPSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0)
    wanted = {"learning_rate", "l2_norm_clip", "noise_multiplier", "momentum", "iterations"}
    assert wanted <= {*dir(optimizer)}
    assert {*dir(optimizer)}.isdisjoint({"add_noise", "tables", "apply_gradients", "release_means"})
    assert {"spent", "statement", "ledger", "steps", "release"} <= {*dir(model.privacy)}
    assert {*dir(model.privacy)}.isdisjoint({"account", "configure", "next_seed"})


def test_notebooks_show_short_reprs():
    data = tfdp.data.load("digits")
    lots = tfdp.data.make_lots("poisson", data.x_train, lot_size=64)
    model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    optimizer = tfdp.DPKerasAdamOptimizer(l2_norm_clip=1.0, noise_multiplier=(1.0,) * 300)
    assert repr(Experiment(epsilon=3.0)) == "Experiment(epsilon=3.0)"
    for each in (data, lots, lots.source, lots.source[:5], model.privacy, optimizer):
        assert len(repr(each)) <= 120 and "object at" not in repr(each)
    assert model.privacy._repr_html_().startswith("<table>")
    assert "keras" not in dir(tfdp.callbacks)
