"""References for the engines: sums by their definition, and comparisons with them."""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

from tests.rounding import rounding, terms_of
from tfdp._compat.keras import as_in_a_larger_batch
from tfdp._compat.pfor_map import batch_of_one
from tfdp.gradients.bounds import GlobalL2Clip, L2Clip
from tfdp.gradients.contract import BoundedSum, Outputs
from tfdp.gradients.engines import ghost, loop
from tfdp.gradients.factors import Instantiated
from tfdp.gradients.forward import Forward, losses_of_outputs

# The largest accepted difference of models that magnify rounding; a wrong rule is far beyond it.
ILL_CONDITIONED = 1e-3


def check_model(
    model,
    *,
    rows: int = 5,
    integers: int | None = None,
    seed: int = 0,
    microbatch_size: int = 1,
    l2_norm_clip: float | None = None,
    bound: L2Clip | None = None,
    sample_weight=None,
    jit_compile: bool = False,
    length: int = 6,
    ill_conditioned: bool = False,
) -> None:
    """Raises AssertionError where the ghost engine's norms or sums differ from the loop engine's.

    The loss gives a different gradient to every output.

    Args:
        model: a functional or Sequential model; its weights and loss are replaced.
        rows: number of examples.
        integers: draws integer inputs below this number instead of normal ones.
        seed: seed of weights and inputs.
        microbatch_size: number of examples whose mean gradient is bounded together.
        l2_norm_clip: clip norm; None clips at the median gradient norm, so that half of the
            gradients are clipped.
        bound: bound of the gradients, instead of a global clip norm.
        sample_weight: [rows], zero for absent rows; ones if None.
        jit_compile: compiles the ghost engine with XLA, and also the reference if layers draw
            random numbers or the model is ill-conditioned.
        length: length of an input's axis where it is not known.
        ill_conditioned: for a model that may magnify rounding; also accepts differences of up to 32
            times the change in the reference when the weights change by one unit in the last place,
            but at most `ILL_CONDITIONED`.

    Raises:
        AssertionError: the results differ.
    """
    generator = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        variable.assign(generator.normal(0.0, 0.5, variable.shape))
    x = []
    for tensor in model.inputs:
        shape = (rows, *(length if n is None else n for n in tensor.shape[1:]))
        drawn = generator.integers(0, integers, shape) if integers else generator.normal(size=shape)
        x.append(tf.constant(drawn, "int32" if integers else "float32"))
    x = x[0] if len(x) == 1 else x
    outputs = model(x)
    shapes = [leaf.shape for leaf in keras.tree.flatten(outputs)]
    y = [tf.constant(generator.normal(size=shape), "float32") for shape in shapes]
    y = y[0] if tf.is_tensor(outputs) else y
    model.compile("sgd", loss=keras.tree.map_structure(lambda _: _linear, y))

    forward = Forward(model)
    weight = tf.ones([rows]) if sample_weight is None else tf.constant(sample_weight, tf.float32)
    if bound is None:
        bound = MedianClip(1.0) if l2_norm_clip is None else GlobalL2Clip(l2_norm_clip)

    def run(engine, **options):
        return run_engine(engine, forward, bound, x, y, weight, microbatch_size, **options)

    draws = any(forward.is_per_example(i) for i in range(len(forward.state_variables)))
    # Under XLA, TensorFlow draws other random numbers from the same seeds, and its functions round
    # differently.
    alike = jit_compile and (draws or ill_conditioned)
    expected = run(loop.bounded_sum, jit_compile=alike)
    ours = run(ghost.bounded_sum, jit_compile=jit_compile)
    name, difference = largest_difference(ours, expected)
    tolerance = rounding(terms_of(model, rows, length=length))
    if ill_conditioned and difference > tolerance:
        for variable in model.trainable_variables:
            ends = generator.choice(np.float32([-np.inf, np.inf]), variable.shape)
            variable.assign(np.nextafter(variable.numpy(), ends))
        _, moved = largest_difference(run(loop.bounded_sum, jit_compile=alike), expected)
        tolerance = max(tolerance, min(32 * moved, ILL_CONDITIONED))
    assert difference <= tolerance, f"{name}: relative difference {difference:.2e}"


class MedianClip(GlobalL2Clip):
    """Clips at the median norm of the rows, so that half of them are clipped; for comparisons only.

    The clip norm depends on the data, so this class bounds no example's influence.
    """

    def scales(self, square_norms):
        norms = tf.sqrt(tf.reduce_sum(square_norms, axis=1, keepdims=True))
        median = tf.sort(norms, axis=0)[tf.shape(norms)[0] // 2]
        scale = tf.minimum(1.0, median / tf.maximum(norms, 1e-30))
        return tf.broadcast_to(scale, tf.shape(square_norms))


def assert_equal_sums(ours, exact, terms: int, dtype="float32") -> None:
    """Raises AssertionError if two `BoundedSum` differ.

    Args:
        ours, exact: results of two engines on the same rows.
        terms, dtype: as in `tests.rounding`, for differences as `largest_difference` measures them.
    """
    name, difference = largest_difference(ours, exact)
    assert difference <= rounding(terms, dtype=dtype), (
        f"{name}: relative difference {difference:.2e}"
    )


def largest_difference(ours, exact) -> tuple[str, float]:
    """Returns where two `BoundedSum` differ most, and by how much.

    Differences are relative to the largest entry of each result (of a variable's sum, but at least a
    hundredth of the largest of all; of norms, but at least 1e-6).

    Raises:
        AssertionError: they differ in values that are not subject to rounding.
    """
    np.testing.assert_array_equal(ours.present, exact.present)
    assert int(ours.non_finite) == int(exact.non_finite)
    # The difference in a gradient that is zero up to rounding (such as that of attention's key bias)
    # is relative to the gradients of other variables.
    least = 1e-2 * max(float(tf.reduce_max(tf.abs(total))) for total in exact.sums)
    pairs = [
        # A norm of 0 becomes what the ghost engine adds to norms (`norms.VANISHING`).
        ("norms", ours.norms, exact.norms, 1e-6),
        ("losses", *_without_common_nan(ours.losses, exact.losses), 0.0),
        (
            "losses of outputs",
            *_without_common_nan(ours.output_losses, exact.output_losses),
            0.0,
        ),
    ]
    for i, (a, b) in enumerate(zip(ours.sums, exact.sums, strict=True)):
        pairs.append((f"sum of variable {i}", a, b, least))
    differences = [(name, _difference(name, a, b, floor)) for name, a, b, floor in pairs]
    return max(differences, key=lambda found: np.inf if np.isnan(found[1]) else found[1])


def _without_common_nan(a, b):
    """Zeros where both are NaN, such as the mean over the tokens of a row in which all are masked."""
    common = np.isnan(a) & np.isnan(b)
    return np.where(common, np.float32(0), a), np.where(common, np.float32(0), b)


def _difference(name, a, b, least):
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape, f"{name}: shape {a.shape} instead of {b.shape}"
    assert a.dtype == b.dtype == np.float32, f"{name}: {a.dtype} instead of float32"
    if not a.size:
        return 0.0
    return float(np.max(np.abs(a - b))) / max(float(np.max(np.abs(b))), least, 1e-30)


def _linear(y, y_pred):
    # The weights y give every output a gradient of its own; the sine keeps this gradient from being
    # the same for all inputs.
    y_pred = keras.ops.cast(y_pred, "float32")
    return keras.ops.sum(keras.ops.reshape(y * keras.ops.sin(y_pred), (1, -1)), axis=-1)


def in_a_graph(engine, forward, bound, microbatch_size=1, jit_compile=False):
    """Returns an engine as a function of (x, y, sample_weight) that is traced once."""
    result = {}

    @tf.function(autograph=False, jit_compile=jit_compile)
    def traced(x, y, sample_weight):
        result["sum"] = engine(forward, bound, x, y, sample_weight, tf.constant(0), microbatch_size)
        return [getattr(result["sum"], field) for field in _FIELDS]

    def run(x, y, sample_weight):
        values = traced(x, y, sample_weight)
        return dataclasses.replace(result["sum"], **dict(zip(_FIELDS, values, strict=True)))

    return run


def run_engine(engine, forward, bound, x, y, sample_weight, microbatch_size=1, jit_compile=False):
    """Runs an engine on one chunk as one graph; the arguments are as in `contract.Engine`."""
    return in_a_graph(engine, forward, bound, microbatch_size, jit_compile)(x, y, sample_weight)


_FIELDS = (
    *("sums", "norms", "present", "clipped", "non_finite"),
    *("losses", "output_losses", "outputs"),
)


def loop_bounded_sum(forward, bound, x, y, sample_weight, first, microbatch_size=1):
    """Computes the bounded sum by its definition, one row after the other in Python.

    This is slow, works for any op, and has no microbatches. Arguments and result are as in
    `contract.Engine`.
    """
    assert microbatch_size == 1
    values = [tf.convert_to_tensor(v) for v in forward.variables]
    gradients, losses, output_losses, outputs = [], [], [], []
    for row in range(sample_weight.shape[0]):
        x_i, y_i = tf.nest.map_structure(lambda leaf, i=row: leaf[i], (x, y))
        x_i, y_i = batch_of_one((x_i, y_i))
        with as_in_a_larger_batch(), tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            y_pred, scope, state = forward.outputs(values, forward.state(), x_i)
            losses.append(forward.loss(scope, x_i, y_i, y_pred))
            output_losses.append(losses_of_outputs(forward.model, scope))
            weighted = losses[-1] * sample_weight[row]
        found = tape.gradient(weighted, values, unconnected_gradients="zero")
        gradients.append([tf.reshape(g, v.shape) for g, v in zip(found, values, strict=True)])
        outputs.append(Outputs.of(y_pred))
    stacked = [Instantiated(tf.stack(rows)) for rows in zip(*gradients, strict=True)]
    layers = bound.layers or [0] * len(stacked)
    square_norms = tf.stack(
        [
            tf.add_n([g.square_norms() for g, own in zip(stacked, layers, strict=True) if own == k])
            for k in range(max(layers) + 1)
        ],
        axis=1,
    )
    scales = bound.scales(square_norms)
    return BoundedSum(
        sums=[g.weighted_sum(scales[:, k]) for g, k in zip(stacked, layers, strict=True)],
        norms=tf.sqrt(tf.reduce_sum(square_norms, axis=1)),
        present=tf.not_equal(sample_weight, 0.0),
        clipped=tf.cast(tf.reduce_any(scales < 1.0, axis=1), tf.float32),
        non_finite=tf.constant(0),
        losses=tf.stack(losses),
        output_losses=tf.stack(output_losses),
        outputs=tf.nest.map_structure(lambda *leaves: tf.concat(leaves, axis=0), *outputs),
        state=state,
        relative_sensitivity=bound.relative_sensitivity(microbatch_size),
        l2_norm_clip=bound.l2_norm_clip,
    )
