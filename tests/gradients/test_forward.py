"""The pure forward pass leaves no trace of an example in the model."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.rounding import FUNCTION, assert_close
from tfdp.gradients.forward import Forward


class Remembers(layers.Layer):
    """Keeps the mean of its inputs in a variable that would be saved."""

    def build(self, shape):
        self.seen = self.add_weight(
            name="seen", shape=(shape[-1],), initializer="zeros", trainable=False
        )

    def call(self, x):
        self.seen.assign(keras.ops.mean(x, axis=0))
        return x


def forward(*stack, **kwargs):
    model = keras.Sequential([keras.Input((3,)), *stack])
    model.compile(loss="mse", **kwargs)
    return Forward(model)


def outputs(f, x):
    values = [tf.convert_to_tensor(v) for v in f.variables]
    return f.outputs(values, f.state(), tf.constant(x, tf.float32))


def test_a_layer_that_stores_what_it_saw_is_refused_by_name():
    f = forward(layers.Dense(2), Remembers())
    with pytest.raises(ValueError, match=r"seen.*store private data without noise"):
        outputs(f, np.ones((2, 3)))
    assert np.all(f.model.layers[-1].seen.numpy() == 0.0)


def test_a_model_without_trainable_weights_is_refused():
    with pytest.raises(ValueError, match="no trainable variable"):
        forward(layers.ReLU())


def test_the_loss_holds_activity_penalties_and_no_weight_penalties():
    class Penalized(layers.Layer):
        def call(self, x):
            self.add_loss(5.0 * keras.ops.sum(x))
            return x

    f = forward(
        layers.Dense(
            2,
            kernel_regularizer=keras.regularizers.L2(0.5),
            activity_regularizer=keras.regularizers.L1(2.0),
        ),
        Penalized(),
    )
    x, y = tf.ones((1, 3)), tf.zeros((1, 2))
    y_pred, scope, _ = outputs(f, x)
    expected = (
        np.mean(y_pred.numpy() ** 2) + 2.0 * np.abs(y_pred).sum() + 5.0 * y_pred.numpy().sum()
    )
    assert_close(f.loss(scope, x, y, y_pred), expected, 3 * 2 + 3 * FUNCTION)


def test_gradients_of_weight_regularizers():
    f = forward(layers.Dense(2, kernel_regularizer=keras.regularizers.L2(0.5)))
    kernel, bias = f.regularization()
    assert_close(kernel, f.variables[0].numpy(), 2)  # d/dw 0.5 w^2 = w
    assert bias is None
    assert forward(layers.Dense(2)).regularization() == [None, None]


def test_random_state_moves_on_once_per_lot():
    f = forward(layers.Dropout(0.5), layers.Dense(2))
    index = next(i for i in range(len(f.state_variables)) if f.is_per_example(i))
    before = f.state()
    _, _, new = outputs(f, np.ones((2, 3)))
    f.advance(before, new)
    np.testing.assert_array_equal(f.state_variables[index].numpy(), new[index])
    assert not np.array_equal(before[index], new[index])


def test_a_tf_function_in_a_layer_reads_the_values_of_the_pass_whatever_was_traced_before():
    class Function(layers.Dense):
        @tf.function
        def call(self, x):
            return super().call(x)

    f = forward(Function(2))
    x = np.ones((1, 3), "float32")
    f.model(x)  # traced with the variables
    values = [tf.ones([3, 2]), tf.zeros([2])]
    with tf.GradientTape() as tape:
        tape.watch(values)
        y_pred, *_ = f.outputs(values, f.state(), tf.constant(x))
    assert_close(y_pred, [[3.0, 3.0]], 3)
    assert all(gradient is not None for gradient in tape.gradient(y_pred, values))
    assert not tf.config.functions_run_eagerly()
