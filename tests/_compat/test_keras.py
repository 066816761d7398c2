"""Each name borrowed from Keras has the behaviour that tfdp relies on."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfdp._compat import keras as borrowed
from tfdp.gradients.rules import separate_rows

_X, _Y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")


def _compiled(loss="mse", **options):
    model = keras.Sequential([keras.Input((2,)), layers.Dense(1)])
    model.compile("sgd", loss, **options)
    return model


# -- imported names ----------------------------------------------------------------------------------


def test_in_stateless_scope():
    assert not borrowed.in_stateless_scope()
    with keras.StatelessScope():
        assert borrowed.in_stateless_scope()
    assert not borrowed.in_stateless_scope()


def test_get_stateless_scope():
    assert borrowed.get_stateless_scope() is None
    variable = keras.Variable(1.0)
    with keras.StatelessScope([(variable, 2.0)]):
        with keras.StatelessScope([(variable, 3.0)]):
            assert borrowed.get_stateless_scope().get_current_value(variable) == 3.0
        assert borrowed.get_stateless_scope().get_current_value(variable) == 2.0


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_base_conv(rank):
    assert issubclass(getattr(layers, f"Conv{rank}D"), borrowed.BaseConv)
    assert not issubclass(layers.Dense, borrowed.BaseConv)
    conv = getattr(layers, f"Conv{rank}D")(4, 3)
    assert (conv.rank, conv.filters, conv.kernel_size) == (rank, 4, (3,) * rank)


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


def test_conv_lstm_cell():
    assert type(layers.ConvLSTM1D(2, 2).cell) is borrowed.ConvLSTMCell


def test_base_conv_convolves_by_convolution_op():
    conv = layers.Conv2D(2, 3, use_bias=False)
    x = np.arange(50.0, dtype="float32").reshape(1, 5, 5, 2)
    np.testing.assert_array_equal(conv(x), conv.convolution_op(x, conv.kernel))


def test_functional():
    x = keras.Input((2,))
    model = keras.Model(x, layers.Dense(1)(x))
    assert type(model) is borrowed.Functional
    assert issubclass(keras.Sequential, keras.Model)
    assert not issubclass(keras.Sequential, borrowed.Functional)
    assert "call" in vars(borrowed.Functional)
    dense = model.layers[1]
    assert model.operations == [model.layers[0], dense]


def test_floatx():
    assert borrowed.floatx() == keras.config.floatx() == "float32"


class _Batches(keras.utils.PyDataset):
    num_batches = 2

    def __init__(self):
        super().__init__()
        self.epochs = []

    def __getitem__(self, i):
        return _X + i, _Y

    def on_epoch_begin(self):
        self.epochs.append("begin")


def test_fit_takes_a_data_adapter_and_tells_it_of_epochs():
    inner = borrowed.PyDatasetAdapter(_Batches(), shuffle=False)
    told = []

    class Adapter(borrowed.DataAdapter):
        num_batches, batch_size = 2, None

        def get_tf_dataset(self):
            return inner.get_tf_dataset().map(lambda x, y: (x, y))

        def on_epoch_begin(self):
            told.append("begin")

    model = _compiled()
    model.fit(Adapter(), epochs=2, verbose=0)
    assert told == ["begin"] * 2 and int(model.optimizer.iterations) == 4


def test_py_dataset_adapter():
    batches = _Batches()
    adapter = borrowed.PyDatasetAdapter(batches, shuffle=False)
    assert adapter.num_batches == 2
    first, second = (x.numpy() for x, _ in adapter.get_tf_dataset())
    np.testing.assert_array_equal(first + 1, second)
    adapter.on_epoch_begin()
    assert batches.epochs == ["begin"]
    adapter.on_epoch_end()


def test_generator_data_adapter():
    adapter = borrowed.GeneratorDataAdapter(iter([(_X, _Y), (_X[:2], _Y[:2]), (_X, _Y)]))
    assert [len(x) for x, _ in adapter.get_tf_dataset()] == [4, 2, 4]
    adapter = borrowed.GeneratorDataAdapter(iter([(_X, _Y)]))
    adapter.generator = lambda: iter([(_X, _Y), (_X, _Y)])
    for _ in range(2):
        assert len(list(adapter.get_tf_dataset())) == 2


def test_trainer():
    class Trained(borrowed.Trainer, layers.Dense):
        def __init__(self, units):
            layers.Dense.__init__(self, units)
            borrowed.Trainer.__init__(self)

    assert issubclass(keras.Model, borrowed.Trainer)
    assert not issubclass(layers.Dense, borrowed.Trainer)
    Trained(2).compile("sgd", "mse")


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
    with pytest.raises(Exception, match=r"channels|axes|rank|ndim"):
        borrowed.build_symbolically(
            keras.Sequential([layers.Conv2D(2, 3)]), keras.KerasTensor((None, 4))
        )


def test_compile_loss():
    assert type(borrowed.compiled_loss(_compiled())) is borrowed.CompileLoss


@pytest.mark.parametrize("loss", ["mse", keras.losses.mean_squared_error])
def test_loss_function_wrapper(loss):
    model = _compiled(loss)
    compiled = borrowed.compiled_loss(model)
    compiled.build(_Y, _Y)
    ((_, made, _, _),) = borrowed.flat_losses(compiled)
    assert type(made) in (borrowed.LossFunctionWrapper, keras.losses.MeanSquaredError)
    assert isinstance(made, borrowed.LossFunctionWrapper)
    assert made.fn is keras.losses.mean_squared_error
    np.testing.assert_array_equal(made.call(_Y, 3 * _Y), [4.0] * 4)  # not reduced yet
    assert made.reduction == "sum_over_batch_size"


# -- masks -------------------------------------------------------------------------------------------


def test_get_keras_mask_finds_what_a_layer_computed():
    ids = np.array([[1, 0]])
    masked = layers.Embedding(3, 2, mask_zero=True)(ids)
    np.testing.assert_array_equal(borrowed.get_keras_mask(masked), [[True, False]])
    assert borrowed.get_keras_mask(tf.ones([1])) is None


@pytest.mark.parametrize("eager", [True, False])
def test_set_keras_mask_reaches_the_loss(eager):
    def run():
        y_pred = tf.constant([[1.0], [5.0]])
        borrowed.set_keras_mask(y_pred, tf.constant([[True], [False]]))
        return keras.losses.MeanSquaredError()(tf.zeros([2, 1]), y_pred)

    loss = run() if eager else tf.function(run)()
    assert float(loss) == pytest.approx(1.0)  # only the first row counts


# -- layers ------------------------------------------------------------------------------------------


def _nested():
    inner = keras.Sequential([keras.Input((2,)), layers.Dropout(0.5), layers.Dense(2)])
    return inner, keras.Sequential([keras.Input((2,)), inner, layers.Dense(1)])


def test_flatten_layers():
    inner, model = _nested()
    found = borrowed.layers_of(model)
    assert [type(v).__name__ for v in found if v is not inner].count("Dense") == 2
    assert inner in found and inner.layers[0] in found and model not in found
    assert len({id(v) for v in found}) == len(found)
    assert borrowed.layers_of(model, itself=True)[0] is model


def test_layers():
    inner, model = _nested()
    found = borrowed.children(model)
    assert inner in found and model.layers[1] in found
    assert inner.layers[0] not in found
    one, other = layers.Dense(1), layers.Dense(1)
    holder = layers.Layer()
    holder.one, holder.others = one, [other]
    assert [*borrowed.children(holder)] == [one, other]


def test_seed_generators():
    inner, model = _nested()
    dropout = inner.layers[0]
    assert borrowed.seed_generators(dropout) == [dropout.seed_generator]
    assert isinstance(dropout.seed_generator, keras.random.SeedGenerator)
    assert not borrowed.seed_generators(model)  # nested layers own their generators
    holder = layers.Layer()
    holder.kept = [keras.random.SeedGenerator(1)]
    assert len(borrowed.seed_generators(holder)) == 1
    state = dropout.seed_generator.state
    assert tuple(state.shape) == (2,) and any(v is state for v in model.non_trainable_variables)


def test_remat_mode():
    assert not borrowed.is_rematerialized(layers.Dense(1))
    with keras.RematScope(mode="full"):
        layer = layers.Dense(1)
    assert borrowed.is_rematerialized(layer)


def test_classes_with_nothing_of_their_own():
    class Renamed(layers.Dense):
        """A Dense."""

    class Computes(layers.Dense):
        def call(self, inputs):
            return super().call(inputs)

    class Configured(layers.Dense):
        autocast = False

    assert borrowed.has_nothing_of_its_own(Renamed)
    assert not borrowed.has_nothing_of_its_own(Computes)
    assert not borrowed.has_nothing_of_its_own(Configured)
    # What KerasHub's decorator adds.
    Renamed._api_export_path = ["some.path"]
    assert borrowed.has_nothing_of_its_own(Renamed)


_KERNELS = {
    "Dense": (lambda: layers.Dense(3), (4,)),
    "EinsumDense": (lambda: layers.EinsumDense("ab,bc->ac", 3), (4,)),
    "Conv1D": (lambda: layers.Conv1D(3, 2), (5, 4)),
    "Conv2D": (lambda: layers.Conv2D(3, 2), (5, 5, 4)),
    "Conv3D": (lambda: layers.Conv3D(3, 2), (5, 5, 5, 4)),
}


@pytest.mark.parametrize("kind", _KERNELS)
def test_kernel(kind):
    make, shape = _KERNELS[kind]
    layer = make()
    layer.build((None, *shape))
    kernel = borrowed.kernel_of(layer)
    assert any(kernel is v for v in layer.trainable_variables)
    assert layer.lora_enabled is False
    layer.enable_lora(1)
    assert layer.lora_enabled is True
    assert borrowed.kernel_of(layer) is kernel  # `layer.kernel` is now a sum
    assert not any(layer.kernel is v for v in layer.variables)


def test_embeddings():
    layer = layers.Embedding(3, 2)
    layer.build((None, 4))
    assert borrowed.table_of(layer) is layer.trainable_variables[0]
    assert layer.lora_enabled is False
    layer.enable_lora(1)
    assert layer.lora_enabled is True
    assert not any(layer.embeddings is v for v in layer.variables)


def test_quantization_mode():
    layer = layers.Dense(3)
    layer.build((None, 4))
    assert layer.quantization_mode is None
    layer.quantize("int8")
    assert layer.quantization_mode == "int8"


@pytest.mark.parametrize(("shape", "axes"), [((3, 4), (1,)), ((3, 3, 4), (1, 2))])
def test_attention_axes(shape, axes):
    layer = layers.MultiHeadAttention(2, 2)
    layer(np.ones((1, *shape), "float32"), np.ones((1, *shape), "float32"))
    assert tuple(borrowed.attention_axes(layer)) == axes


@pytest.mark.parametrize(
    ("kind", "vocabulary"),
    [("StringLookup", ["a"]), ("TextVectorization", ["a"]), ("IntegerLookup", [1])],
)
def test_has_input_vocabulary(kind, vocabulary):
    kind = getattr(layers, kind)
    assert borrowed.was_given_vocabulary(kind(vocabulary=vocabulary))
    assert not borrowed.was_given_vocabulary(kind())
    adapted = kind()
    adapted.adapt(np.array(vocabulary))
    assert not borrowed.was_given_vocabulary(adapted)


def test_other_preprocessing_layers_tell_constants_apart():
    assert layers.Normalization(mean=0.0, variance=1.0).input_mean == 0.0
    assert layers.Normalization().input_mean is None
    assert layers.Discretization(bin_boundaries=[0.0]).num_bins is None
    assert layers.Discretization(num_bins=2).num_bins == 2


def test_clear_losses():
    layer = layers.Dense(1, activity_regularizer="l2")
    model = keras.Sequential([keras.Input((2,)), layer])
    model(_X)
    assert model.losses
    borrowed.forget_losses(model)
    assert not model.losses


# -- models ------------------------------------------------------------------------------------------


def test_graphs_of_layers():
    class Subclassed(keras.Model):
        pass

    x = keras.Input((2,))
    assert borrowed.is_graph_of_layers(keras.Model(x, layers.Dense(1)(x)))
    assert borrowed.is_graph_of_layers(keras.Sequential())
    assert not borrowed.is_graph_of_layers(Subclassed())
    assert not borrowed.is_graph_of_layers(layers.Dense(1))


def test_inputs_struct():
    inputs = {name: keras.Input((size,), name=name) for name, size in (("b", 2), ("a", 3))}
    model = keras.Model(inputs, layers.Concatenate()([inputs["b"], inputs["a"]]))
    found = borrowed.input_structure(model)
    assert {name: tuple(v.shape) for name, v in found.items()} == {"b": (None, 2), "a": (None, 3)}
    one = keras.Input((2,))
    (single,) = keras.tree.flatten(borrowed.input_structure(keras.Model(one, layers.ReLU()(one))))
    assert tuple(single.shape) == (None, 2)


def test_inputs_of_other_models():
    (one,) = borrowed.input_structure(keras.Sequential([keras.Input((2,)), layers.Dense(1)]))
    assert tuple(one.shape) == (None, 2)
    with pytest.raises((AttributeError, ValueError)):
        borrowed.input_structure(keras.Sequential([layers.Dense(1)]))

    class Subclassed(keras.Model):
        pass

    with pytest.raises((AttributeError, ValueError)):
        borrowed.input_structure(Subclassed())


def test_shapes_that_a_layer_was_built_for():
    layer = layers.BatchNormalization()
    layer(np.ones((2, 3, 4), "float32"))
    assert len(layer.get_build_config()["input_shape"]) == 3


def test_inbound_nodes():
    x = keras.Input((2, 3))
    relu = layers.ReLU()
    model = keras.Model(x, [relu(x), relu(keras.ops.mean(x, axis=1, keepdims=True))])
    assert len(borrowed.uses_of(relu)) == 2
    (mean,) = [o for o in model.operations if type(o).__name__ == "Mean"]
    ((args, kwargs),) = borrowed.uses_of(mean)
    tensors = [v for v in keras.tree.flatten((args, kwargs)) if isinstance(v, keras.KerasTensor)]
    assert [v.ndim for v in tensors] == [3]
    assert mean.axis in (1, [1], (1,))


def test_inbound_nodes_hold_the_index_of_a_slice():
    x = keras.Input((5, 3))
    model = keras.Model(x, x[:, 1:])
    (operation,) = [o for o in model.operations if not isinstance(o, layers.Layer)]
    assert borrowed.is_keras_function(operation, {"GetItem"})
    ((args, kwargs),) = borrowed.uses_of(operation)
    _, index = [*args, *kwargs.values()]
    assert index == (slice(None), slice(1, None))


@pytest.mark.parametrize("kind", sorted(separate_rows._ELEMENTWISE | separate_rows._ALONG_AXES))
def test_functions_of_keras_ops_have_classes(kind):
    snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in kind)[1:]
    function = getattr(keras.ops, snake)
    # The inputs have equal ranks. Only squeeze gets a length of one, since a softmax over it warns.
    logical = kind.startswith("Logical") or kind in ("All", "Any")
    shape = (1 if kind == "Squeeze" else 2, 3)
    x = [keras.Input(shape, dtype="bool" if logical else "float32") for _ in range(2)]
    options = {"axis": 1} if kind in separate_rows._ALONG_AXES else {}
    options |= {"num_classes": 4} if kind == "OneHot" else {}
    try:
        y = function(x[0], **options)
    except TypeError:
        y = function(*x)
    model = keras.Model(x, [y, layers.Identity()(x[1])])
    (operation,) = [o for o in model.operations if not isinstance(o, layers.Layer)]
    assert borrowed.is_keras_function(operation, {kind})
    assert not borrowed.is_keras_function(operation, {f"{kind}s"})
    if options:
        assert operation.axis in (1, (1,), [1])


def test_functions_of_others_are_not_keras_own():
    class Mean(keras.Operation):
        pass

    assert not borrowed.is_keras_function(Mean(), {"Mean"})


def test_compile_loss_of_a_model():
    model = keras.Sequential([keras.Input((2,)), layers.Dense(1)])
    assert borrowed.compiled_loss(model) is None
    model.compile("sgd", "mse")
    loss = borrowed.compiled_loss(model)
    model.fit(_X, _Y, verbose=0)
    assert loss is borrowed.compiled_loss(model) and loss.built
    assert loss.metrics == []


def test_losses_of_several_outputs_have_metrics():
    x = keras.Input((2,))
    model = keras.Model(x, [layers.Dense(1, name="a")(x), layers.Dense(1, name="b")(x)])
    model.compile("sgd", ["mse", "mae"])
    model.fit(_X, [_Y, _Y], verbose=0)
    names = [metric.name for metric in borrowed.compiled_loss(model).metrics]
    assert sorted(names) == ["a_loss", "b_loss"]
    assert {"loss", *names} <= {metric.name for metric in model.metrics}


def test_compile_metrics():
    assert borrowed.compiled_metrics(_compiled()) == (None, None)
    model = _compiled(metrics=["mae"])
    assert borrowed.compiled_metrics(model) == (["mae"], None)
    model = _compiled(weighted_metrics=["mae"])
    assert borrowed.compiled_metrics(model) == (None, ["mae"])


def test_compute_loss_with_and_without_training():
    class Old(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
            return 3.0

    class New(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=False):
            return 4.0 if training else 0.0

    assert borrowed.compute_loss_as_keras(Old(), _X, _Y, _Y, None) == 3.0
    assert borrowed.compute_loss_as_keras(New(), _X, _Y, _Y, None) == 4.0


def test_loss_tracker():
    model = _compiled()
    assert borrowed.loss_tracker(model) is model.metrics[0]
    assert borrowed.loss_tracker(model).name == "loss"


def test_all_metrics_has_those_that_an_override_hides():
    class Hides(keras.Sequential):
        metrics = ()

    model = Hides([layers.Dense(1)])
    model.mine = keras.metrics.Mean(name="mine")
    model.layers[0].own = keras.metrics.Mean(name="own")
    model.compile("sgd", "mse", metrics=["mae"])
    names = {metric.name for metric in borrowed.all_metrics(model)}
    assert names == {"loss", "compile_metrics", "mine", "own"}


def test_metrics_of_outputs():
    x = keras.Input((2,))
    model = keras.Model(x, [layers.Dense(1, name="a")(x), layers.Dense(1, name="b")(x)])
    model.compile("sgd", "mse", metrics=[["mae"], None], weighted_metrics=[None, ["mse"]])
    compiled = borrowed.compile_metrics(model)
    compiled.build([_Y, _Y], [_Y, _Y])
    unweighted, weighted = borrowed.flat_metrics(compiled)
    (found,) = unweighted([1, 2], [3, 4])
    assert found[1:] == (1, 3) and [m.name for m in found[0].metrics] == ["mae"]
    (found,) = weighted([1, 2], [3, 4])
    assert found[1:] == (2, 4) and [m.name for m in found[0].metrics] == ["mse"]
    assert borrowed.compile_metrics(_compiled()) is None


def test_function_of_a_metric():
    function = keras.metrics.mean_absolute_error
    assert borrowed.function_of(keras.metrics.MeanAbsoluteError()) is function
    top = borrowed.function_of(keras.metrics.TopKCategoricalAccuracy(k=1))
    assert float(top(tf.eye(3), tf.eye(3))[0]) == 1.0 and top.__module__.startswith("keras.")
    assert borrowed.function_of(keras.metrics.AUC()) is None


def test_after_cloning(monkeypatch):
    for name in ("_clone_sequential_model", "_clone_functional_model"):
        monkeypatch.setattr(borrowed.cloning, name, getattr(borrowed.cloning, name))
    seen = []
    borrowed.after_cloning(lambda model, clone: seen.append((model, clone)) or "made of it")
    x = keras.Input((2,))
    for model in (_compiled(), keras.Model(x, layers.Dense(1)(x))):
        assert keras.models.clone_model(model) == "made of it"
        original, clone = seen.pop()
        assert original is model and type(clone) is type(model) and clone is not model


def test_distribute_strategy():
    assert borrowed.own_strategy(keras.Sequential()) is None
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        model = keras.Sequential()
    assert borrowed.own_strategy(model) is strategy
    assert model.distribute_strategy is strategy


def test_autoconvert_optionals():
    seen = []
    step = borrowed.without_optionals(keras.Sequential(), lambda data: seen.append(data) or "logs")
    absent = tf.experimental.Optional.empty(tf.TensorSpec([]))
    assert step((1, absent, {"w": 2})) == "logs"
    assert seen == [(1, None, {"w": 2})]


def test_reduce_and_unpickle_model():
    model = _compiled()
    arguments = borrowed.pickled(model)
    copy = borrowed.unpickled(*arguments)
    assert type(copy) is keras.Sequential and copy is not model
    np.testing.assert_array_equal(copy(_X), model(_X))
    assert isinstance(copy.optimizer, keras.optimizers.SGD)


# -- losses ------------------------------------------------------------------------------------------


def test_flat_losses():
    compiled = borrowed.CompileLoss(["mse", "mae"], loss_weights=[1.0, 2.0])
    assert not compiled.built
    compiled.build([_Y, _Y], [_Y, _Y])
    assert compiled.built
    found = borrowed.flat_losses(compiled)
    assert [weight for _, _, weight, _ in found] == [1.0, 2.0]
    single = borrowed.CompileLoss("mse")
    single.build(_Y, _Y)
    ((path, loss, weight, _),) = borrowed.flat_losses(single)
    assert not path and weight is None and callable(loss)


def test_fn_kwargs():
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.5)
    found = borrowed.loss_arguments(loss)
    assert found["from_logits"] is True and found["label_smoothing"] == 0.5
    assert set(found) == {"from_logits", "label_smoothing", "axis"}
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=2)
    assert borrowed.loss_arguments(loss)["ignore_class"] == 2
    assert borrowed.loss_arguments(keras.losses.MeanSquaredError()) == {}


# -- optimizers --------------------------------------------------------------------------------------


def test_trainable_variables():
    optimizer = keras.optimizers.Adam()
    variables = [keras.Variable(1.0), keras.Variable([2.0])]
    optimizer.build(variables)
    found = borrowed.trained_variables(optimizer)
    assert [id(v) for v in found] == [id(v) for v in variables]


def test_iterations_is_the_counter_itself():
    optimizer = keras.optimizers.SGD()
    optimizer.iterations.assign_add(1)
    assert int(optimizer.iterations.numpy()) == 1
    assert any(v is optimizer.iterations for v in optimizer.variables)


def test_learning_rate_as_it_was_given():
    found = borrowed.configured_rate(keras.optimizers.SGD(0.5))
    assert isinstance(found, keras.Variable) and float(found.numpy()) == 0.5
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
    assert borrowed.configured_rate(keras.optimizers.SGD(schedule)) is schedule

    def rate():
        return 0.25

    assert borrowed.configured_rate(keras.optimizers.SGD(rate)) is rate


def test_model_variables_moving_average():
    variable = keras.Variable([1.0])
    optimizer = keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5)
    assert borrowed.moving_averages(optimizer) == []
    optimizer.build([variable])
    optimizer.apply([tf.constant([0.0])])
    optimizer.apply([tf.constant([-2.0])])
    (average,) = borrowed.moving_averages(optimizer)
    assert float(variable.numpy()[0]) == 3.0
    assert 1.0 <= float(average.numpy()[0]) < 3.0
    without = keras.optimizers.SGD()
    without.build([variable])
    assert borrowed.moving_averages(without) == []
