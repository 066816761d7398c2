"""Public names of the package, and those of TensorFlow Privacy that mean the same."""

import pytest

import tfdp


def test_names_of_tensorflow_privacy():
    assert tfdp.VectorizedDPKerasSGDOptimizer is tfdp.DPKerasSGDOptimizer
    assert tfdp.make_vectorized_keras_optimizer_class is tfdp.make_dp_optimizer_class
    for name in ("DPModel", "DPSequential"):
        with pytest.raises(AttributeError, match="make_private"):
            getattr(tfdp, name)


def test_dir_shows_the_public_names():
    shown = dir(tfdp)
    assert {n for n in shown if not n.startswith("__")} == {*tfdp.__all__}
    assert "__version__" in shown
