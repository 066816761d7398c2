"""Each name borrowed from Keras has the behaviour that tfdp relies on."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from keras.src.trainers.compile_utils import CompileLoss

from tests.rounding import assert_close
from tfdp._compat import keras as borrowed

_X, _Y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")


def _compiled(loss="mse", **options):
    model = keras.Sequential([keras.Input((2,)), layers.Dense(1)])
    model.compile("sgd", loss, **options)
    return model


# -- imported names ----------------------------------------------------------------------------------


def test_stateless_scopes():
    assert borrowed.get_stateless_scope() is None
    variable = keras.Variable(1.0)
    with keras.StatelessScope([(variable, 2.0)]):
        with keras.StatelessScope([(variable, 3.0)]):
            assert borrowed.get_stateless_scope().get_current_value(variable) == 3.0
        assert borrowed.get_stateless_scope().get_current_value(variable) == 2.0


def test_convolutions():
    for rank in (1, 2, 3):
        conv = getattr(layers, f"Conv{rank}D")(4, 3)
        assert isinstance(conv, borrowed.BaseConv)
        assert (conv.rank, conv.filters, conv.kernel_size) == (rank, 4, (3,) * rank)
    assert not issubclass(layers.Dense, borrowed.BaseConv)
    conv = layers.Conv2D(2, 3, use_bias=False)
    x = np.arange(50.0, dtype="float32").reshape(1, 5, 5, 2)
    np.testing.assert_array_equal(conv(x), conv.convolution_op(x, conv.kernel))
    assert type(layers.ConvLSTM1D(2, 2).cell) is borrowed.ConvLSTMCell


def test_graphs_of_layers():
    class Subclassed(keras.Model):
        pass

    x = keras.Input((2,))
    model = keras.Model(x, layers.Dense(1)(x))
    assert type(model) is borrowed.Functional and "call" in vars(borrowed.Functional)
    assert model.operations == model.layers
    for each in (model, keras.Sequential()):
        assert borrowed.is_graph_of_layers(each) and borrowed.is_stock_graph(each)
    assert not borrowed.is_stock_graph(type("Own", (keras.Sequential,), {})())
    for each in (Subclassed(), layers.Dense(1)):
        assert not borrowed.is_graph_of_layers(each)


def test_forget_dropout_masks():
    layer = keras.layers.RNN(keras.layers.LSTMCell(2, dropout=0.5, recurrent_dropout=0.5))
    masks = layer.cell.get_dropout_mask(tf.ones([1, 3]))
    assert layer.cell.get_dropout_mask(tf.ones([1, 3])) is masks
    borrowed.forget_dropout_masks(keras.Sequential([layer]))
    assert layer.cell.get_dropout_mask(tf.ones([1, 3])) is not masks


def test_dropout_masks():
    cell = layers.LSTMCell(2, dropout=0.5, recurrent_dropout=0.5)
    inputs, state = (
        cell.get_dropout_mask(np.ones((3, 4))),
        cell.get_recurrent_dropout_mask(np.ones((3, 2))),
    )
    held = list(borrowed.dropout_masks(cell).values())
    assert len(held) == 2 and len(held[0]) == len(held[1]) == 4
    for mine, theirs in zip((inputs, state), held, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    cell.reset_dropout_mask()
    assert borrowed.dropout_masks(cell)["_dropout_mask"] is None
    assert borrowed.dropout_masks(layers.Dense(2)) == {}


class _Batches(keras.utils.PyDataset):
    num_batches = 2
    begun = 0

    def __getitem__(self, i):
        return _X + i, _Y

    def on_epoch_begin(self):
        self.begun += 1


def test_fit_takes_a_data_adapter_and_tells_it_of_epochs():
    batches = _Batches()
    inner = borrowed.PyDatasetAdapter(batches, shuffle=False)
    first, second = (x.numpy() for x, _ in inner.get_tf_dataset())
    np.testing.assert_array_equal(first + 1, second)

    class Adapter(borrowed.DataAdapter):
        num_batches, batch_size = inner.num_batches, None

        def get_tf_dataset(self):
            return inner.get_tf_dataset().map(lambda x, y: (x, y))

        def on_epoch_begin(self):
            inner.on_epoch_begin()

        def on_epoch_end(self):
            inner.on_epoch_end()

    model = _compiled()
    model.fit(Adapter(), epochs=2, verbose=0)
    assert batches.begun == 2 and int(model.optimizer.iterations) == 4


def test_generator_data_adapter():
    adapter = borrowed.GeneratorDataAdapter(iter([(_X, _Y), (_X[:2], _Y[:2]), (_X, _Y)]))
    assert [len(x) for x, _ in adapter.get_tf_dataset()] == [4, 2, 4]
    adapter.generator = lambda: iter([(_X, _Y), (_X, _Y)])
    for _ in range(2):
        assert len(list(adapter.get_tf_dataset())) == 2


def test_build_symbolically():
    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(3)

        def call(self, inputs):
            return self.dense(tf.reshape(inputs["a"], [-1, 4]))

    model = Subclassed()
    borrowed.build_symbolically(model, {"a": keras.KerasTensor((None, 2, 2))})
    assert model.built and [tuple(v.shape) for v in model.weights] == [(4, 3), (3,)]


# -- masks -------------------------------------------------------------------------------------------


def test_masks_of_layers_reach_the_loss():
    masked = layers.Embedding(3, 2, mask_zero=True)(np.array([[1, 0]]))
    np.testing.assert_array_equal(borrowed.get_keras_mask(masked), [[True, False]])
    assert borrowed.get_keras_mask(tf.ones([1])) is None

    def loss():
        y_pred = tf.constant([[1.0], [5.0]])
        borrowed.set_keras_mask(y_pred, tf.constant([[True], [False]]))
        return keras.losses.MeanSquaredError()(tf.zeros([2, 1]), y_pred)

    for run in (loss, tf.function(loss)):
        assert_close(float(run()), 1.0, 2)  # only the first row counts


# -- layers ------------------------------------------------------------------------------------------


def test_layers_inside_and_their_seed_generators():
    dropout = layers.Dropout(0.5)
    inner = keras.Sequential([keras.Input((2,)), dropout, layers.Dense(2)])
    model = keras.Sequential([keras.Input((2,)), inner, layers.Dense(1)])
    found = borrowed.layers_of(model)
    assert len({id(v) for v in found}) == len(found)
    assert inner in found and dropout in found and model not in found
    assert borrowed.layers_of(model, itself=True)[0] is model
    assert borrowed.seed_generators(dropout) == [dropout.seed_generator]
    assert not borrowed.seed_generators(model)  # nested layers own their generators
    assert any(v is dropout.seed_generator.state for v in model.non_trainable_variables)
    holder = layers.Layer()
    holder.one, holder.others = layers.Dense(1), [layers.Dense(1)]
    holder.kept = [keras.random.SeedGenerator(1)]
    assert len(borrowed.seed_generators(holder)) == 1


def test_the_seed_generator_of_calls_without_a_seed():
    keras.backend.clear_session()
    assert borrowed.shared_seed_generator() is None
    keras.random.normal((1,))
    generator = borrowed.shared_seed_generator()
    before = keras.ops.convert_to_numpy(generator.state)
    keras.random.normal((1,))
    assert np.any(keras.ops.convert_to_numpy(generator.state) != before)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: layers.Dense(3), (4,)),
        (lambda: layers.EinsumDense("ab,bc->ac", 3), (4,)),
        (lambda: layers.Conv2D(3, 2), (5, 5, 4)),
    ],
    ids=["Dense", "EinsumDense", "Conv2D"],
)
def test_the_variable_below_lora(make, shape):
    layer = make()
    layer.build((None, *shape))
    kernel = borrowed.kernel_of(layer)
    assert any(kernel is v for v in layer.trainable_variables)
    layer.enable_lora(1)
    assert borrowed.kernel_of(layer) is kernel
    assert not any(layer.kernel is v for v in layer.variables)  # it is now a sum


def test_has_input_vocabulary():
    assert borrowed.was_given_vocabulary(layers.StringLookup(vocabulary=["a"]))
    adapted = layers.TextVectorization()
    assert not borrowed.was_given_vocabulary(adapted)
    adapted.adapt(np.array(["a"]))
    assert not borrowed.was_given_vocabulary(adapted)


def test_clear_losses():
    layer = layers.Dense(1, activity_regularizer="l2")
    model = keras.Sequential([keras.Input((2,)), layer])
    model(_X)
    assert model.losses
    borrowed.forget_losses(model)
    assert not model.losses


def test_without_penalties():
    model = keras.Sequential([keras.Input((2,)), layers.Dense(1, kernel_regularizer="l2")])
    others = layers.Dense(1, kernel_regularizer="l2")
    others.build((None, 2))
    with borrowed.without_penalties(model) as asked:
        assert not asked and not model.losses and not model.layers[0].losses and asked
        assert others.losses
    assert model.losses


class Recomputes(layers.Layer):
    def __init__(self, by):
        super().__init__()
        self.by, self.inner = by, layers.Dense(1)

    def call(self, x):
        return self.by(self.inner)(x)


@pytest.mark.parametrize("way", ["RematScope", "keras.remat", "tf.recompute_grad"])
def test_without_recomputation(way):
    def kinds():
        graph = tf.function(model).get_concrete_function(tf.TensorSpec([1, 2])).graph
        return {operation.type for operation in graph.get_operations()}

    if way == "RematScope":
        with keras.RematScope(mode="full"):
            layer = layers.Dense(1)
    else:  # looked up when the layer is called
        by = {"keras.remat": keras.remat, "tf.recompute_grad": lambda f: tf.recompute_grad(f)}
        layer = Recomputes(by[way])
    model = keras.Sequential([keras.Input((2,)), layer])
    with borrowed.without_recomputation():
        assert "IdentityN" not in kinds()
    assert "IdentityN" in kinds()


# -- models ------------------------------------------------------------------------------------------


def test_inputs_struct():
    inputs = {name: keras.Input((size,), name=name) for name, size in (("b", 2), ("a", 3))}
    model = keras.Model(inputs, layers.Concatenate()([inputs["b"], inputs["a"]]))
    found = borrowed.input_structure(model)
    assert {name: tuple(v.shape) for name, v in found.items()} == {"b": (None, 2), "a": (None, 3)}
    one = keras.Input((2,))
    (single,) = keras.tree.flatten(borrowed.input_structure(keras.Model(one, layers.ReLU()(one))))
    assert tuple(single.shape) == (None, 2)


def test_uses_of_functions_of_keras_ops():
    class Mean(keras.Operation):
        pass

    x = keras.Input((5, 3))
    relu = layers.ReLU()
    model = keras.Model(x, [relu(x), relu(keras.ops.mean(x[:, 1:], axis=1, keepdims=True))])
    assert len(borrowed.uses_of(relu)) == 2
    found = [o for o in model.operations if not isinstance(o, layers.Layer)]
    mean, item = (
        next(o for o in found if type(o).__name__ == name) for name in ("Mean", "GetItem")
    )
    assert mean.axis in (1, [1], (1,))
    ((args, kwargs),) = borrowed.uses_of(mean)
    tensors = [v for v in keras.tree.flatten((args, kwargs)) if isinstance(v, keras.KerasTensor)]
    assert [v.ndim for v in tensors] == [3]
    ((args, kwargs),) = borrowed.uses_of(item)
    _, index = [*args, *kwargs.values()]
    assert index == (slice(None), slice(1, None))


def test_compiled_loss_and_its_metrics():
    x = keras.Input((2,))
    model = keras.Model(x, [layers.Dense(1, name="a")(x), layers.Dense(1, name="b")(x)])
    assert borrowed.compiled_loss(model) is None
    model.compile("sgd", ["mse", "mae"])
    loss = borrowed.compiled_loss(model)
    model.fit(_X, [_Y, _Y], verbose=0)
    assert loss is borrowed.compiled_loss(model) and loss.built
    assert sorted(metric.name for metric in loss.metrics) == ["a_loss", "b_loss"]
    assert borrowed.loss_tracker(model) is model.metrics[0]


def test_compute_loss_without_training():
    class Old(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
            return 3.0

    assert borrowed.compute_loss_as_keras(Old(), _X, _Y, _Y, None) == 3.0


def test_all_metrics_has_those_that_an_override_hides():
    class Hides(keras.Sequential):
        metrics = ()

    model = Hides([layers.Dense(1)])
    model.mine = keras.metrics.Mean(name="mine")
    model.layers[0].own = keras.metrics.Mean(name="own")
    model.compile("sgd", "mse", metrics=["mae"])
    names = {metric.name for metric in borrowed.all_metrics(model)}
    assert names == {"loss", "compile_metrics", "mine", "own"}


def test_compile_metrics():
    model = _compiled(metrics=["mae"])
    assert borrowed.compile_metrics(model) is not None
    assert borrowed.compile_metrics(_compiled()) is None


def test_autoconvert_optionals():
    step = borrowed.without_optionals(keras.Sequential(), lambda data: data)
    absent = tf.experimental.Optional.empty(tf.TensorSpec([]))
    assert step((1, absent, {"w": 2})) == (1, None, {"w": 2})


def test_reduce_and_unpickle_model():
    model = _compiled()
    _, arguments = model.__reduce__()
    copy = borrowed.unpickled(*arguments)
    assert type(copy) is keras.Sequential and copy is not model
    np.testing.assert_array_equal(copy(_X), model(_X))
    assert isinstance(copy.optimizer, keras.optimizers.SGD)


def test_flat_losses():
    compiled = CompileLoss(["mse", keras.losses.mean_absolute_error], [1.0, 2.0])
    assert not compiled.built
    compiled.build([_Y, _Y], [_Y, _Y])
    assert compiled.built
    (_, first, one, _), (_, second, two, _) = borrowed.flat_losses(compiled)
    assert (one, two) == (1.0, 2.0)
    assert hasattr(first, "fn")
    assert first.fn is keras.losses.mean_squared_error
    assert second.fn is keras.losses.mean_absolute_error
    np.testing.assert_array_equal(first.call(_Y, 3 * _Y), [4.0] * 4)  # not reduced yet
    assert first.reduction == "sum_over_batch_size"
    single = CompileLoss("mse")
    single.build(_Y, _Y)
    ((path, _, weight, _),) = borrowed.flat_losses(single)
    assert not path and weight is None


def test_learning_rate_as_it_was_given():
    found = borrowed.configured_rate(keras.optimizers.SGD(0.5))
    assert isinstance(found, keras.Variable) and float(found.numpy()) == 0.5
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
    assert borrowed.configured_rate(keras.optimizers.SGD(schedule)) is schedule

    def rate():
        return 0.25

    assert borrowed.configured_rate(keras.optimizers.SGD(rate)) is rate


def test_normalizes_by_batch():
    layer = layers.BatchNormalization()
    assert borrowed.normalizes_by_batch(layer)
    layer.trainable = False
    assert not borrowed.normalizes_by_batch(layer)
    assert not borrowed.normalizes_by_batch(layers.LayerNormalization())


def test_become():
    inputs = keras.Input((4,))
    layer = layers.BatchNormalization(name="a")
    model = keras.Model(inputs, layer(inputs, training=False, mask=None) + layer(inputs))
    model.held = [layer]
    other = layers.GroupNormalization(2, name="a")
    other.build((None, 4))
    x = np.arange(8.0, dtype="float32").reshape(2, 4)
    expected = 2 * other(x)
    borrowed.become(layer, other)
    assert model.layers[1] is model.held[0] is layer
    assert type(layer) is layers.GroupNormalization
    np.testing.assert_array_equal(layer(x, training=True), expected / 2)
    for each in (model, keras.Model.from_config(model.get_config())):
        np.testing.assert_array_equal(each(x, training=True), expected)
    assert [weight.path for weight in model.weights] == [weight.path for weight in other.weights]
    layer.gamma.assign([2.0] * 4)
    np.testing.assert_array_equal(model(x), 2 * expected)


def test_a_quantized_layer_with_a_map_of_policies_is_saved_with_its_own():
    policies = keras.dtype_policies.DTypePolicyMap("float32")
    policies["model/table"] = "int8_from_float32"
    table = layers.Embedding(8, 4, name="table", dtype=policies)
    model = keras.Sequential([keras.Input((3,), dtype="int32"), table], name="model")
    assert table.quantization_mode == "int8"
    with pytest.raises(ValueError, match="object"):  # else this is not needed any more
        _saved(table)
    borrowed.take_policy(table)
    assert table.quantization_mode == "int8" and len(_saved(table)) == 2
    borrowed.take_policy(table)
    assert model(np.zeros((1, 3))).shape == (1, 3, 4)


def _saved(layer):
    values = {}
    layer.save_own_variables(values)
    if any(np.asarray(value).dtype == object for value in values.values()):
        raise ValueError("A value is an object.")
    return values
