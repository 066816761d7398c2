"""Fine-tuning: frozen backbones with a new head, LoRA, and the tasks of KerasHub."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdp
from tests.gradients.reference import assert_equal_sums, loop_bounded_sum, run_engine
from tests.rounding import assert_close, terms_of
from tests.seeds import seed_keras
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import ghost
from tfdp.gradients.forward import Forward
from tfdp.training.preparing import prepared

ROWS, CLASSES = 8, 3
LOSS = keras.losses.SparseCategoricalCrossentropy


def labels(rows=ROWS):
    return np.random.default_rng(1).integers(0, CLASSES, rows)


def images(size=32):
    return np.random.default_rng(0).uniform(0, 255, (ROWS, size, size, 3)).astype(np.float32)


def trained(model, x, y):
    """Takes two private steps, and returns the paths of the weights that moved."""
    tfdp.make_private(model, engine="loop")
    optimizer = tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0, learning_rate=0.1)
    model.compile(optimizer, LOSS(from_logits=True), run_eagerly=True)
    before = model.get_weights()
    model.fit(x, y, batch_size=4, epochs=1, verbose=0)
    assert model.privacy.steps_taken == 2
    pairs = zip(model.weights, before, strict=True)
    return {v.path for v, old in pairs if not np.array_equal(v.numpy(), old)}


def trained_paths(model):
    return {v.path for v in model.trainable_variables}


def equals_a_loop(model, x, y):
    """Whether the ghost engine has the clipped sums of a loop over the rows."""
    model.compile(loss=LOSS(from_logits=True))
    x = tf.nest.map_structure(tf.constant, x)
    arguments = (Forward(model), GlobalL2Clip(0.1), x, tf.constant(y), tf.ones([len(y)]))
    ours = run_engine(ghost.bounded_sum, *arguments)
    assert_equal_sums(ours, loop_bounded_sum(*arguments, tf.constant(0)), terms_of(model, len(y)))


# -- keras.applications ----------------------------------------------------------------------------


def residual():
    inputs = keras.Input((32, 32, 3))
    hidden = layers.BatchNormalization()(layers.DepthwiseConv2D(3, padding="same")(inputs))
    return keras.Model(inputs, layers.Add()([inputs, layers.Activation("swish")(hidden)]))


def test_a_new_head_on_a_frozen_backbone():
    base = residual()
    base.trainable = False
    inputs = keras.Input((32, 32, 3))
    head = layers.Dense(CLASSES)
    pooled = layers.GlobalAveragePooling2D()(base(inputs, training=False))
    model = keras.Model(inputs, head(pooled))
    x, y = images(), labels()
    # The head learns as it would on features that the frozen backbone made before.
    alone = keras.Sequential([keras.Input(pooled.shape[1:]), head])
    features = tf.reduce_mean(base(x, training=False), axis=[1, 2])
    sums = []
    for network, data in ((model, x), (alone, features)):
        network.compile(loss=LOSS(from_logits=True))
        arguments = (Forward(network), GlobalL2Clip(0.1), data, y, tf.ones([ROWS]))
        sums.append(run_engine(ghost.bounded_sum, *arguments))
    for ours, expected in zip(sums[0].sums, sums[1].sums, strict=True):
        assert_close(ours, expected, terms_of(model, ROWS))
    assert trained(model, x, y) == trained_paths(model) == {v.path for v in head.variables}


# -- LoRA ------------------------------------------------------------------------------------------


def encoder():
    tokens = keras.Input((6,), dtype="int32")
    hidden = layers.Embedding(20, 8, name="table")(tokens)
    attention = layers.MultiHeadAttention(2, 4, name="attention")
    hidden = layers.LayerNormalization()(hidden + attention(hidden, hidden))
    hidden = layers.Dense(16, activation="gelu", name="wide")(hidden)
    return keras.Model(tokens, layers.GlobalAveragePooling1D()(hidden))


def adapted_encoder():
    base = encoder()
    base.trainable = False
    for layer in base._flatten_layers():
        if layer.name in ("table", "wide", "query", "value"):
            layer.trainable = True
            layer.enable_lora(2)
    tokens = keras.Input((6,), dtype="int32")
    return keras.Model(tokens, layers.Dense(CLASSES)(base(tokens)))


def test_an_encoder_with_adapters():
    seed_keras(0)
    model = adapted_encoder()
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 20, (ROWS, 6)), labels()
    for variable in model.trainable_variables:
        variable.assign(generator.normal(0.0, 0.3, variable.shape))
    moved = trained(model, x, y)
    assert moved == trained_paths(model)
    assert len([path for path in moved if "lora" in path]) == 8
    assert not [path for path in moved if path.endswith("kernel") and "lora" not in path][1:]


# -- KerasHub --------------------------------------------------------------------------------------

SIZES = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16}
IMAGES = {"patch_size": 8, "image_shape": (16, 16, 3), "num_heads": 2}
# What has weights of its own: class tokens, scales, relative positions, soft caps.
OTHERS = {
    "GemmaBackbone": SIZES
    | {"num_query_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocabulary_size": 30},
    "T5Backbone": SIZES | {"num_heads": 2, "vocabulary_size": 30, "dropout": 0.0},
    "ViTBackbone": IMAGES | {"num_layers": 1, "hidden_dim": 8, "mlp_dim": 16},
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_backbones_of_keras_hub_equal_a_loop(name):
    hub = pytest.importorskip("keras_hub", reason="KerasHub is no dependency")
    seed_keras(0)
    base = getattr(hub.models, name)(**OTHERS[name])
    generator = np.random.default_rng(0)
    x = []
    for tensor in base.inputs:
        if tensor.ndim == 4:
            x.append(generator.normal(size=(3, *tensor.shape[1:])).astype(np.float32))
        else:
            known = "mask" in tensor.name
            x.append(np.ones((3, 6), np.int32) if known else generator.integers(0, 30, (3, 6)))
    outputs = keras.tree.flatten(base.output)[-1]
    model = keras.Model(base.inputs, layers.Dense(CLASSES)(outputs[:, 0]))
    equals_a_loop(model, x if len(x) > 1 else x[0], labels(3))


# -- models that prepare their samples -------------------------------------------------------------


class Task(keras.Sequential):
    """Prepares samples in `fit`, as KerasHub's tasks do."""

    def __init__(self, preprocessor):
        super().__init__([keras.Input((2,)), layers.Dense(CLASSES)])
        self.preprocessor = preprocessor

    def preprocess_samples(self, x, y=None, sample_weight=None):
        if self.preprocessor is not None:
            x = self.preprocessor(x)
        return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)

    def fit(self, x=None, y=None, sample_weight=None, **kwargs):
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
        return super().fit(data.map(self.preprocess_samples), **kwargs)


def lengths(texts):
    count = tf.cast(tf.strings.length(texts), tf.float32)
    return tf.stack([count, -count], axis=1)


TEXTS = np.array(["a", "word", "or", "two", "three", "and", "some", "more"])


def test_texts_are_prepared_before_lots_are_drawn():
    model = Task(lengths)
    y = labels()
    assert trained(model, TEXTS, y) == trained_paths(model)
    history = model.fit(TEXTS, y, batch_size=ROWS, validation_data=(TEXTS, y), verbose=0)
    assert np.isfinite(history.history["val_loss"][0])
    data = tf.data.Dataset.from_tensor_slices((TEXTS, y)).batch(ROWS)
    model.fit(data, verbose=0)
    model.train_on_batch(TEXTS, y)
    assert model.privacy.ledger.runs[0].sampling.name == "poisson"


def test_each_fit_prepares_lots_as_the_preprocessor_is_then_and_goes_on_in_their_run():
    words = layers.StringLookup(vocabulary=[*TEXTS], output_mode="int", num_oov_indices=0)

    def tokens(texts):
        return tf.one_hot(words(texts) % 2, 2)

    model, lots = Task(tokens), tfdp.data.make_lots("cyclic", TEXTS, labels(), lot_size=ROWS)
    optimizer = tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=0.0)
    tfdp.make_private(model).compile(optimizer, LOSS(from_logits=True))
    for vocabulary in ([*TEXTS], [*TEXTS[::-1]]):
        words.set_vocabulary(vocabulary)
        plain = keras.Sequential.predict(model, tokens(TEXTS), verbose=0)
        loss = model.fit(lots, verbose=0).history["loss"][0]
        assert_close(loss, float(LOSS(from_logits=True)(labels(), plain)), ROWS)
    assert [run.steps for run in model.privacy.ledger.runs] == [2]


class Rows:
    """Texts on disk, as it were."""

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return TEXTS[index], labels()[index]


OWN_BATCHES = tf.data.Dataset.from_tensor_slices((TEXTS, labels())).batch(4)
OF_UNKNOWN_SIZE = tf.data.Dataset.from_generator(
    lambda: OWN_BATCHES,
    output_signature=(tf.TensorSpec((None,), tf.string), tf.TensorSpec((None,), tf.int64)),
).apply(tf.data.experimental.assert_cardinality(2))


def calibrated(data, **more):
    model, optimizer, data = tfdp.make_private_with_epsilon(
        Task(lengths), "sgd", data, epochs=1, epsilon=4.0, delta=1e-3, engine="loop", **more
    )
    model.compile(optimizer, LOSS(from_logits=True), metrics=["accuracy"], run_eagerly=True)
    return model, data


@pytest.mark.parametrize(
    ("data", "sampling"),
    [
        (Rows(), "poisson"),
        (tfdp.data.make_lots("cyclic", Rows(), lot_size=4), "cyclic"),
        (tfdp.data.make_lots("cyclic", TEXTS, labels(), lot_size=4).as_dataset(), "cyclic"),
        (tfdp.data.OncePerEpoch(OWN_BATCHES), "once_per_epoch"),
        (OF_UNKNOWN_SIZE, "unknown"),
    ],
    ids=["records", "lots", "dataset of lots", "declared", "batches"],
)
def test_a_preprocessor_is_applied_to_all_data_that_noise_is_calibrated_for(data, sampling):
    model, data = calibrated(data, **({"batch_size": 4} if sampling == "poisson" else {}))
    model.fit(data, verbose=0)
    assert model.privacy.current_run.sampling.name == sampling
    assert 3.9 < model.privacy.spent().epsilon <= 4.0


def test_a_preprocessor_is_applied_where_a_calibrated_model_is_used():
    model, data = calibrated((TEXTS, labels()), batch_size=4)
    history = model.fit(data, validation_data=Rows(), verbose=0).history
    assert 3.9 < model.privacy.spent().epsilon <= 4.0
    assert history["val_accuracy"] == [model.evaluate(Rows(), verbose=0)[1]]
    expected = keras.Sequential.predict(model, lengths(TEXTS), verbose=0)
    assert_close(model.predict(Rows(), verbose=0), expected, terms_of(model))


def test_examples_of_lots_are_prepared_as_those_of_arrays():
    expected = keras.utils.unpack_x_y_sample_weight(
        Task(lengths).preprocess_samples(TEXTS, labels())
    )
    lots = tfdp.data.make_lots("cyclic", TEXTS, labels(), lot_size=ROWS)
    for found, one in zip(
        next(iter(prepared(Task(lengths), lots)[0].as_dataset())), expected, strict=True
    ):
        np.testing.assert_array_equal(found, np.ones(ROWS) if one is None else one)


def test_class_weights_go_with_prepared_lots():
    model = tfdp.make_private(Task(lengths))
    optimizer = tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=0.0)
    model.compile(optimizer, LOSS(from_logits=True))
    lots, y = tfdp.data.make_lots("cyclic", TEXTS, labels(), lot_size=ROWS), labels()
    weights = {0: 1.0, 1: 2.0, 2: 3.0}
    expected = Task(lengths)
    expected.set_weights(model.get_weights())
    expected.compile(loss=LOSS(from_logits=True))
    loss = model.fit(lots, class_weight=weights, verbose=0).history["loss"][0]
    kept = {"sample_weight": 1.0 + y, "verbose": 0}
    assert_close(loss, keras.Sequential.evaluate(expected, lengths(TEXTS), y, **kept), ROWS)


class OwnBatches(keras.utils.PyDataset):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def __len__(self):
        return 2

    def __getitem__(self, index):
        part = slice(4 * index, 4 * index + 4)
        return self.function(TEXTS[part]), labels()[part]


def test_batches_that_a_task_does_not_prepare_are_refused_and_prepared_ones_trained():
    model = tfdp.make_private(Task(lengths))
    model.compile(
        tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0), LOSS(from_logits=True)
    )
    for given in (OwnBatches(lengths), iter(OwnBatches(lengths))):
        with pytest.raises(ValueError, match="not those of batches"):
            model.fit(given, verbose=0)
    model.preprocessor = None
    model.fit(OwnBatches(lengths), verbose=0)
    assert model.privacy.steps_taken == 2


# -- what would not learn --------------------------------------------------------------------------


def stopped(model):
    return layers.Lambda(tf.stop_gradient)(model)


def test_a_loss_without_trained_weights_raises_before_the_first_step():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, stopped(layers.Dense(CLASSES)(inputs)))
    before = model.get_weights()
    with pytest.raises(ValueError, match="none of its trained weights"):
        trained(model, np.zeros((ROWS, 4), np.float32), labels())
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
