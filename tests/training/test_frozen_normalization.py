"""A frozen BatchNormalization scales by constants, so a private model may have it."""

import keras
import numpy as np
import pytest
from helpers import clipped_sum
from keras import layers

import tfdp
from tfdp.gradients.engines import ghost
from tfdp.gradients.rules.recording import owners
from tfdp.gradients.rules.separate_rows import rows_are_separate
from tfdp.training.checks import refuse_mixing_layers

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
X = np.random.default_rng(1).normal(size=(6, 4)).astype("float32")
Y = np.arange(6) % 3


def model(frozen=True):
    keras.utils.set_random_seed(0)
    base = keras.Sequential(
        [keras.Input((4,)), layers.Dense(5, activation="tanh"), layers.BatchNormalization()],
        name="base",
    )
    norm = base.layers[-1]
    norm.set_weights([w + 0.5 * i for i, w in enumerate(norm.get_weights())])
    base.trainable = not frozen
    inputs = keras.Input((4,))
    hidden = layers.Dense(4)(inputs)  # so that gradients pass through the frozen layers
    return keras.Model(inputs, layers.Dense(3)(base(hidden)))


def compiled(made, **options):
    made.compile(
        tfdp.DPKerasSGDOptimizer(l2_norm_clip=0.5, noise_multiplier=0.0, learning_rate=1.0),
        LOSS,
        **options,
    )
    return made


def norm_of(made):
    return made.get_layer("base").layers[-1]


@pytest.mark.parametrize(
    ("engine", "jit_compile"), [("ghost", False), ("vectorized", False), ("ghost", True)]
)
def test_a_step_is_the_clipped_sum_over_rows(engine, jit_compile):
    private = compiled(tfdp.make_private(model(), engine=engine), jit_compile=jit_compile)
    expected = clipped_sum(private, X, Y, 0.5) / 6
    before = [v.numpy() for v in private.trainable_variables]
    kept = norm_of(private).get_weights()
    private.fit(X, Y, batch_size=6, shuffle=False, verbose=0)
    moved = [b - v.numpy() for b, v in zip(before, private.trainable_variables, strict=True)]
    np.testing.assert_allclose(np.concatenate([m.ravel() for m in moved]), expected, 1e-4, 1e-6)
    for a, b in zip(kept, norm_of(private).get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_ghost_engine_takes_the_batch_as_a_whole():
    made = model()
    assert ghost.supports(made) is None
    assert rows_are_separate(made, owners(made))


def test_a_layer_that_trains_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"trainable = False"):
        tfdp.make_private(model(frozen=False))


def test_unfreezing_is_noticed_by_the_next_training():
    private = compiled(tfdp.make_private(model()))
    private.fit(X, Y, batch_size=6, verbose=0)
    private.get_layer("base").trainable = True
    with pytest.raises(ValueError, match="BatchNormalization"):
        private.fit(X, Y, batch_size=6, verbose=0)
    with pytest.raises(ValueError, match="BatchNormalization"):
        private.train_on_batch(X, Y)
    private.get_layer("base").trainable = False
    private.fit(X, Y, batch_size=6, verbose=0)


def test_unfreezing_between_two_steps_is_noticed_where_the_step_is_traced_anew():
    class Unfreeze(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            norm_of(self.model).trainable = True

    private = compiled(tfdp.make_private(model()), run_eagerly=True)
    with pytest.raises(ValueError, match="BatchNormalization"):
        private.fit(X, Y, batch_size=6, epochs=3, verbose=0, callbacks=[Unfreeze()])


def test_training_false_of_a_call_is_no_way_out():
    # Keras overrides the argument of a call inside of a graph by that of the whole model.
    inputs = keras.Input((4,))
    made = keras.Model(inputs, layers.BatchNormalization()(inputs, training=False))
    with pytest.raises(ValueError, match="BatchNormalization"):
        tfdp.make_private(made)


def test_a_class_with_a_call_of_its_own_is_refused_though_frozen():
    class Own(layers.BatchNormalization):
        def call(self, inputs, training=None, mask=None):
            return inputs - keras.ops.mean(inputs, axis=0)

    made = keras.Sequential([keras.Input((4,)), Own(trainable=False), layers.Dense(3)])
    with pytest.raises(ValueError, match="Own"):
        tfdp.make_private(made)


def test_many_refused_layers_are_counted_not_listed():
    norms = [layers.BatchNormalization(name=f"norm_{i}") for i in range(30)]
    with pytest.raises(ValueError, match=r"norm_2'.*; and 27 more layers") as error:
        refuse_mixing_layers(keras.Sequential([keras.Input((4,)), *norms]))
    assert "norm_3'" not in str(error.value)


def test_a_normalization_that_was_never_adapted_is_allowed():
    fresh = keras.Sequential([keras.Input((4,)), layers.Normalization(), layers.Dense(3)])
    refuse_mixing_layers(fresh)
    fresh.layers[0].adapt(X)
    with pytest.raises(ValueError, match="adapt"):
        refuse_mixing_layers(fresh)
