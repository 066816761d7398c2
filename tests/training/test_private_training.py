"""Private training: which models train, in which modes, and what is refused."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import LOSS, data, fit, plain, private, sgd, steps, weights
from keras import layers

import tfdp
from tfdp.data import make_lots


def test_a_plain_model_does_not_train_with_a_private_optimizer():
    model = plain()
    model.compile(sgd(), loss=LOSS)
    before = weights(model)
    with pytest.raises(RuntimeError, match="make_private"):
        model.fit(*data(), verbose=0)
    np.testing.assert_array_equal(weights(model), before)


@pytest.mark.parametrize("optimizer", ["sgd", keras.optimizers.Adam()])
def test_a_private_model_does_not_train_with_a_plain_optimizer(optimizer):
    with pytest.raises(ValueError, match="needs a private optimizer"):
        private(optimizer)
    model = private()
    model.optimizer = keras.optimizers.SGD()
    with pytest.raises(ValueError, match="needs a private optimizer"):
        fit(model)


@pytest.mark.parametrize("build_first", [False, True])
def test_batch_normalization_is_refused_by_name(build_first):
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(3), layers.BatchNormalization(name="bn")]
    )
    if build_first:
        with pytest.raises(ValueError, match=r"'bn' \(BatchNormalization\).*tfdp\.fix"):
            tfdp.make_private(model)
    model = tfdp.DPSequential([keras.Input((4,)), *model.layers])
    model.compile(sgd(), loss=LOSS)
    with pytest.raises(ValueError, match=r"'bn' \(BatchNormalization\)"):
        fit(model)


class Subclassed(keras.Model):
    """Has no weights before its first data; TensorFlow's functions need real tensors."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, inputs):
        return self.dense(tf.reshape(inputs["a"], [-1, 4]))


def by_hand(model, x, y):
    return list(model.privacy.steps(x, y, batch_size=8, shuffle=False))


@pytest.mark.parametrize(
    "train",
    [
        lambda model, x, y: model.fit(x, y, batch_size=8, shuffle=False, verbose=0),
        lambda model, x, y: [model.train_on_batch(x, y) for _ in range(3)],
        by_hand,
    ],
)
def test_an_unbuilt_model_is_built_for_the_shapes_of_the_data(train):
    x, y = data()
    found = private(model=Subclassed())
    train(found, {"a": x}, y)
    assert [tuple(w.shape) for w in found.trainable_variables] == [(4, 3), (3,)]
    assert steps(found) == 3


def test_an_unbuilt_model_that_does_not_fit_the_data_is_refused():
    found = private(model=keras.Sequential([layers.Conv2D(3, 3)]))
    with pytest.raises(ValueError, match=r"cannot be built for inputs of shape \(None, 4\)"):
        fit(found)
    assert not found.privacy.ledger.runs


def test_bad_arguments():
    with pytest.raises(ValueError, match="class indices from 0 to 2"):
        private().fit(data()[0], np.full(24, 3), batch_size=8, verbose=0)
    with pytest.raises(ValueError, match="engine"):
        private(engine="fast")
    with pytest.raises(ValueError, match="physical_batch_size"):
        private(physical_batch_size=0)
    with pytest.raises(ValueError, match="multiple of the microbatch size 4"):
        fit(private(sgd(num_microbatches=2), physical_batch_size=3))
    with pytest.raises(ValueError, match="seed"):
        private(seed=-1)
    with pytest.raises(TypeError, match=r"keras.Model"):
        tfdp.make_private(layers.Dense(3))


@pytest.fixture
def float16():
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy("float32")


def test_float16_is_refused(float16):
    with pytest.raises(ValueError, match="float16"):
        private()


def test_loss_scaling_is_refused():
    with pytest.raises(ValueError, match="needs a private optimizer"):
        private(keras.optimizers.LossScaleOptimizer(sgd()))


REPLICAS = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from helpers import fit, private
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = private()
fit(model)
"""


@pytest.mark.slow
def test_several_replicas_are_refused():
    done = subprocess.run(
        [sys.executable, "-c", REPLICAS],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode != 0 and "runs on one replica" in done.stderr, done.stderr


def test_several_replicas_are_refused_quickly(monkeypatch):
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model = private()
    monkeypatch.setattr(type(strategy), "num_replicas_in_sync", 2)
    with pytest.raises(NotImplementedError, match="runs on one replica"):
        fit(model)


def test_a_train_step_of_its_own_is_refused():
    class Own(tfdp.DPSequential):
        def train_step(self, data):
            return {}

    model = Own([keras.Input((4,)), layers.Dense(3)])
    model.compile(sgd(), loss=LOSS)
    with pytest.raises(ValueError, match="Own has a train_step"):
        fit(model)


def test_a_layer_that_keeps_what_it_sees_does_not_train():
    class Keeps(layers.Layer):
        def build(self, shape):
            self.kept = tf.Variable(0.0, trainable=False)

        def call(self, x):
            self.kept.assign_add(tf.reduce_sum(x))
            return x

    keeps = Keeps()
    model = private(model=keras.Sequential([keras.Input((4,)), layers.Dense(3), keeps]))
    before = keeps.kept.numpy()
    with pytest.raises(ValueError, match="assigns to a variable"):
        fit(model)
    assert keeps.kept.numpy() == before and steps(model) == 0


def test_a_model_that_was_compiled_with_a_private_optimizer_is_compiled_again():
    model = plain()
    model.compile(sgd(), loss=LOSS, metrics=["accuracy"])
    optimizer = model.optimizer
    history = fit(tfdp.make_private(model)).history
    assert model.optimizer is optimizer and 0 < history["accuracy"][0] < 1


@pytest.mark.parametrize("microbatches", [1, 2, 3, 6])
def test_lots_that_are_padded_to_whole_microbatches_train(microbatches):
    model = private(sgd(num_microbatches=microbatches))
    fit(model, epochs=3, rows=48, batch_size=6, shuffle=True)
    assert steps(model) == 24


@pytest.mark.slow
def test_all_ways_of_running_give_the_same():
    results = {}
    for name, options in {
        "function": {},
        "eager": {"run_eagerly": True},
        "xla": {"jit_compile": True},
        "several": {"steps_per_execution": 3},
    }.items():
        model = private(sgd(noise=0.0), compiled=options)
        history = fit(model, epochs=2).history
        results[name] = np.append(weights(model), [history["loss"], history["accuracy"]])
        assert steps(model) == 6
    for name in ("physical", "vectorized"):
        options = {"physical_batch_size": 3} if name == "physical" else {"engine": name}
        model = private(sgd(noise=0.0), **options)
        history = fit(model, epochs=2).history
        results[name] = np.append(weights(model), [history["loss"], history["accuracy"]])
    for name, result in results.items():
        np.testing.assert_allclose(result, results["function"], atol=1e-5, err_msg=name)


@pytest.mark.parametrize("physical_batch_size", [None, 5])
def test_metrics_see_no_padding(physical_batch_size):
    x, y = data()
    model = private(sgd(rate=0.0, noise=0.0), physical_batch_size=physical_batch_size)
    lots = make_lots("poisson", x, y, lot_size=8, physical_batch_size=physical_batch_size, seed=3)
    logs = model.fit(lots, verbose=0).history
    again = make_lots("poisson", x, y, lot_size=8, physical_batch_size=physical_batch_size, seed=3)
    drawn = [(bx[w > 0], by[w > 0]) for bx, by, w in again.as_dataset().take(3).as_numpy_iterator()]
    bx, by = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    logits = model.predict(bx, verbose=0)
    assert logs["accuracy"][0] == pytest.approx(np.mean(logits.argmax(1) == by))
    assert logs["loss"][0] == pytest.approx(float(LOSS(by, logits)), rel=1e-5)


def test_logs_of_several_outputs_and_penalties_agree_with_evaluate():
    x = keras.Input((4,))
    hidden = layers.Dense(4, kernel_regularizer=keras.regularizers.L2(0.5))(x)
    outputs = {"a": layers.Dense(3, name="a")(hidden), "b": layers.Dense(1, name="b")(hidden)}
    losses = {"a": LOSS, "b": "mse"}
    compiled = {"loss": losses, "metrics": {"a": ["accuracy"], "b": ["mae"]}}
    model = private(sgd(rate=0.0), model=keras.Model(x, outputs), compiled=compiled)
    inputs, labels = data(8)
    targets = {"a": labels, "b": inputs[:, :1]}
    logs = model.fit(inputs, targets, batch_size=8, shuffle=False, verbose=0).history
    expected = model.evaluate(inputs, targets, verbose=0, return_dict=True)
    assert set(logs) == {"loss", "a_loss", "b_loss", "a_accuracy", "b_mae"}
    assert {k: v[0] for k, v in logs.items()} == pytest.approx(
        {k: expected[k] for k in logs}, rel=1e-5
    )


def test_keras_callbacks_and_validation_data_work(tmp_path):
    model = private()
    history = fit(
        model,
        epochs=4,
        validation_data=data(10, seed=1),
        callbacks=[
            keras.callbacks.EarlyStopping("val_loss", patience=0, min_delta=1e9),
            keras.callbacks.TensorBoard(tmp_path),
            keras.callbacks.ReduceLROnPlateau("val_loss"),
        ],
    ).history
    assert len(history["val_loss"]) == 2  # training stopped early
    assert model.privacy.steps_taken == 6
    assert steps(model) == 12  # all four epochs: what the validation showed ended the training
    assert list(tmp_path.rglob("*tfevents*"))


def test_a_change_of_trainable_layers_is_traced_again():
    model = private(sgd(noise=0.0))
    fit(model)
    model.layers[0].trainable = False
    kernel = model.layers[0].kernel.numpy()
    last = model.layers[1].kernel.numpy()
    fit(model)
    np.testing.assert_array_equal(model.layers[0].kernel.numpy(), kernel)
    assert not np.array_equal(model.layers[1].kernel.numpy(), last)
