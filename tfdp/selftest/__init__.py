"""Checks that tfdp computes sums, bounds, noise and counts correctly on this machine and its devices.

    python -m tfdp.selftest              # one to two minutes; exit code 1 if a check fails
    python -m tfdp.selftest --modes=xla  # one way of running a step only
    python -m tfdp.selftest --json

Run it once on a new machine, or with another version of TensorFlow or a driver. Private training
depends on how TensorFlow, its drivers and compilers compute. A GPU that multiplies with fewer digits,
or a compiler that draws other random numbers, would not show in a loss curve. The checks use the
public interface only, and compare with plain Keras and NumPy.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Iterator, Sequence

MODES = ("eager", "graph", "xla", "bfloat16", "tensor_float_32")
# Modes that differ on a GPU only: a graph whose own passes multiply in TensorFloat-32.
ON_GPUS = ("tensor_float_32",)
# XLA in TensorFlow 2.21 has no convolution with a bias where TensorFloat-32 is turned off.
_ROUNDED = ("tensor_float_32", "xla")
_ROWS, _CLIP = 8, 1.0
# Number of weights that get noise, and the largest allowed deviation in standard errors. With correct
# noise, one of the 544 statistics is beyond it once in a million runs of all checks. Two thirds of the
# noise deviate by 94.
_WEIGHTS, _DEVIATION = 40_000, 6.0
# bfloat16 keeps 8 binary digits of the numbers between layers. TensorFloat-32 keeps 11 of the factors.
_TOLERANCES = {"bfloat16": 0.05}
_ROUNDED_TOLERANCE = 0.01
_TOLERANCE = 1e-4


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of one check of the self-test.

    Attributes:
        mode: The way in which steps ran, one of `MODES`.
        name: The quantity that was checked, and the way to compute it.
        passed: Whether the check passed.
        measured: The measured numbers and their limits, in words.
        seconds: Seconds that the check took, including tracing.
    """

    mode: str
    name: str
    passed: bool
    measured: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class _Way:
    """A way to compute the sum of a lot.

    Attributes:
        name: The way in words.
        engine: The argument of `tfdp.make_private`.
        chunk: The physical batch size. None for whole lots.
        together: Number of rows whose mean gradient is clipped.
    """

    name: str
    engine: str
    chunk: int | None = None
    together: int = 1


_WAYS = (_Way("ghost engine", "ghost"), _Way("vectorized engine", "vectorized"))
# Only for dense layers in compiled steps, where these ways may differ between machines.
_MORE_WAYS = (
    _Way("loop engine, chunks", "loop", chunk=3),  # does not divide the lot
    _Way("ghost engine, chunks of microbatches", "ghost", chunk=4, together=2),
    _Way("vectorized engine, microbatches", "vectorized", together=2),
)


def checks(modes: Sequence[str] = MODES) -> Iterator[Check]:
    """Runs the checks of the self-test and yields their results one by one.

    Args:
        modes: The ways to run steps, some of `MODES`: "eager"; "graph", a compiled graph; "xla", with
            TensorFloat-32; "bfloat16", a graph with the policy mixed_bfloat16; "tensor_float_32", a
            graph with TensorFloat-32. TensorFloat-32 is off in the other modes, and a CPU does not
            have it.

    Yields:
        A `Check` for each mode and quantity.

    Raises:
        ValueError: If a mode does not exist.
    """
    from tfdp._validate import one_of

    for mode in modes:
        one_of("mode", mode, MODES)
    for mode in modes:
        for kind in _KINDS:
            compiled = kind == "dense" and mode in ("graph", "xla")
            for way in _WAYS + _MORE_WAYS if compiled else _WAYS:
                yield _timed(mode, f"sum, {kind}, {way.name}", _sum, kind, way)
                yield _timed(mode, f"bound, {kind}, {way.name}", _bound, kind, way)
        yield _timed(mode, "noise", _noise)
        yield _timed(mode, "counting", _counting)


def _timed(mode, name, function, *arguments):
    start = time.perf_counter()
    try:
        passed, measured = function(mode, *arguments)
    except Exception as error:  # every error is a result
        passed, measured = False, f"{type(error).__name__}: {str(error).strip()[:300]}"
    return Check(mode, name, bool(passed), measured, time.perf_counter() - start)


def _dense():
    from keras import layers

    return (5,), [layers.Dense(7, activation="tanh"), layers.Dense(3)]


def _convolution():
    from keras import layers

    return (6, 6, 2), [layers.Conv2D(4, 3, activation="tanh"), layers.Flatten(), layers.Dense(3)]


def _tokens():
    from keras import layers

    embedding = layers.Embedding(11, 6)
    # The kernels of cuDNN give wrong gradients in bfloat16 (TensorFlow 2.21 on an H100).
    lstm = layers.LSTM(4, use_cudnn=False)
    return (5,), [embedding, layers.LayerNormalization(), lstm, layers.Dense(3)]


_KINDS = {"dense": _dense, "convolution": _convolution, "tokens": _tokens}


def _model(kind):
    """Returns (model, inputs, labels), the same in every call."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    shape, layers = _KINDS[kind]()
    generator = np.random.default_rng(0)
    if kind == "tokens":
        x = generator.integers(0, 11, (_ROWS, *shape)).astype("int32")
    else:
        x = generator.normal(size=(_ROWS, *shape)).astype("float32")
    model = keras.Sequential([keras.Input(shape, dtype=str(x.dtype)), *layers])
    return model, x, generator.integers(0, 3, _ROWS)


def _loss():
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class _Policy:
    """Context in which layers are made and products are computed by a mode's precision."""

    def __init__(self, mode):
        self._policy = "mixed_bfloat16" if mode == "bfloat16" else "float32"
        self._products = mode in _ROUNDED

    def __enter__(self):
        import keras
        import tensorflow as tf

        config = tf.config.experimental
        self._before = keras.config.dtype_policy(), config.tensor_float_32_execution_enabled()
        keras.config.set_dtype_policy(self._policy)
        config.enable_tensor_float_32_execution(self._products)

    def __exit__(self, *error):
        import keras
        import tensorflow as tf

        policy, products = self._before
        keras.config.set_dtype_policy(policy)
        tf.config.experimental.enable_tensor_float_32_execution(products)


def _compiled(mode):
    return {"run_eagerly": mode == "eager", "jit_compile": mode == "xla"}


def _flat(weights):
    import numpy as np

    return np.concatenate([np.ravel(w).astype("float64") for w in weights])


class _Step:
    """A step without noise, which is traced only once."""

    def __init__(self, mode, kind, way):
        import tfdp

        model, _, _ = _model(kind)
        options = {"physical_batch_size": way.chunk}
        self._model = tfdp.make_private(model, engine=way.engine, **options)
        self._terms = _ROWS // way.together
        optimizer = tfdp.DPKerasSGDOptimizer(
            l2_norm_clip=_CLIP,
            noise_multiplier=0.0,
            learning_rate=1.0,
            num_microbatches=None if way.together == 1 else self._terms,
        )
        self._model.compile(optimizer, _loss(), **_compiled(mode))
        self._before = self._model.get_weights()

    def sum(self, x, y, weights):
        """Returns the sum of clipped gradients that a step subtracts from the weights."""
        self._model.set_weights(self._before)
        self._model.train_on_batch(x, y, sample_weight=weights)
        return (_flat(self._before) - _flat(self._model.get_weights())) * self._terms


_step = functools.lru_cache(maxsize=1)(_Step)


def _sum(mode, kind, way):
    import numpy as np
    import tensorflow as tf

    with _Policy("bfloat16" if mode == "bfloat16" else "eager"):
        model, x, y = _model(kind)
        gradients = []
        for row in range(_ROWS):
            with tf.GradientTape() as tape:
                loss = _loss()(y[row : row + 1], model(x[row : row + 1], training=True))
            gradient = tape.gradient(loss, model.trainable_variables)
            gradients.append(_flat([tf.convert_to_tensor(part) for part in gradient]))
        expected = 0.0
        for mean in np.reshape(gradients, [-1, way.together, gradients[0].size]).mean(axis=1):
            expected += mean / max(1.0, np.linalg.norm(mean) / _CLIP)
    with _Policy(mode):
        found = _step(mode, kind, way).sum(x, y, np.ones(_ROWS, "float32"))
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    limit = _TOLERANCES.get(mode, _TOLERANCE)
    if mode in _ROUNDED and tf.config.list_logical_devices("GPU"):
        limit = _ROUNDED_TOLERANCE
    return error <= limit, f"relative error {error:.1e} (at most {limit:g})"


def _bound(mode, kind, way):
    """Checks that a huge, non-finite or absent example moves the sum by at most the clip norm.

    If means of several rows are clipped, a mean moves at most from one side of the ball to the other,
    by twice the clip norm.
    """
    import numpy as np

    with _Policy(mode):
        _, x, y = _model(kind)
        present = np.ones(_ROWS, "float32")
        absent = np.where(np.arange(_ROWS) == _ROWS - 1, 0.0, 1.0).astype("float32")
        step, moved = _step(mode, kind, way), []
        without = step.sum(x, y, absent)
        for value in (3, 10) if kind == "tokens" else (1e4, np.nan):
            changed = x.copy()
            changed[-1] = value
            moved.append(np.linalg.norm(step.sum(changed, y, present) - without))
    # The sum is computed from weights, which are rounded.
    limit = _CLIP * (1 if way.together == 1 else 2) * (1 + 1e-4)
    return max(moved) <= limit, f"moved by {max(moved):.6f} (at most {limit:g})"


def _drawn(mode, multiplier, steps):
    """Trains a new model, and returns the noise of its steps in units of the accounted noise.

    The result includes the sums of clipped gradients, which are small beside the noise of so many
    weights. Two layers have the same inputs, so that noise that repeats between variables is detected.
    """
    import keras
    import numpy as np

    import tfdp

    x = keras.Input((40,))
    width = _WEIGHTS // 80
    outputs = [
        keras.layers.Dense(width, use_bias=False, kernel_initializer="zeros")(x) for _ in range(2)
    ]
    model = tfdp.make_private(keras.Model(x, keras.layers.Concatenate()(outputs)))
    optimizer = tfdp.DPKerasSGDOptimizer(
        l2_norm_clip=_CLIP, noise_multiplier=multiplier, learning_rate=1.0
    )
    model.compile(optimizer, "mse", **_compiled(mode))
    generator = np.random.default_rng(0)
    drawn = []
    for _ in range(steps):
        before = _flat(model.get_weights())
        x = generator.normal(size=(_ROWS, 40)).astype("float32")
        y = 100.0 * generator.normal(size=(_ROWS, 2 * width)).astype("float32")
        model.train_on_batch(x, y)
        drawn.append((_flat(model.get_weights()) - before) * _ROWS / (multiplier * _CLIP))
    return drawn


def _noise(mode):
    import itertools

    import numpy as np

    with _Policy(mode):
        # The noise of the second model belongs to another run, with its own key.
        drawn = _drawn(mode, 3.0, 3) + _drawn(mode, 3.0, 1)
    error = 1.0 / math.sqrt(_WEIGHTS)
    deviations = []
    for noise in drawn:
        deviations.append(abs(noise.mean()) / error)
        deviations.append(abs(noise.std() - 1.0) / (error / math.sqrt(2)))
        deviations.append(abs((noise[1:] * noise[:-1]).mean()) / error)
        # 4.55% of a normal distribution are beyond two standard deviations.
        beyond = math.erfc(math.sqrt(2.0))
        spread = math.sqrt(beyond * (1 - beyond)) * error
        deviations.append(abs((np.abs(noise) > 2.0).mean() - beyond) / spread)
    # No two quarters of the noise, of any steps, are correlated. A variable has two quarters.
    quarters = [quarter for noise in drawn for quarter in np.split(noise, 4)]
    for a, b in itertools.combinations(quarters, 2):
        deviations.append(abs((a * b).mean()) / (2 * error))
    ratio = min(noise.std() for noise in drawn)
    words = f"{ratio:.4f} of the accounted noise, worst of {len(deviations)} statistics"
    worst = max(deviations)
    return worst <= _DEVIATION, f"{words} {worst:.1f} standard errors (at most {_DEVIATION:g})"


def _counting(mode):
    import numpy as np

    import tfdp
    from tfdp.accounting import Run, proven
    from tfdp.accounting.sampling import Poisson

    steps, examples, delta = 7, 80, 1e-5
    with _Policy(mode):
        model, _, _ = _model("dense")
        model = tfdp.make_private(model)
        optimizer = tfdp.DPKerasSGDOptimizer(
            l2_norm_clip=_CLIP, noise_multiplier=2.0, learning_rate=0.1
        )
        model.compile(optimizer, _loss(), **_compiled(mode))
        x = np.random.default_rng(1).normal(size=(examples, 5)).astype("float32")
        y = np.zeros(examples, "int32")
        model.fit(x, y, batch_size=_ROWS, steps_per_epoch=steps, verbose=0)
    counted = sum(run.steps for run in model.privacy.ledger.runs)
    iterations = int(model.optimizer.iterations)
    stated = model.privacy.spent(delta).epsilon
    run = Run(
        mechanism=optimizer.mechanism(noise_multiplier=2.0),
        sampling=Poisson(num_examples=examples, lot_size=_ROWS),
        steps=steps,
    )
    # The trained run may have further facts, such as the largest lot. It never states less.
    expected = proven(run, delta=delta).epsilon
    right = counted == iterations == steps and math.isclose(stated, expected, rel_tol=0.02)
    return right, f"{counted} of {steps} steps, epsilon {stated:.4f} (expected {expected:.4f})"
