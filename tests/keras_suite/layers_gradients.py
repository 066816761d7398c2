"""Compares the private gradient of a layer, on each engine, with that of every example alone.

The reference uses nothing of tfdp: each example passes through the plain Keras model as a batch of one,
under `tf.GradientTape`. The private gradient is what a step of `train_on_batch` without noise hands to
the Keras optimizer. The clip norm is the median norm of the examples, so that a wrong norm of one
example shows as well as a wrong direction.
"""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

import tfdp
from tests.keras_suite.layers_cases import Case

ENGINES = ("auto", "vectorized")
ROWS = 3
TOLERANCE = 1e-4
# For layers that compute in bfloat16, whose numbers have 8 binary digits.
COARSE = 3e-2
# The spectrograms of Keras' tests have 160,000 samples, for which a Dense layer has 25 million weights.
LONGEST = 8000
_DRAWS = 16
_LOSS = keras.losses.MeanSquaredError()


@keras.saving.register_keras_serializable("tests")
class Take(keras.optimizers.SGD):
    """Puts the gradient in the place of the weight, so that it can be read after a step."""

    def update_step(self, gradient, variable, learning_rate):
        variable.assign(tf.cast(gradient, variable.dtype))


_PrivateTake = tfdp.make_dp_optimizer_class(Take)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a case.

    Attributes:
        kind: "equal"; "random" (each example has draws of its own, and only its own row matters);
            "zero" (no example has a gradient, and the private one is zero); "refused" (with a sentence
            of tfdp's); "plain" (plain Keras has no such model, or no gradient of it); "wrong".
        detail: the largest relative difference, or what was raised.
    """

    kind: str
    detail: str = ""


def check(case: Case, engines=ENGINES) -> Outcome:
    """Checks a layer behind a trainable layer and, where it has no weights, in front of one."""
    worst, problems = Outcome("equal"), []
    for front in _forms(case):
        try:
            problems.append(_Problem(case, front))
        except Exception as error:
            worst = Outcome("plain", _said(error))
    if problems:
        worst = Outcome("equal")
    for problem in problems:
        for engine in engines:
            found = _check(problem, engine)
            if found.kind != "equal":
                where = f"engine={engine}" + (", behind a Dense" if problem.front else "")
                found = dataclasses.replace(found, detail=f"{where}: {found.detail}")
            if found.kind in ("wrong", "refused"):
                return found
            if found.kind != "equal" or worst.kind == "equal":
                worst = found
    return worst


def _forms(case):
    """Whether the layer stands behind a Dense, through which its own gradient flows; True, False."""
    data = keras.tree.flatten(_data(case))
    if not all(np.asarray(a).dtype.kind == "f" and np.ndim(a) > 1 for a in data):
        return [False]
    # Preprocessing usually stands in front of the first weights, and often has no gradient.
    return [True, False] if case.name.startswith("preprocessing/") else [True]


def _layer(case):
    return case.layer_class(**case.arguments)


def _data(case, value_range=None):
    """The inputs of a case with at least `ROWS` different rows, as arrays.

    Args:
        case: the case.
        value_range: the range of what is drawn instead of normal values.
    """
    data = case.options.get("input_data")
    if data is None:
        shapes = case.options["input_shape"]
        dtypes = case.options.get("input_dtype")
        generator = np.random.default_rng(0)

        def drawn(shape, dtype):
            shape = (max(ROWS, shape[0]), *(min(size, LONGEST) for size in shape[1:]))
            if "int" in dtype:
                return generator.integers(0, 2, shape).astype(dtype)
            if dtype == "bool":
                return generator.integers(0, 2, shape).astype(bool)
            if value_range is not None:
                return generator.uniform(*value_range, shape).astype(dtype)
            return generator.normal(size=shape).astype(dtype)

        if isinstance(shapes, dict):  # the arguments of `build`, such as query_shape
            shapes = {name.removesuffix("_shape"): shape for name, shape in shapes.items()}
        if isinstance(dtypes, dict):
            dtypes = {name.removesuffix("_shape"): dtype for name, dtype in dtypes.items()}
        if not isinstance(dtypes, (tuple, list, dict)):
            return keras.tree.map_shape_structure(lambda s: drawn(s, dtypes or "float32"), shapes)
        return keras.tree.map_structure_up_to(dtypes, lambda d, s: drawn(s, d), dtypes, shapes)

    def grown(leaf):
        # Data of tfdp are dense (docs/unsupported.md), so sparse inputs are compared as dense ones.
        leaf = tf.sparse.to_dense(leaf) if isinstance(leaf, tf.SparseTensor) else leaf
        array = np.asarray(leaf)
        while 0 < len(array) < ROWS:
            more = array * array.dtype.type(0.5) if array.dtype.kind == "f" else array[::-1]
            array = np.concatenate([array, more])
        return array.astype("float32") if array.dtype == np.float64 else array

    return keras.tree.map_structure(grown, data)


class _Problem:
    """A model around a layer, data, and the gradient of each example alone."""

    def __init__(self, case, front):
        self.case, self.front = case, front
        keras.utils.set_random_seed(0)
        self.x = _data(case, None if front else case.value_range)
        self.flat = [tf.convert_to_tensor(leaf) for leaf in keras.tree.flatten(self.x)]
        self.tolerance = TOLERANCE
        self.model = self.build()
        self.rows = len(self.flat[0])
        if len(self.model(self.inputs())) != self.rows:
            raise ValueError("The leading axis of the inputs is not that of examples.")
        generator = np.random.default_rng(1)
        width = self.model.output_shape[-1]
        self.y = generator.normal(size=(self.rows, width)).astype("float32")
        for variable in self.model.trainable_variables:
            noise = generator.normal(0.0, 0.2, variable.shape)
            variable.assign(variable + noise.astype("float32"))
        self.weights = self.model.get_weights()
        self.draws = self._is_random()
        self.gradients = None if self.draws else self._one_by_one()
        if not (self.draws or np.isfinite(self.norms()).all()):
            raise ValueError("The gradient of an example is not finite in plain Keras.")

    def build(self):
        keras.utils.set_random_seed(0)
        try:
            return self._functional()
        except ValueError:
            if self.front or len(self.flat) > 1:
                raise
            return self._sequential()  # for layers that return their very inputs as outputs

    def _sequential(self):
        (leaf,) = self.flat
        tail = [keras.layers.Flatten(), keras.layers.Dense(2)]
        return keras.Sequential([keras.Input(leaf.shape[1:]), _layer(self.case), *tail])

    def _functional(self):
        flat = [
            keras.Input(np.shape(a)[1:], dtype=a.dtype.name if a.dtype.kind in "fiub" else "string")
            for a in keras.tree.flatten(self.x)
        ]
        seen = [self._dense(a) for a in flat] if self.front else flat
        seen = keras.tree.pack_sequence_as(self.x, seen)
        layer = _layer(self.case)
        self.tolerance = COARSE if layer.compute_dtype == "bfloat16" else TOLERANCE
        options = self.case.options.get("call_kwargs") or {}
        out = layer(**seen, **options) if isinstance(seen, dict) else layer(seen, **options)
        leaves = []
        for leaf in keras.tree.flatten(out):
            if "float" not in leaf.dtype:
                leaf = keras.ops.cast(leaf, "float32")
            leaves.append(keras.layers.Flatten()(leaf))
        out = leaves[0] if len(leaves) == 1 else keras.layers.Concatenate()(leaves)
        if not layer.trainable_weights:
            out = keras.layers.Dense(2)(out)
        return keras.Model(flat, out)

    def _dense(self, leaf):
        """A trainable layer in front, whose outputs are values that the layer is made for."""
        low, high = self.case.value_range or (None, None)
        if low is None:
            return keras.layers.Dense(leaf.shape[-1])(leaf)
        between = keras.layers.Dense(leaf.shape[-1], activation="sigmoid")(leaf)
        return keras.layers.Rescaling(high - low, low)(between)

    def inputs(self, rows=slice(None)):
        flat = [leaf[rows] for leaf in self.flat]
        return flat if len(flat) > 1 else flat[0]

    def _is_random(self):
        """Whether the gradient of an example alone depends on random numbers.

        A layer may draw some for a batch that make no difference to one example, as a vertical flip of
        images of one row. And it may have the same outputs for all of them, but other gradients, as a
        zoom with TensorFlow's approximate gradient.
        """
        before = self._seeds()
        self.model(self.inputs(), training=True)
        if self._seeds() == before:
            return False
        first, *others = (self._one_by_one() for _ in range(_DRAWS))
        pairs = [pair for other in others for pair in zip(first, other, strict=True)]
        return not all(_close(row, other) for row, other in pairs)

    def _seeds(self):
        seeds = [v for v in self.model.variables if v.path.endswith("seed_generator_state")]
        return [v.numpy().tolist() for v in seeds]

    def _one_by_one(self):
        values = [v.value for v in self.model.trainable_variables]
        return [self._alone(slice(row, row + 1), values) for row in range(self.rows)]

    def _alone(self, one, values):
        with tf.GradientTape() as tape:
            loss = _LOSS(self.y[one], self.model(self.inputs(one), training=True))
            extra = [tf.cast(penalty, tf.float32) for penalty in self._activity_losses()]
            loss = tf.add_n([loss, *extra])
        gradients = tape.gradient(loss, values, unconnected_gradients="zero")
        return [tf.convert_to_tensor(g).numpy().astype("float64") for g in gradients]

    def _activity_losses(self):
        """The losses of the last call without the penalties of weight regularizers."""
        weights = sum(v.regularizer is not None for v in self.model.trainable_variables)
        losses = self.model.losses
        return losses[: len(losses) - weights]

    def norms(self):
        return np.sqrt([sum(np.sum(g**2) for g in row) for row in self.gradients])

    def expected(self, clip):
        scales = np.minimum(1.0, clip / np.maximum(self.norms(), 1e-30))
        sums = [
            sum(s * row[i] for s, row in zip(scales, self.gradients, strict=True)) / self.rows
            for i in range(len(self.gradients[0]))
        ]
        return [a + b for a, b in zip(sums, self._penalties(), strict=True)]

    def _penalties(self):
        found = []
        for variable in self.model.trainable_variables:
            value = tf.convert_to_tensor(variable)
            with tf.GradientTape() as tape:
                tape.watch(value)
                penalty = 0.0 if variable.regularizer is None else variable.regularizer(value)
            gradient = None if isinstance(penalty, float) else tape.gradient(penalty, value)
            found.append(0.0 if gradient is None else gradient.numpy())
        return found


class _Trained:
    """A private model of a problem, whose step yields its gradient."""

    def __init__(self, problem, engine, clip):
        self.problem = problem
        self.model = problem.build()
        for variable in self.model.trainable_variables:
            variable.constraint = None  # a constraint comes after the update, and is no gradient
        self.model = tfdp.make_private(self.model, engine=engine)
        options = {"noise_multiplier": 0.0, "learning_rate": 1.0, "seed": 1}  # and known masks
        optimizer = _PrivateTake(l2_norm_clip=clip, **options)
        self.model.compile(optimizer, _LOSS)
        self.model.set_weights(problem.weights)
        variables = [*self.model.trainable_variables, *self.model.non_trainable_variables]
        self.start = [(v, v.numpy()) for v in variables]  # with the states of seed generators

    def step(self, flat=None, y=None, weight=None):
        """Returns the gradient of one step that starts with the initial weights and seeds."""
        for variable, value in self.start:
            variable.assign(value)
        flat = self.problem.flat if flat is None else flat
        y = self.problem.y if y is None else y
        self.model.train_on_batch(flat if len(flat) > 1 else flat[0], y, sample_weight=weight)
        return [v.numpy().astype("float64") for v in self.model.trainable_variables]


def _check(problem, engine):
    try:
        if problem.draws:
            return _check_random(problem, engine)
        norms = problem.norms()
        clip = float(np.median(norms)) or 1.0
        expected = problem.expected(clip)
        got = _Trained(problem, engine, clip).step()
        if not norms.any():
            zero = not any(np.any(gradient) for gradient in got)
            return Outcome("zero" if zero else "wrong", "no example has a gradient")
    except Exception as error:
        return Outcome("refused" if _is_sentence(error) else "wrong", _said(error))
    difference = _difference(got, expected)
    good = difference <= problem.tolerance
    return Outcome("equal" if good else "wrong", f"{difference:.1e}")


def _difference(got, expected):
    largest = max(np.max(np.abs(e)) for e in expected if e.size)
    return max(
        float(np.max(np.abs(g - e)) / max(np.max(np.abs(e)), 0.01 * largest))
        for g, e in zip(got, expected, strict=True)
        if e.size
    )


def _check_random(problem, engine):
    """Checks that a row's gradient does not depend on other rows, and has random numbers of its own."""
    trained = _Trained(problem, engine, 1e6)
    # As many rows as the comparison of draws below has, so that the step is traced once.
    rows = np.arange(_DRAWS) % problem.rows
    full, y = [tf.gather(leaf, rows) for leaf in problem.flat], problem.y[rows]
    changed = [
        tf.concat([leaf[:1], tf.reverse(leaf[1:], [0]) * tf.cast(2, leaf.dtype)], 0)
        if leaf.dtype.is_floating
        else leaf
        for leaf in full
    ]
    weight = np.eye(_DRAWS, dtype="float32")[0]
    if not _close(trained.step(full, y, weight), trained.step(changed, y, weight)):
        return Outcome("wrong", "the gradient of an example depends on other examples")
    alike = [tf.repeat(leaf[:1], _DRAWS, 0) for leaf in problem.flat]
    y = np.repeat(problem.y[:1], _DRAWS, axis=0)
    first, *others = (trained.step(alike, y, weight) for weight in np.eye(_DRAWS, dtype="float32"))
    if all(_close(first, other) for other in others):
        return Outcome("wrong", "all examples of a lot draw the same numbers")
    return Outcome("random")


def _close(gradients, others):
    pairs = zip(gradients, others, strict=True)
    return all(np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE / 100) for a, b in pairs)


def _is_sentence(error) -> bool:
    """Whether an error is a refusal of tfdp's, rather than one of TensorFlow's or of Python's."""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    where = trace.tb_frame.f_globals.get("__name__", "")
    return where.startswith("tfdp.") and isinstance(error, (ValueError, NotImplementedError))


def _said(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
