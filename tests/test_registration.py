"""Files with tfdp's classes load in a fresh process after `import tfdp`.

Here, tfdp is imported first; `test_account.py` has a process that imports Keras first.
"""

import itertools
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers

import tfdp
from tfdp import _registration

NOISE = {"l2_norm_clip": 1.0, "noise_multiplier": 1.0}
OPTIMIZERS = {
    "DPKerasLionOptimizer": lambda: tfdp.make_dp_optimizer_class(keras.optimizers.Lion)(**NOISE),
    "SIDPSGDOptimizer": lambda: tfdp.SIDPSGDOptimizer(learning_rate=0.1, **NOISE),
    "MatrixDPSGDOptimizer": lambda: tfdp.MatrixDPSGDOptimizer(bands=2, steps=4, **NOISE),
    "DiscreteSGDOptimizer": lambda: tfdp.DiscreteSGDOptimizer(learning_rate=0.1, **NOISE),
    "DPDropoutOptimizer": lambda: tfdp.DPDropoutOptimizer(learning_rate=0.1, **NOISE),
}


def run(code, folder=""):
    """Runs code in a fresh process and returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, folder], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def of_all_layers():
    """A model with every layer of tfdp."""
    x = keras.Input((36,))
    network = keras.Sequential([keras.Input((36,)), tfdp.layers.PublicBatchNormalization()])
    public = np.random.default_rng(0).normal(size=(3, 36)).astype("float32")
    y = tfdp.layers.PublicExamples(network, public)(x)
    y = tfdp.layers.NoisyDense(36, noise_stddev=0.1)(tfdp.layers.PrivateBatchNormalization()(y))
    y = tfdp.layers.NoisyConv1D(3, 3, noise_stddev=0.1, padding="causal")(
        layers.Reshape((12, 3))(y)
    )
    y = tfdp.layers.NoisyConv2D(4, 2, noise_stddev=0.1)(layers.Reshape((6, 6, 1))(y))
    y = tfdp.layers.NoisyConv3D(2, 2, noise_stddev=0.1, seed=3)(layers.Reshape((5, 5, 2, 2))(y))
    y = tfdp.layers.NormalizedLSTM(2, return_sequences=True)(layers.Reshape((4, 8))(y))
    dense = keras.Sequential([keras.Input((4, 2)), layers.LSTM(2), layers.Dense(3)])
    return keras.Model(x, tfdp.layers.NoisyWeights(dense, 0.1)(y))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for name, make in OPTIMIZERS.items():
        model = tfdp.make_private(keras.Sequential([keras.Input((4,)), layers.Dense(3)]))
        model.compile(make(), loss, metrics=["accuracy"])
        if "Lion" in name:
            model.fit(np.zeros((12, 4), "float32"), np.zeros(12, "int32"), batch_size=6, verbose=0)
        model.save(folder / f"{name}.keras")
    model = of_all_layers()
    x = np.random.default_rng(0).normal(size=(3, 36)).astype("float32")
    model(x, training=True)
    model.save(folder / "layers.keras")
    now = model(x, training=True)  # with the noise of the file
    np.savez(folder / "given.npz", x=x, now=now, next=model(x))
    return str(folder)


def test_every_file_loads_and_training_goes_on(files):
    """The import system is as it was, once Keras has been imported."""
    code = f"""import sys, tfdp
print([name for name in ("keras", "tensorflow", "numpy") if name in sys.modules])
import keras, numpy as np
print([finder for finder in sys.meta_path if type(finder).__module__.startswith("tfdp")])
loader = keras.__spec__.loader
print(type(loader).__module__.startswith("tfdp"), keras.__loader__ is loader)
folder = sys.argv[1]
for name in {list(OPTIMIZERS)}:
    model = keras.models.load_model(f"{{folder}}/{{name}}.keras")
    assert type(model.optimizer).__name__ == name
from tests.rounding import assert_close, terms_of
model, given = keras.models.load_model(folder + "/layers.keras"), np.load(folder + "/given.npz")
for training, expected in ((False, "now"), (True, "now"), (False, "next")):
    found = model(given["x"], training=training)
    assert_close(found, given[expected], terms_of(model))
x, y = np.zeros((12, 4), "float32"), np.zeros(12, "int32")
model = keras.models.load_model(folder + "/DPKerasLionOptimizer.keras")
history = model.fit(x, y, batch_size=6, epochs=1, verbose=0).history
print(sorted(history), [run.steps for run in model.privacy.ledger.runs])
"""
    assert run(code, files) == ["[]", "[]", "False True", "['accuracy', 'loss'] [2, 2]"]


def test_the_table_has_every_registered_class():
    import tfdp.callbacks
    import tfdp.models

    for module in _registration.CLASSES:
        __import__(module)
    own = {
        name.partition(">")[2]
        for name, found in keras.saving.get_custom_objects().items()
        if name.startswith("tfdp>") and found.__module__.startswith("tfdp.")
    }
    made = {
        form.format(base)
        for form in _registration.MADE
        for base in vars(keras.optimizers)
        if base[0].isupper()
    }
    assert own - made == {*itertools.chain.from_iterable(_registration.CLASSES.values())}
    # The class has taken the place of what stood for it.
    assert keras.saving.get_registered_object("tfdp>SIDPSGDOptimizer") is tfdp.SIDPSGDOptimizer


def test_optimizers_are_made_by_name():
    made = tfdp.DPKerasAdamaxOptimizer
    assert made is tfdp.make_dp_optimizer_class(keras.optimizers.Adamax)
    assert tfdp.VectorizedDPKerasSGDOptimizer is tfdp.DPKerasSGDOptimizer
    with pytest.raises(AttributeError, match="DPKerasSGDOptimiser"):
        tfdp.DPKerasSGDOptimiser  # noqa: B018
    with pytest.raises(AttributeError, match="DPKerasNothingOptimizer"):
        tfdp.DPKerasNothingOptimizer  # noqa: B018
