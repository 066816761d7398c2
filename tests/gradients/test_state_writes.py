"""No private data stay in a model: whatever writes state in the training pass is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from tensorflow.python.framework import function

from tfdp import models
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import bounded_sum, choose_engine
from tfdp.gradients.op_effects import Effect, effect_of
from tfdp.gradients.state_writes import refuse_hidden_state, refuse_writes
from tfdp.layers import NoisyConv2D, NoisyDense, NoisyLSTM, PublicBatchNormalization, PublicExamples

X, Y = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)


def compiled(*stack, shape=(3,), loss="mse", **kwargs):
    model = keras.Sequential([keras.Input(shape), *stack, layers.Flatten(), layers.Dense(2)])
    model.compile(loss=loss, **kwargs)
    return model


def check(model, x=X, y=Y):
    refuse_writes(Forward(model), x, y)


class Writer(layers.Layer):
    """Keeps a sum of its inputs, written by `how(layer, t)`."""

    def __init__(self, how, **kwargs):
        super().__init__(**kwargs)
        self.how = how
        self.kept = tf.Variable(0.0, trainable=False)
        self.rows = tf.Variable(tf.zeros([5]), trainable=False)
        self.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
        self.built = True
        self.queue = tf.queue.FIFOQueue(10, [tf.float32], [()])

    def call(self, t):
        seen = self.how(self, tf.reduce_sum(t))
        if not isinstance(seen, tf.Tensor):
            return t
        return t + 0.0 * tf.reshape(tf.cast(seen, t.dtype), [])

    def compute_output_spec(self, t):
        return keras.KerasTensor(t.shape, t.dtype)


GLOBAL = tf.Variable(0.0)


def in_loop(layer, s):
    def body(i, kept):
        return i + 1, layer.kept.assign_add(s)

    return tf.while_loop(lambda i, _: i < 2, body, (0, s))[1]


def in_map(layer, s):
    return tf.reduce_sum(tf.map_fn(lambda e: layer.kept.assign_add(e), s[tf.newaxis]))


def in_switch(layer, s):
    return tf.switch_case(tf.cast(s > 0, tf.int32), [lambda: s, lambda: layer.kept.assign(s)])


def in_functions(layer, s):
    inner = tf.function(lambda t: layer.kept.assign_add(t))
    return tf.function(lambda t: tf.cond(t > 0, lambda: inner(t), lambda: t))(s)


def in_gradient(layer, s):
    @tf.custom_gradient
    def identity(t):
        def gradient(upstream):
            layer.kept.assign_add(t)
            return upstream

        return tf.identity(t), gradient

    return identity(s)


def in_gradient_of_function(layer, s):
    return tf.function(lambda t: in_gradient(layer, t))(s)


def in_old_function(layer, s):
    """Such a function is called by a node that has the function's name as its type."""

    @function.Defun(tf.float32)
    def assign(t):
        return layer.kept.assign(t)

    return assign(s)


def lazily(layer, s):
    if not hasattr(layer, "late"):
        layer.late = tf.Variable(0.0, trainable=False)
    layer.late.assign(s)


def with_generator(layer, s):
    generator = tf.random.get_global_generator()
    generator.skip(tf.cast(s, tf.int64))


WRITES = {
    "assign": lambda layer, s: layer.kept.assign(s),
    "assign add": lambda layer, s: layer.kept.assign_add(s),
    "scatter": lambda layer, s: layer.rows.scatter_update(tf.IndexedSlices(s, 1)),
    "slice": lambda layer, s: layer.rows[1].assign(s),
    "global": lambda layer, s: GLOBAL.assign(s),
    "loop": in_loop,
    "map": in_map,
    "cond": lambda layer, s: tf.cond(s > 0, lambda: layer.kept.assign(s), lambda: s),
    "switch": in_switch,
    "nested functions": in_functions,
    "vectorized": lambda layer, s: tf.vectorized_map(
        lambda e: e + layer.kept.assign_add(s), s[tf.newaxis], fallback_to_while_loop=False
    )[0],
    "custom gradient": in_gradient,
    "custom gradient in a function": in_gradient_of_function,
    "function of TensorFlow 1": in_old_function,
    "made in the call": lazily,
    "table": lambda layer, s: layer.table.insert([1], [s]),
    "queue": lambda layer, s: layer.queue.enqueue(s),
    "numpy": lambda layer, s: tf.numpy_function(np.square, [s], tf.float32),
    "stateless numpy": lambda layer, s: tf.numpy_function(
        np.square, [s], tf.float32, stateful=False
    ),
    "python": lambda layer, s: tf.py_function(lambda v: v, [s], tf.float32),
    "file": lambda layer, s: tf.io.write_file("never", tf.as_string(s)),
    "print to a file": lambda layer, s: tf.print(s, output_stream="file://never"),
    "generator": with_generator,
    "constant of the first call": lambda layer, s: tf.raw_ops.GuaranteeConst(input=s),
    "memory of earlier steps": lambda layer, s: tf.raw_ops.Empty(
        shape=tf.zeros([0], tf.int32), dtype=tf.float32
    ),
    "own optimizer": lambda layer, s: (
        tf.raw_ops.ResourceApplyGradientDescent(var=layer.kept.handle, alpha=1.0, delta=s) and None
    ),
}


@pytest.mark.parametrize("how", WRITES)
def test_a_layer_that_writes_is_refused_with_its_name_and_place(how):
    model = compiled(layers.Dense(3), Writer(WRITES[how], name="secretive"))
    with pytest.raises(ValueError) as error:
        check(model)
    if how == "vectorized":  # TensorFlow has no vectorizing rule for assignments, and says so
        assert "AssignAddVariableOp" in str(error.value)
    else:
        place = "a gradient" if "gradient" in how else "layer 'secretive' (Writer)"
        for words in (f"in {place}, /", "test_state_writes.py:", "Expected", "without any noise"):
            assert words in str(error.value)


def test_the_variable_that_is_written_is_named():
    layer = Writer(WRITES["assign"])
    layer.kept = tf.Variable(0.0, name="running")
    with pytest.raises(ValueError, match="assigns to a variable 'running'"):
        check(compiled(layer))


def test_nothing_is_written_by_the_check():
    layer = Writer(WRITES["assign"])
    with pytest.raises(ValueError):
        check(compiled(layer))
    assert layer.kept.numpy() == 0.0


def writes(value):
    GLOBAL.assign_add(tf.reduce_sum(value))
    return 0.0 * tf.reduce_sum(value)


def losing(y_true, y_pred):
    return writes(y_pred) + tf.reduce_mean(tf.square(y_true - y_pred), -1)


class Constrained(keras.constraints.Constraint):
    def __call__(self, w):
        writes(w)
        return w


class Losing(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        writes(x)
        return super().compute_loss(x, y, y_pred, sample_weight, training)


def losing_model():
    model = Losing([keras.Input((3,)), layers.Dense(2)])
    model.compile(loss="mse")
    return model


ELSEWHERE = {
    "loss": lambda: compiled(loss=losing),
    "compute_loss": losing_model,
    "activity regularizer": lambda: compiled(layers.Dense(2, activity_regularizer=writes)),
    "weight regularizer": lambda: compiled(layers.Dense(2, kernel_regularizer=writes)),
    "weight constraint": lambda: compiled(layers.Dense(2, kernel_constraint=Constrained())),
    "activation": lambda: compiled(layers.Dense(3, activation=lambda t: t + writes(t))),
    "nested": lambda: compiled(keras.Sequential([layers.Lambda(lambda t: t + writes(t))])),
}


@pytest.mark.parametrize("where", ELSEWHERE)
def test_state_that_is_written_outside_a_layer_is_refused(where):
    with pytest.raises(ValueError, match="assigns to a variable"):
        check(ELSEWHERE[where]())


class Named(layers.Layer):
    """Keeps a running statistic in a weight whose name is that of a random state."""

    def __init__(self, called, **kwargs):
        super().__init__(**kwargs)
        self.called = called

    def build(self, shape):
        self.kept = self.add_weight(
            name=self.called, shape=(2,), initializer="zeros", trainable=False
        )

    def call(self, t):
        self.kept.assign(self.kept + keras.ops.stack([keras.ops.sum(t), keras.ops.sum(t * t)]))
        return t


@pytest.mark.parametrize("called", ["seed_generator_state", "weight_noise_state"])
def test_a_weight_that_is_named_like_random_state_is_refused(called):
    model = compiled(Named(called))
    for engine in ("auto", "vectorized"):
        f = Forward(model)
        with pytest.raises(ValueError, match=f"{called}.*assigned during the forward pass"):
            bounded_sum(choose_engine(engine, model), f, GlobalL2Clip(1.0), X, Y, tf.ones([4]))
    with pytest.raises(ValueError, match=f"{called}.*assigned during the forward pass"):
        check(model)


class Seeded(layers.Layer):
    """Advances its random generator by `how`."""

    def __init__(self, how, kind=keras.random.SeedGenerator, **kwargs):
        super().__init__(**kwargs)
        self.how = how
        self.generators = {"mine": [kind(1)]}

    def call(self, t):
        state = self.generators["mine"][0].state
        state.assign(self.how(state, t))
        return t


def of_data(state, t):
    return state + keras.ops.cast(keras.ops.sum(t), state.dtype)


def in_a_branch(state, t):
    s = tf.convert_to_tensor(state)
    return tf.cond(tf.reduce_sum(t) > 0, lambda: s + 1, lambda: s)


@pytest.mark.parametrize("how", [of_data, in_a_branch])
def test_a_seed_that_is_assigned_data_is_refused(how):
    with pytest.raises(ValueError, match=r"Random state '.*' is assigned a value that depends"):
        check(compiled(Seeded(how)))


def test_a_seed_that_is_assigned_its_next_value_passes():
    model = compiled(Seeded(lambda state, t: state + 7))
    assert Forward(model).is_per_example(0)
    check(model)


def test_a_noisy_layer_that_keeps_data_in_its_state_is_refused():
    class Keeps(NoisyDense):
        def call(self, inputs, training=None):
            data = keras.ops.cast(keras.ops.sum(inputs), "uint32")
            self.weight_noise_state.assign(self.weight_noise_state + data)
            return super().call(inputs, training)

    with pytest.raises(ValueError, match=r"weight_noise_state.*depends on the inputs or targets"):
        check(compiled(Keeps(3, noise_stddev=0.1)))


def test_a_keras_variable_that_the_loss_assigns_is_refused():
    model = compiled(Named("statistic"))
    model.layers[0].call = lambda t: t

    def loss(y, y_pred):
        model.layers[0].kept.assign(keras.ops.mean(y_pred, axis=0))
        return keras.losses.mean_squared_error(y, y_pred)

    model.compile(loss=loss)
    with pytest.raises(ValueError, match=r"statistic.*assigned while the loss is computed"):
        check(model)


def test_what_is_added_after_the_noise_must_not_depend_on_data():
    class Penalized(layers.Dense):
        def call(self, inputs):
            self.seen = inputs
            return super().call(inputs)

    layer = Penalized(3, kernel_regularizer=lambda w: tf.reduce_sum(w) * tf.reduce_sum(layer.seen))
    with pytest.raises(ValueError, match=r"kernel.*regularizer|regularizer.*kernel"):
        check(compiled(layer))
    layer = Penalized(3, kernel_constraint=lambda w: w * tf.reduce_sum(layer.seen))
    with pytest.raises(ValueError, match=r"constraint.*kernel"):
        check(compiled(layer))


@pytest.mark.parametrize("options", [{"run_eagerly": True}, {"jit_compile": True}])
def test_however_the_model_is_compiled(options):
    for how in ("assign", "cond"):
        with pytest.raises(ValueError, match="assigns to a variable"):
            check(compiled(Writer(WRITES[how]), **options))
    check(compiled(layers.Dropout(0.5), **options))


def test_inside_a_traced_step_and_where_functions_run_eagerly():
    model = compiled(Writer(WRITES["nested functions"]))

    @tf.function
    def step(x, y):
        refuse_hidden_state(Forward(model), x, y)
        return tf.reduce_sum(x)

    unknown = [tf.TensorSpec((None, n)) for n in (3, 2)]
    with pytest.raises(ValueError, match="assigns to a variable"):
        step.get_concrete_function(*unknown)
    tf.config.run_functions_eagerly(True)
    try:
        with pytest.raises(ValueError, match="assigns to a variable"):
            refuse_hidden_state(Forward(model), X, Y)
    finally:
        tf.config.run_functions_eagerly(False)
    model = compiled(layers.Dropout(0.5))
    step.get_concrete_function(*unknown)


def test_inside_a_compiled_loop_of_steps():
    @tf.function(jit_compile=True)
    def steps(model, x, y):
        def one(i, total):
            refuse_hidden_state(Forward(model), x, y)
            return i + 1, total + tf.reduce_sum(x)

        return tf.while_loop(lambda i, _: i < 2, one, (0, 0.0))[1]

    model = compiled(layers.Dropout(0.5), layers.Dense(3, "silu"))
    assert float(steps(model, tf.constant(X), tf.constant(Y))) == 24.0
    with pytest.raises(ValueError, match="assigns to a variable"):
        steps(compiled(Writer(in_loop)), tf.constant(X), tf.constant(Y))


def test_a_model_is_traced_once_until_something_changes():
    model, traces = compiled(layers.Dropout(0.5), layers.Dense(3)), []

    class Counted(Forward):
        def loss(self, *arguments):
            traces.append(1)
            return super().loss(*arguments)

    def look(x=X, y=Y):
        refuse_hidden_state(Counted(model), x, y)
        return len(traces)

    assert [look(), look(), look(X[:2], Y[:2]), look()] == [1] * 4
    model.fit(X, Y, verbose=0)
    assert look() == 1
    assert look(X, np.zeros((4, 2), np.float64)) == 2
    model.compile(loss="mae")
    assert look() == 3
    model.layers[1].activation = keras.activations.tanh
    assert look() == 4
    model.layers[1].kernel.regularizer = keras.regularizers.L2(0.1)
    assert look() == 5
    model.layers[1].activation = lambda t: t + writes(t)
    for _ in range(2):  # a refusal is not forgotten at the second attempt
        with pytest.raises(ValueError, match="assigns to a variable"):
            look()


def test_what_was_checked_is_in_no_file(tmp_path):
    model = compiled(layers.Dropout(0.5))
    model.save(tmp_path / "before.keras")
    refuse_hidden_state(Forward(model), X, Y)
    model.save(tmp_path / "after.keras")
    sizes = [(tmp_path / name).stat().st_size for name in ("before.keras", "after.keras")]
    assert abs(sizes[0] - sizes[1]) < 64
    keras.models.load_model(tmp_path / "after.keras")


def test_ops_that_nobody_has_heard_of_are_refused():
    assert effect_of("NoSuchOp") is Effect.WRITES
    for op in ("AssignVariableOp", "Assign", "IteratorGetNext", "LearnedUnigramCandidateSampler"):
        assert effect_of(op) is Effect.WRITES
    for op in ("MatMul", "ReadVariableOp", "RandomUniform", "TensorListPushBack"):
        assert effect_of(op) is Effect.NONE
    assert effect_of("StatelessWhile") is effect_of("PartitionedCall") is Effect.LOOK_INSIDE


# -- what must be accepted -----------------------------------------------------------------------


class Functions(layers.Layer):
    @tf.function
    def doubled(self, t):
        return tf.while_loop(lambda i, _: i < 2, lambda i, s: (i + 1, s + s), (0, t))[1]

    def call(self, t):
        return self.doubled(t)


class Draws(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.generator = tf.random.Generator.from_seed(1)

    def call(self, t):
        noise = self.generator.normal(tf.shape(t)) + tf.random.normal(tf.shape(t))
        return t + tf.map_fn(lambda row: row + self.generator.normal([3]), noise)


class Looks(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        values = tf.lookup.KeyValueTensorInitializer([0, 1], [1.0, 2.0])
        self.table = tf.lookup.StaticHashTable(values, 0.0)
        self.scale = tf.Variable([1.0, 2.0, 3.0])

    def call(self, t):
        tf.debugging.assert_non_negative(tf.abs(t))
        tf.print("seen", tf.shape(t))
        return t * self.table.lookup(tf.cast(t, tf.int32)) * tf.gather(self.scale, [0, 1, 2])


IMAGES = {
    "augmented": lambda: [
        layers.RandomFlip(),
        layers.RandomRotation(0.1),
        layers.RandomTranslation(0.1, 0.1),
        layers.RandomZoom(0.1),
        layers.RandomContrast(0.1),
        layers.RandomBrightness(0.1),
        layers.RandomCrop(6, 6),
    ],
    "spatial dropout": lambda: [layers.Conv2D(2, 3), layers.SpatialDropout2D(0.5)],
    "noisy": lambda: [NoisyConv2D(2, 3, noise_stddev=0.1), layers.GroupNormalization(1)],
    "public": lambda: [
        PublicExamples(
            keras.Sequential(
                [keras.Input((8, 8, 3)), layers.Conv2D(2, 3), PublicBatchNormalization()]
            ),
            np.random.default_rng(0).normal(size=(4, 8, 8, 3)),
        )
    ],
}
SEQUENCES = {
    "lstm": lambda: [layers.LSTM(3, dropout=0.1, recurrent_dropout=0.1)],
    "gru": lambda: [layers.GRU(3, dropout=0.1, recurrent_dropout=0.1, return_sequences=True)],
    "fused": lambda: [layers.Bidirectional(layers.LSTM(3)), layers.Dense(3)],
    "rnn": lambda: [layers.SimpleRNN(3, recurrent_dropout=0.1)],
    "spatial dropout": lambda: [layers.SpatialDropout1D(0.5)],
    "bidirectional": lambda: [layers.Bidirectional(layers.GRU(3, recurrent_dropout=0.2))],
}
ROWS = {
    "dropout": lambda: [layers.Dropout(0.5), layers.AlphaDropout(0.5)],
    "noise": lambda: [layers.GaussianNoise(0.5), layers.GaussianDropout(0.5)],
    "noisy": lambda: [NoisyDense(3, noise_stddev=0.1)],
    "noisy_lstm": lambda: [layers.Reshape((3, 1)), NoisyLSTM(3, noise_stddev=0.1)],
    "functions": lambda: [Functions()],
    "draws": lambda: [Draws()],
    "looks": lambda: [Looks()],
    "activations": lambda: [layers.Dense(3, "silu"), layers.Dense(3, "softmax"), layers.ReLU()],
    "penalties": lambda: [
        layers.Dense(
            3,
            kernel_regularizer="l2",
            activity_regularizer="l1",
            kernel_constraint=keras.constraints.MaxNorm(1.0),
        ),
        layers.ActivityRegularization(0.1),
    ],
}


@pytest.mark.parametrize("kind", ROWS)
def test_ordinary_layers_pass(kind):
    check(compiled(*ROWS[kind]()))


@pytest.mark.parametrize("kind", IMAGES)
def test_ordinary_layers_of_images_pass(kind):
    check(compiled(*IMAGES[kind](), shape=(8, 8, 3)), np.ones((4, 8, 8, 3), np.float32))


@pytest.mark.parametrize("length", [5, None])
@pytest.mark.parametrize("kind", SEQUENCES)
def test_ordinary_layers_of_sequences_pass(kind, length):
    inputs = keras.Input((length,), dtype="int32")
    sequence = layers.Embedding(7, 3, mask_zero=True)(inputs)
    for layer in SEQUENCES[kind]():
        sequence = layer(sequence)
    if len(sequence.shape) == 3:
        sequence = layers.GlobalAveragePooling1D()(sequence)
    model = keras.Model(inputs, layers.Dense(2)(sequence))
    model.compile(loss="mse")
    check(model, tf.TensorSpec((None, length), tf.int32), tf.TensorSpec((None, 2)))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_attention_with_several_inputs_and_outputs_passes(policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        a, b = keras.Input((5, 4), name="a"), keras.Input((5, 4), name="b")
        mixed = layers.MultiHeadAttention(2, 3, dropout=0.2)(a, b)
        mixed = layers.Dropout(0.1)(layers.LayerNormalization()(mixed))
        pooled = layers.GlobalAveragePooling1D()(mixed)
        outputs = {"c": layers.Dense(2)(pooled), "d": layers.Dense(1)(pooled)}
        model = keras.Model({"a": a, "b": b}, outputs)
        model.compile(loss={"c": "mse", "d": "mae"})
    finally:
        keras.config.set_dtype_policy(before)
    x = {name: np.ones((4, 5, 4), np.float32) for name in "ab"}
    check(model, x, {"c": np.zeros((4, 2)), "d": np.zeros((4, 1))})


def smallest_input(name):
    architecture = models.MODELS[name]
    side = max(16, architecture.smallest_image or 0)
    return (6,) if architecture.takes_tokens else (side, side, 3)


@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_all_models_of_tfdp_pass(name):
    shape = smallest_input(name)
    model = models.build(name, shape, 3)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    dtype = model.inputs[0].dtype
    labels = tf.TensorSpec(model.outputs[0].shape[:-1], tf.int64)
    check(model, tf.TensorSpec((None, *shape), dtype), labels)


def test_a_subclassed_model_passes_and_one_that_writes_does_not():
    class Own(keras.Model):
        def __init__(self, writing=False):
            super().__init__()
            self.stack = [layers.Dense(3), layers.Dropout(0.5)]
            self.last = layers.Dense(2)
            self.writing = writing
            self.kept = tf.Variable(0.0, trainable=False)

        def call(self, t, training=False):
            for layer in self.stack:
                t = layer(t, training=training)
            if self.writing and training:
                self.kept.assign_add(tf.reduce_sum(t))
            return self.last(t)

    for writing in (False, True):
        model = Own(writing)
        model(X)
        model.compile(loss="mse")
        assert any(Forward(model).is_per_example(i) for i in range(1))
        if not writing:
            check(model)
            continue
        with pytest.raises(ValueError, match=r"in the forward pass, .*test_state_writes\.py"):
            check(model)
