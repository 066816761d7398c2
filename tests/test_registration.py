"""Files with tfdp's classes load in a fresh process after `import tfdp`, in any order of imports."""

import itertools
import subprocess
import sys

import keras
import numpy as np
import pytest

import tfdp
from tfdp import _registration

X, Y = np.zeros((12, 4), "float32"), np.zeros(12, "int32")
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
NOISE = {"l2_norm_clip": 1.0, "noise_multiplier": 1.0}


def run(code):
    """Runs code in a fresh process and returns what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def model(layer=None):
    layers = [keras.Input((4,)), layer or keras.layers.Dense(3)]
    return tfdp.make_private(keras.Sequential(layers))


OPTIMIZERS = {
    "sgd": lambda: tfdp.DPKerasSGDOptimizer(**NOISE),
    "lion": lambda: tfdp.make_dp_optimizer_class(keras.optimizers.Lion)(**NOISE),
    "si_dpsgd": lambda: tfdp.SIDPSGDOptimizer(learning_rate=0.1, **NOISE),
    "matrix": lambda: tfdp.MatrixDPSGDOptimizer(learning_rate=0.1, bands=2, steps=4, **NOISE),
    "discrete": lambda: tfdp.DiscreteSGDOptimizer(learning_rate=0.1, **NOISE),
    "dropout": lambda: tfdp.DPDropoutOptimizer(learning_rate=0.1, **NOISE),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for name, make in OPTIMIZERS.items():
        trained = model(tfdp.layers.NoisyDense(3, noise_stddev=0.1) if name == "sgd" else None)
        trained.compile(make(), LOSS, metrics=["accuracy"])
        if name != "matrix":
            trained.fit(X, Y, batch_size=6, epochs=1, verbose=0)
        else:
            trained.fit(
                tfdp.data.make_lots("cyclic_poisson", X, Y, lot_size=3, groups=2), verbose=0
            )
        trained.save(folder / f"{name}.keras")
    return folder


@pytest.mark.parametrize(
    "imports", ["import keras, tfdp", "import tfdp, keras", "import tfdp.accounting, keras"]
)
def test_files_load_after_import_tfdp(files, imports):
    said = run(
        f"""{imports}
for name in {list(OPTIMIZERS)}:
    model = keras.models.load_model({str(files)!r} + f"/{{name}}.keras")
    print(name, type(model.optimizer).__name__, type(model.layers[0]).__name__)
"""
    )
    assert said.splitlines() == [
        "sgd DPKerasSGDOptimizer NoisyDense",
        "lion DPKerasLionOptimizer Dense",
        "si_dpsgd SIDPSGDOptimizer Dense",
        "matrix MatrixDPSGDOptimizer Dense",
        "discrete DiscreteSGDOptimizer Dense",
        "dropout DPDropoutOptimizer Dense",
    ]


def test_a_loaded_model_says_how_to_go_on_and_make_private_is_enough(files):
    said = run(
        f"""import keras, tfdp, numpy as np
x, y = np.zeros((12, 4), "float32"), np.zeros(12, "int32")
model = keras.models.load_model({str(files / "lion.keras")!r})
try:
    model.fit(x, y, verbose=0)
except RuntimeError as error:
    print("tfdp.make_private(model)" in str(error))
model = tfdp.make_private(keras.models.load_model({str(files / "lion.keras")!r}))
history = model.fit(x, y, batch_size=6, epochs=1, verbose=0).history
print(sorted(history), [run.steps for run in model.privacy.ledger.runs])
"""
    )
    assert said.splitlines() == ["True", "['accuracy', 'loss'] [2, 2]"]


def test_importing_tfdp_imports_nothing_that_takes_time():
    said = run(
        "import sys, tfdp; print([n for n in ('keras', 'tensorflow', 'numpy') if n in sys.modules])"
    )
    assert said.strip() == "[]"


def test_the_hook_leaves_the_import_system_as_it_was():
    said = run(
        """import sys, tfdp
before = len(sys.meta_path)
import keras
hooks = [f for f in sys.meta_path if type(f).__module__.startswith("tfdp")]
loader = keras.__spec__.loader
print(hooks, type(loader).__module__.startswith("tfdp"), keras.__loader__ is loader)
"""
    )
    assert said.split() == ["[]", "False", "True"]


def names_in_the_table():
    yield from itertools.chain.from_iterable(_registration.CLASSES.values())


def test_the_table_has_every_registered_class():
    import tfdp.callbacks
    import tfdp.models  # noqa: F401

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
    assert {*names_in_the_table()} <= own
    assert own - made == {*names_in_the_table()}


def test_a_class_takes_the_place_of_its_placeholder():
    found = keras.saving.get_registered_object("tfdp>SIDPSGDOptimizer")
    assert found is tfdp.SIDPSGDOptimizer


def test_optimizers_are_made_by_name():
    made = tfdp.DPKerasAdamaxOptimizer
    assert made is tfdp.make_dp_optimizer_class(keras.optimizers.Adamax)
    assert tfdp.VectorizedDPKerasSGDOptimizer is tfdp.DPKerasSGDOptimizer
    with pytest.raises(AttributeError, match="Did you mean 'DPKerasSGDOptimizer'"):
        tfdp.DPKerasSGDOptimiser  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'DPKerasNothingOptimizer'"):
        tfdp.DPKerasNothingOptimizer  # noqa: B018
