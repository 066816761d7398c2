"""Batch normalization whose statistics come from public examples (SI-DPSGD, Algorithm 2).

`PublicExamples` has M public examples and runs a network in two passes. In the first pass, the public
examples are normalized by their own moments (mean and variance), which every
`PublicBatchNormalization` records. In the second pass, each private example is normalized by the public
moments and its own moments, with weight 1/(M+1) for its own (Salimans et al. 2016, "virtual batch
normalization"). Moments are not averaged over time.

Formal guarantee of statistics="example": the output of the network for an example, and its gradient,
depend only on that example, the weights and the public examples. So a clipped sum of gradients has
the sensitivity of DP-SGD, provided that the public examples were chosen without looking at the
private ones. This guarantee does not apply to statistics="batch".
"""

import contextlib
import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp._compat.keras import layers_of
from tfdp._validate import one_of, refuse
from tfdp.layers.feature_normalization import FeatureNormalization
from tfdp.layers.lot_statistics import present_rows

STATISTICS = ("example", "batch")


@dataclasses.dataclass
class PublicMoments:
    """The moments of the public examples in one call of a normalization layer.

    Attributes:
        layer: The `PublicBatchNormalization`.
        inputs: The inputs of that call.
        mean, variance: float32 tensors with the rank of `inputs`; the axis of the features has the
            length of the inputs, and all others have length one.
    """

    layer: keras.layers.Layer
    inputs: tf.Tensor
    mean: tf.Tensor
    variance: tf.Tensor


@dataclasses.dataclass
class _Pass:
    """One pass through a network.

    Attributes:
        kind: "public" records moments over all rows; "private" mixes the recorded moments with
            those of each row; "union" takes moments over the rows that are present.
        moments: A `PublicMoments` for each call of a normalization layer, in order.
        count: M; used by "private" only.
        present: float32 [rows], 1 for the rows that count; used by "union" only.
        used: Number of `moments` that a "private" pass has read.
    """

    kind: str
    moments: list[PublicMoments] = dataclasses.field(default_factory=list)
    count: int = 0
    present: tf.Tensor | None = None
    used: int = 0


_passes: list[_Pass] = []  # the current passes, innermost last; normalization layers use the last


@contextlib.contextmanager
def _running(one: _Pass):
    _passes.append(one)
    try:
        yield one
    finally:
        _passes.pop()


@keras.saving.register_keras_serializable(package="tfdp")
class PublicBatchNormalization(FeatureNormalization):
    """Batch normalization by statistics of public examples, so that private examples do not mix.

    It replaces `keras.layers.BatchNormalization` in a private model: `tfdp.fix(model,
    public_data=examples)` replaces all of them. The layer works inside the network of a
    `PublicExamples` layer, which has the public examples. Their statistics are mixed with those of the
    example itself, which have the weight of one example. As in batch normalization, statistics are
    also taken over the positions of an image or a sequence. All statistics are float32.

    Args:
        axis: The axis of the features.
        epsilon: Constant > 0 that is added to the variance. The default is that of the papers'
            PyTorch models.
        center, scale: Whether the layer learns an offset and a factor, respectively.
        **kwargs: Arguments of `keras.layers.Layer`.

    Raises:
        ValueError: If an argument is invalid.
        RuntimeError: If the layer is called outside of `PublicExamples`.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> network = keras.Sequential([keras.Input((1,)), tfdp.layers.PublicBatchNormalization()])
        >>> public = np.array([[1.0], [3.0]], "float32")
        >>> model = keras.Sequential([keras.Input((1,)), tfdp.layers.PublicExamples(network, public)])
        >>> print(model(np.array([[2.0]], "float32")).numpy())  # the mean of the public examples
        [[0.]]
    """

    def call(self, inputs):
        x = tf.cast(inputs, tf.float32)
        mean, variance = self._moments(inputs, x)
        outputs = (x - mean) * tf.math.rsqrt(variance + self.epsilon)
        outputs = self.scaled(outputs)
        if _passes[-1].kind == "public":
            # Later layers then treat the public activations up to here as constants.
            outputs = tf.stop_gradient(outputs)
        return tf.cast(outputs, inputs.dtype)

    def _moments(self, inputs, x):
        """Mean and variance, broadcastable to `x`, for the current kind of pass."""
        if not _passes:
            raise RuntimeError(
                f"Layer '{self.name}' (PublicBatchNormalization) has no public examples. Put it "
                "inside tfdp.layers.PublicExamples(network, examples), as "
                "tfdp.fix(model, public_data=examples) does."
            )
        one = _passes[-1]
        positions = self.positions(x.shape.rank)
        if one.kind == "union":
            # Absent rows may have any values, including NaN.
            rows = tf.reshape(one.present, [-1] + [1] * (x.shape.rank - 1))
            kept = tf.where(rows > 0, x, 0.0)
            mean = _mean(kept, [0, *positions]) * _inverse_share(one.present)
            squares = tf.where(rows > 0, tf.square(x - mean), 0.0)
            return mean, _mean(squares, [0, *positions]) * _inverse_share(one.present)
        if one.kind == "public":
            mean, variance = tf.nn.moments(x, [0, *positions], keepdims=True)
            one.moments.append(PublicMoments(self, inputs, mean, variance))
            return mean, variance
        left = one.moments[one.used] if one.used < len(one.moments) else None
        one.used += 1
        if left is None or left.layer is not self:
            raise RuntimeError(
                f"Layer '{self.name}' (PublicBatchNormalization) was not called in the pass of the "
                "public examples, or in another order. Use a network that calls its layers in a fixed "
                "order."
            )
        return _mixed(left.mean, left.variance, *_own_moments(x, positions), 1.0 / (one.count + 1))


def _mean(x, axes):
    return tf.reduce_mean(x, axes, keepdims=True)


def _inverse_share(present):
    # The public examples are always present, so the sum is above 0.
    return tf.cast(tf.size(present), tf.float32) / tf.reduce_sum(present)


def _own_moments(x, positions):
    if not positions:
        return x, tf.zeros_like(x)
    return tf.nn.moments(x, positions, keepdims=True)


def _mixed(mean, variance, own_mean, own_variance, weight):
    """Moments of a mixture of two populations; `weight` is that of the second."""
    gap = own_mean - mean
    between = weight * (1.0 - weight) * tf.square(gap)
    return mean + weight * gap, (1.0 - weight) * variance + weight * own_variance + between


@keras.saving.register_keras_serializable(package="tfdp")
class PublicExamples(keras.layers.Layer):
    """Wraps a network with `PublicBatchNormalization` layers, and gives them their public examples.

    `tfdp.fix(model, public_data=examples)` adds it to a model. The examples are weights of this layer
    (not trainable), so every saved model contains them, and anyone who has the model can read them.

    The moments of the public examples depend on the weights. With statistics="example", the gradient
    flows through the moments of each normalization to the weights since the preceding normalization,
    whose outputs are treated as constants. So the gradient of an example depends only on that example,
    the weights and public data. The public examples run in inference mode, so without dropout.

    With statistics="batch", training follows the papers: the statistics are taken over the whole
    lot and the public examples together. One example then changes the gradients of all others,
    which the proven guarantee includes: for lots of L examples, the sensitivity is 2L - 1 instead
    of 1. At inference, each example is normalized together with the public examples, 1 + M rows at
    a time (the papers' test phase).

    Args:
        network: A built keras.Model.
        examples: Array [M, ...], M >= 2, or a structure of arrays for the network's inputs. Their
            choice and preprocessing must not depend on the private data. With None, as in a
            configuration, the outputs are meaningless until weights are loaded into the layer.
        statistics: The statistics in training: "example", of the public examples and one private
            example, or "batch", of the public examples and the whole lot.
        example_specs: Dtypes and shapes of the examples, if `examples` is None. `get_config` returns
            them.
        **kwargs: Arguments of `keras.layers.Layer`.

    Raises:
        ValueError: If an argument is invalid.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> network = keras.Sequential([
        ...     keras.Input((8, 8, 1)), keras.layers.Conv2D(4, 3),
        ...     tfdp.layers.PublicBatchNormalization(), keras.layers.ReLU()])
        >>> public = np.random.default_rng(0).normal(size=(30, 8, 8, 1))
        >>> examples = tfdp.layers.PublicExamples(network, public.astype("float32"))
        >>> model = keras.Sequential([keras.Input((8, 8, 1)), examples])
        >>> examples.count
        30
        >>> one, two = np.zeros((1, 8, 8, 1), "float32"), np.ones((1, 8, 8, 1), "float32")
        >>> alone, together = model(one), model(np.concatenate([one, two]))
        >>> np.allclose(alone[0], together[0], atol=1e-5)  # examples do not mix
        True
    """

    def __init__(
        self,
        network: keras.Model,
        examples: Any = None,
        statistics: str = "example",
        *,
        example_specs: Any = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        one_of("statistics", statistics, STATISTICS)
        self.network = network
        self.statistics = statistics
        if examples is not None:
            examples = keras.tree.map_structure(_as_examples, examples)
            example_specs = keras.tree.map_structure(_spec_of, examples)
        # Setting `__dict__` avoids Keras' attribute tracking, which would replace dicts and lists by
        # wrappers.
        self.__dict__["_specs"] = example_specs
        specs = [_parsed(spec) for spec in keras.tree.flatten(example_specs)]
        counts = {shape[0] for shape, _ in specs}
        if len(counts) != 1 or not min(counts) >= 2:
            expected = "at least 2 examples, equally many in every array"
            refuse("examples", expected, example_specs, "Pass such arrays.")
        (self.count,) = counts
        self._dtypes = [dtype for _, dtype in specs]
        self._rows = [
            self.add_weight(
                name=f"examples_{i}",
                shape=shape,
                # TensorFlow places int32 on the CPU, where GPU code cannot find variables.
                dtype="int64" if dtype == "int32" else dtype,
                # Without examples, as in a configuration, outputs should not look like valid numbers.
                initializer=keras.initializers.Constant(0 if dtype == "int32" else np.nan),
                trainable=False,
                autocast=False,
            )
            for i, (shape, dtype) in enumerate(specs)
        ]
        if examples is not None:
            for variable, rows in zip(self._rows, keras.tree.flatten(examples), strict=True):
                variable.assign(rows)
        self.built = True

    @property
    def uses_lot_statistics(self) -> bool:
        """Whether an example changes the outputs of others in its lot during training."""
        return self.statistics == "batch"

    @property
    def examples(self):
        """The public examples, NumPy arrays in the structure of the argument `examples`."""
        rows = [v.numpy().astype(d) for v, d in zip(self._rows, self._dtypes, strict=True)]
        return keras.tree.pack_sequence_as(self._specs, rows)

    def compute_output_shape(self, input_shape):
        return self.network.compute_output_shape(input_shape)

    def call(self, inputs, training=False):
        if self.statistics == "batch" and training:
            private = tf.shape(keras.tree.flatten(inputs)[0])[0]
            return self._joined(inputs, self._tensors(), present_rows(private), training=True)
        if self.statistics == "batch":
            return self._one_by_one(inputs, self._tensors())
        moments = self.public_moments()
        with _running(_Pass("private", moments, count=self.count)):
            return self.network(inputs, training=training)

    def public_moments(self) -> list[PublicMoments]:
        """Runs the public examples through the network.

        Returns:
            One `PublicMoments` for each call of a normalization layer, in order.
        """
        with _running(_Pass("public")) as public:
            self.network(self._tensors(), training=False)
        return public.moments

    def _tensors(self):
        """The public examples in the structure of the network's inputs."""
        rows = [tf.cast(v, d) for v, d in zip(self._rows, self._dtypes, strict=True)]
        return keras.tree.pack_sequence_as(self._specs, rows)

    def _one_by_one(self, inputs, rows):
        """Inference with statistics="batch": each example in one batch with the public examples."""

        def one(example):
            example = keras.tree.map_structure(lambda leaf: leaf[tf.newaxis], example)
            outputs = self._joined(example, rows, tf.ones([1]), training=False)
            return keras.tree.map_structure(lambda leaf: leaf[0], outputs)

        return tf.vectorized_map(one, inputs, fallback_to_while_loop=False)

    def _joined(self, inputs, rows, present, training):
        joined = keras.tree.map_structure(
            lambda private, public: tf.concat([private, tf.cast(public, private.dtype)], axis=0),
            inputs,
            rows,
        )
        present = tf.concat([present, tf.ones([self.count])], axis=0)
        with _running(_Pass("union", present=present)):
            outputs = self.network(joined, training=training)
        return keras.tree.map_structure(lambda leaf: leaf[: -self.count], outputs)

    def get_config(self):
        return {
            **super().get_config(),
            "network": keras.saving.serialize_keras_object(self.network),
            "examples": None,
            "statistics": self.statistics,
            "example_specs": self._specs,
        }

    @classmethod
    def from_config(cls, config):
        network = keras.saving.deserialize_keras_object(config["network"])
        return cls(**{**config, "network": network})


def _as_examples(array):
    array = np.asarray(array)
    if array.ndim < 1 or not (array.dtype.kind in "iufb" and np.isfinite(array).all()):
        remedy = f"Its shape is {array.shape} and its dtype {array.dtype}. Pass such an array."
        refuse("examples", "an array of finite numbers, (M, ...)", array, remedy)
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int32)


def _spec_of(array):
    """Dtype and shape as one string, a leaf of the configuration, such as "float32 30 28 28 1"."""
    return " ".join([array.dtype.name, *map(str, array.shape)])


def _parsed(spec):
    dtype, *shape = spec.split()
    return tuple(map(int, shape)), dtype


def public_layers(model) -> list[PublicExamples]:
    """Returns all `PublicExamples` layers of a model, including nested ones."""
    layers = layers_of(model, itself=True)
    return [layer for layer in layers if isinstance(layer, PublicExamples)]
