"""Cases for `test_every_rule`: functions of operands in which operations occur."""

import functools
import inspect
import itertools

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

ROWS = 3
DTYPES = (tf.float32, tf.int32, tf.bool, tf.complex64, tf.int64, tf.string)


class Floats:
    """An operand: numbers between `low` and `high`, of the given shape."""

    def __init__(self, *shape, low=0.2, high=0.9):
        self.shape, self.low, self.high = shape, low, high

    def draw(self, rng):
        return rng.uniform(self.low, self.high, (ROWS, *self.shape)).astype("float32")

    def poisons(self, row):
        yield np.full_like(row, np.nan)
        infinite = row.copy()
        infinite.flat[:1] = np.inf
        yield infinite


class Indices:
    """An operand: whole numbers below `size`."""

    def __init__(self, size, *shape, ordered=False, dtype="int32"):
        self.size, self.shape, self.ordered, self.dtype = size, shape, ordered, dtype

    def draw(self, rng):
        drawn = rng.integers(0, self.size, (ROWS, *self.shape)).astype(self.dtype)
        return np.sort(drawn) if self.ordered else drawn

    def poisons(self, row):
        for value in (-1, self.size, 10**6, -(10**6)):
            yield np.full_like(row, value)
        if row.size > 1:
            one = row.copy()
            one.flat[-1] = self.size + 1
            yield one


class Case:
    def __init__(self, function, *operands, random=False):
        self.function, self.operands, self.random = function, operands, random


def raw(name, **attributes):
    """An operation as a function of its inputs; what is not given is derived from its definition."""
    definition = tf.raw_ops.__dict__[name]
    names = [*inspect.signature(definition).parameters]  # some differ from the definition's

    def run(*inputs):
        return definition(**dict(zip(names, inputs, strict=False)), **attributes)

    return run


@functools.cache
def op_def(name):
    return op_def_registry.get(name)


def as_dtype(x, dtype):
    if dtype == tf.bool:
        return x > 0.5
    if dtype.is_complex:
        return tf.complex(x, 0.5 * x)
    if dtype == tf.string:
        return tf.as_string(x)
    return tf.cast(10.0 * x, dtype) if dtype.is_integer else tf.cast(x, dtype)


def derived(name, *shapes, low=0.2, high=0.9, **attributes):
    """A case of an operation whose inputs are drawn with the first dtype that its definition allows."""
    definition = op_def(name)
    allowed = {a.name: a.allowed_values.list.type for a in definition.attr if a.type == "type"}
    dtypes = []
    for argument in definition.input_arg:
        known = [*map(tf.as_dtype, allowed.get(argument.type_attr, ()))]
        own = tf.as_dtype(argument.type) if argument.type else None
        dtypes.append(own or next(d for d in DTYPES if not known or d in known))
    run = raw(name, **attributes)

    def function(*inputs):
        return run(*(as_dtype(x, d) for x, d in zip(inputs, dtypes, strict=True)))

    return Case(function, *(Floats(*shape, low=low, high=high) for shape in shapes))


def elementwise(name, **options):
    """Cases of equal and of different ranks; where an operation does not broadcast, only the former."""
    count = len(op_def(name).input_arg)
    ends = [(3,)] * (count - 1)
    choices = [[(2, 3), *ends], [*[()] * (count - 1), (2, 3)]] if count > 1 else [[(2, 3)]]
    found = [derived(name, *shapes, **options) for shapes in choices]
    return [case for case in found if runs(case)] or [derived(name, *[(2, 3)] * count, **options)]


def runs(case):
    try:
        case.function(*(tf.constant(o.draw(np.random.default_rng(0))[0]) for o in case.operands))
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError, ValueError):
        return False
    return True


F, I = Floats, Indices  # noqa: E741
SQUARES = F(2, 3, 3)


def definite(x):
    return x @ tf.linalg.matrix_transpose(x) + tf.eye(3)


def complexes(x):
    return tf.complex(x, 0.5 * x)


def twice(function):
    """The gradient of a function, so that its own gradient is that of the gradient's operation."""

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(function(x) ** 2)
        return tape.gradient(total, x)

    return gradient


def reads(x, *places):
    """A list of the parts of x, from which some are taken."""
    parts = tf.TensorArray(tf.float32, 4, clear_after_read=False).unstack(x)
    return [parts.read(place) for place in places]


def written(x, index, size=4):
    parts = tf.TensorArray(tf.float32, size, element_shape=x.shape[1:], clear_after_read=False)
    parts = parts.unstack(tf.zeros_like(x)) if size == x.shape[0] else parts
    return parts.write(index, 2.0 * x[0]).stack()


def scattered_list(x, indices):
    parts = tf.TensorArray(tf.float32, 4, element_shape=x.shape[1:], clear_after_read=False)
    return parts.unstack(tf.ones([4, *x.shape[1:]])).scatter(indices, x).stack()


def grown(x):
    lists = tf.raw_ops.EmptyTensorList(
        element_shape=tf.constant([2]), max_num_elements=-1, element_dtype=tf.float32
    )
    for i in range(4):
        lists = tf.raw_ops.TensorListPushBack(input_handle=lists, tensor=x[i])
    lists, last = tf.raw_ops.TensorListPopBack(
        input_handle=lists, element_shape=tf.constant([2]), element_dtype=tf.float32
    )
    length = tf.cast(tf.raw_ops.TensorListLength(input_handle=lists), tf.float32)
    shape = tf.raw_ops.TensorListElementShape(input_handle=lists, shape_type=tf.int32)
    return length * last + tf.cast(shape, tf.float32)


def joined_list(x):
    return tf.TensorArray(tf.float32, 4, element_shape=[1, 2]).unstack(x[:, tf.newaxis]).concat()


def in_loop(x, count):
    """A list that is read and one that is written, in a loop of as many steps as `count` says."""
    parts = tf.TensorArray(tf.float32, 4, clear_after_read=False).unstack(x)
    found = tf.TensorArray(tf.float32, 4, element_shape=x.shape[1:]).unstack(tf.zeros_like(x))

    def body(i, state, found):
        state = tf.tanh(state + parts.read(i))
        return i + 1, state, found.write(i, state)

    _, state, found = tf.while_loop(
        lambda i, *_: i < tf.minimum(count, 4), body, (0, tf.ones(x.shape[1:]), found)
    )
    return [state, found.stack()]


def read_in_loop(x, indices):
    """Reads by indices, one after the other."""
    parts = tf.TensorArray(tf.float32, 4, clear_after_read=False).unstack(x)

    def body(i, state):
        return i + 1, state + parts.read(indices[i]) + parts.gather(indices[i : i + 1])[0]

    return tf.while_loop(lambda i, _: i < 2, body, (0, tf.zeros(x.shape[1:])))[1]


def read_in_branch(x, index, chosen):
    parts = tf.TensorArray(tf.float32, 4, clear_after_read=False).unstack(x)
    return tf.cond(chosen > 0.5, lambda: 2.0 * parts.read(index), lambda: x[0])


def repeated(x, weight, count):
    step = lambda i, x: (i + 1, tf.sin(x) * weight)  # noqa: E731
    return tf.while_loop(lambda i, _: i < tf.minimum(count, 4), step, (0, x))[1]


def branches(x, chosen, weight):
    inner = lambda: tf.cond(x[0, 0] > 0.5, lambda: x @ weight, lambda: x - 1.0)  # noqa: E731
    return tf.cond(chosen > 0.5, inner, lambda: tf.sin(x) * weight)


def cases_of_switch(x, index):
    return tf.switch_case(index, [lambda: x, lambda: tf.sin(x), lambda: x * x])


def loop_in_loop(x, count):
    def outer(i, x):
        inner = tf.while_loop(lambda j, _: j < i, lambda j, x: (j + 1, tf.sin(x) + 1.0), (0, x))
        return i + 1, inner[1] * 0.9

    return tf.while_loop(lambda i, _: i < tf.minimum(count, 4), outer, (0, x))[1]


def normalized(training, **options):
    def function(x, scale, offset, mean, variance):
        return tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=scale,
            offset=offset,
            mean=mean,
            variance=variance,
            is_training=training,
            **options,
        )[0]

    return function


def checked(x):
    with tf.control_dependencies([tf.debugging.assert_less(x, 2.0)]):
        return tf.identity(x)


def called(x, y):
    return tf.function(lambda x, y: (x * y, tf.stop_gradient(y)))(x, y)


def named(prefix, suffixes):
    return [prefix + suffix for suffix in suffixes.split()]


def with_padding(name, k, *shape):
    return Case(lambda x, fill: raw(name)(x, k, fill), F(*shape), F())


def with_state(x):
    """An assertion makes the operation around it one with a state."""
    with tf.control_dependencies([tf.debugging.assert_less(x, 1e3)]):
        return tf.sin(x)


def by_shape(x, w):
    """Shapes decide which branches are taken, the second one inside of the first."""
    inner = lambda: tf.cond(tf.shape(x)[1] > 2, lambda: x, lambda: tf.sin(x) * w)  # noqa: E731
    return tf.cond(tf.cast(tf.shape(x)[0], tf.float32) / 2 > 1, inner, lambda: x[:, :1] + x)


STATEFUL = {
    "If": lambda x, i: tf.stop_gradient(tf.cond(i > 1, lambda: with_state(x), lambda: x)),
    "Case": lambda x, i: tf.stop_gradient(tf.switch_case(i, [lambda: x, lambda: with_state(x)])),
    "While": lambda x, i: tf.stop_gradient(
        tf.while_loop(
            lambda j, _: j < tf.minimum(i, 4), lambda j, x: (j + 1, with_state(x)), (0, x)
        )[1]
    ),
}
CONV = {"strides": [1, 2, 1, 1], "padding": "SAME"}
CONV3 = {"strides": [1, 1, 2, 1, 1], "padding": "VALID"}
POOL = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 1, 1], "padding": "SAME"}
POOL3 = {"ksize": [1, 2, 2, 1, 1], "strides": [1, 1, 2, 1, 1], "padding": "VALID"}
IMAGES, VOLUMES = F(2, 4, 5, 2), F(2, 3, 4, 2, 2)
BOTH = (F(2, 4, 3), F(3))


def explicit():
    """{name: cases} for operations whose inputs have a meaning each."""
    f = {}

    def add(name, *cases):
        f.setdefault(name, []).extend(cases)

    def one(name, function, *operands):
        add(name, Case(function, *operands))

    for name in ("Sum", "Prod", "Max", "Min", "Mean"):
        for axes, keep in (([0], False), ([-1, 0], True), ([], False), ([0, 1, 2], False)):
            one(
                name,
                lambda x, n=name, a=axes, k=keep: raw(n, keep_dims=k)(x, tf.constant(a, tf.int32)),
                F(2, 3, 4),
            )
    for name, function in (("All", tf.reduce_all), ("Any", tf.reduce_any)):
        one(name, lambda x, f=function: f(x > 0.5, -1), F(2, 3))
    for name in ("ArgMax", "ArgMin"):
        for axis in (0, -1):
            one(name, lambda x, n=name, a=axis: raw(n)(x, a), F(2, 5))
    for name in ("AdjustContrastv2", "AdjustHue", "AdjustSaturation"):
        one(name, raw(name), F(2, 3, 3, 3), F())
    for name in ("AvgPool", "MaxPool"):
        function = lambda x, n=name: raw(n, **POOL)(x)  # noqa: E731
        one(name, function, IMAGES)
        one(name, twice(function), IMAGES)
    v2 = lambda x: raw("MaxPoolV2", padding="VALID")(x, [1, 2, 2, 1], [1, 1, 2, 1])  # noqa: E731
    one("MaxPoolV2", v2, IMAGES)
    one("MaxPoolV2", twice(v2), IMAGES)
    for name in ("AvgPool3D", "MaxPool3D"):
        function = lambda x, n=name: raw(n, **POOL3)(x)  # noqa: E731
        one(name, function, VOLUMES)
        one(name, twice(function), VOLUMES)
    for name in ("BatchMatMul", "BatchMatMulV2"):
        one(name, raw(name), F(2, 3, 4), F(2, 4, 2))
        one(name, raw(name, adj_x=True, adj_y=True), F(2, 4, 3), F(2, 2, 4))
    one("BatchMatMulV2", raw("BatchMatMulV2"), F(2, 1, 3, 4), F(4, 2))
    one("BatchMatMulV2", raw("BatchMatMulV2"), F(1, 3, 4), F(2, 4, 2))
    one("BatchMatMulV2", raw("BatchMatMulV2", adj_y=True), F(3, 4), F(2, 2, 4))
    one("BatchMatMulV3", raw("BatchMatMulV3", Tout=tf.float32), F(2, 3, 4), F(4, 2))
    for name, shape in (("BatchToSpaceND", (8, 2, 3, 1)), ("SpaceToBatchND", (2, 4, 6, 1))):
        one(name, lambda x, n=name: raw(n)(x, [2, 2], [[0, 0], [0, 0]]), F(*shape))
    one("BatchToSpaceND", lambda x: raw("BatchToSpaceND")(x, [2], [[0, 1]]), F(4, 2, 3))
    for form, bias in (("NHWC", 5), ("NCHW", 3)):
        one("BiasAdd", raw("BiasAdd", data_format=form), F(2, 3, 4, 5), F(bias))
        one("BiasAdd", raw("BiasAdd", data_format=form), F(2, 3, 5), F(bias))
    one("BroadcastTo", lambda x: raw("BroadcastTo")(x, [2, 3, 4]), F(3, 1))
    one("BroadcastTo", lambda x: raw("BroadcastTo")(x, [2, 3]), F())
    one("Bucketize", raw("Bucketize", boundaries=[0.3, 0.6]), F(2, 5))
    one("Cast", raw("Cast", DstT=tf.float64), F(2, 3))
    one("Cast", lambda x: raw("Cast", DstT=tf.int32)(10 * x), F(2, 3))
    one("CheckNumerics", raw("CheckNumerics", message=""), F(2, 3))
    one("Cholesky", lambda x: tf.linalg.cholesky(definite(x)), SQUARES)
    for axis in (0, -1):
        shapes = ((2, 3), (1, 3)) if axis == 0 else ((2, 3), (2, 1))
        one("ConcatV2", lambda x, y, a=axis: tf.concat([x, y, x], a), F(*shapes[0]), F(*shapes[1]))
        one("Pack", lambda x, y, a=axis: tf.stack([x, y], a), F(2, 3), F(2, 3))
        one("Unpack", lambda x, a=axis: raw("Unpack", num=2, axis=a)(x), F(2, 3, 2))
        one("Split", lambda x, a=axis: tf.split(x, 2, a), F(2, 3, 2))
        one("SplitV", lambda x, a=axis: tf.split(x, [1, 2], a), F(3, 2, 3))
        for name in ("Cumsum", "Cumprod"):
            one(name, lambda x, n=name, a=axis: raw(n, exclusive=a == 0)(x, a), F(2, 3, 2))
        one("ExpandDims", lambda x, a=axis: tf.expand_dims(x, a), F(2, 3))
        one("ReverseV2", lambda x, a=axis: tf.reverse(x, [a]), F(2, 3))
    one("Conv2D", raw("Conv2D", **CONV), IMAGES, F(2, 3, 2, 3))
    one(
        "Conv2D", raw("Conv2D", strides=[1, 1, 1, 1], padding="VALID"), F(1, 4, 5, 2), F(2, 2, 2, 3)
    )
    one("Conv2D", lambda x: raw("Conv2D", **CONV)(x, tf.ones([2, 2, 2, 4])), IMAGES)
    one("Conv3D", raw("Conv3D", **CONV3), VOLUMES, F(2, 2, 1, 2, 3))
    one(
        "DepthwiseConv2dNative",
        raw("DepthwiseConv2dNative", strides=[1, 1, 1, 1], padding="SAME"),
        IMAGES,
        F(2, 3, 2, 2),
    )
    one("Cross", raw("Cross"), F(2, 3), F(2, 3))
    one("DepthToSpace", raw("DepthToSpace", block_size=2), F(2, 2, 3, 4))
    one("SpaceToDepth", raw("SpaceToDepth", block_size=2), F(2, 2, 4, 1))
    for shape in ((3,), (2, 2)):
        one("Diag", raw("Diag"), F(*shape))
        one("DiagPart", raw("DiagPart"), F(*shape, *shape))
    for equation, *shapes in (
        ("ab,bc->ac", (2, 3), (3, 4)),
        ("abc,cd->adb", (2, 3, 4), (4, 2)),
        ("...b,bc->...c", (2, 3), (3, 4)),
        ("aab->b", (2, 2, 3)),
        ("ab,ab->", (2, 3), (2, 3)),
    ):
        one(
            "Einsum",
            lambda *x, e=equation: tf.raw_ops.Einsum(inputs=x, equation=e),
            *(F(*s) for s in shapes),
        )
    one("EnsureShape", raw("EnsureShape", shape=[2, None]), F(2, 3))
    for rank, name in enumerate(("FFT", "FFT2D", "FFT3D"), 1):
        shape, length = (2, 4, 4, 4), [4] * rank
        for kind in ("", "I"):
            one(kind + name, lambda x, n=kind + name: tf.abs(raw(n)(complexes(x))), F(*shape))
        one("R" + name, lambda x, n="R" + name, k=length: tf.abs(raw(n)(x, k)), F(*shape))
        one("IR" + name, lambda x, n="IR" + name, k=length: raw(n)(complexes(x), k), F(2, 4, 4, 3))
    one("Fill", lambda x: tf.fill([2, 3], x), F())
    operands = IMAGES, F(2), F(2), F(2), F(2)
    one("FusedBatchNormV3", normalized(False), *operands)
    one("FusedBatchNormV3", lambda x, a, b: normalized(True)(x, a, b, [], []), *operands[:3])
    for form in (
        {},
        {"axis": 1},
        {"axis": -1},
        {"batch_dims": 1, "axis": 1},
        {"axis": 2, "batch_dims": 1},
    ):
        function = lambda x, i, f=form: tf.gather(x, i, **f)  # noqa: E731
        one("GatherV2", function, F(2, 4, 4) if form else F(4, 2), I(4, 2, 3))
        if "batch_dims" not in form:
            one("GatherV2", function, F(2, 4, 4) if form else F(4, 2), I(4))
    one("GatherNd", raw("GatherNd"), F(4, 3), I(4, 5, 1))
    one("GatherNd", raw("GatherNd"), F(3, 3, 2), I(3, 1, 2))
    one("GatherNd", lambda x, i: tf.gather_nd(x, i, batch_dims=1), F(2, 4, 2), I(4, 2, 3, 1))
    one("Identity", raw("Identity"), F(2, 3))
    one("IdentityN", lambda x, y: tf.identity_n([x, y]), F(2, 3), F())
    one("AddN", lambda x, y: tf.raw_ops.AddN(inputs=[x, y, x]), F(2, 3), F(2, 3))
    one("LogMatrixDeterminant", lambda x: tf.linalg.slogdet(definite(x)), SQUARES)
    one("MatrixDeterminant", lambda x: tf.linalg.det(definite(x)), SQUARES)
    for name in ("LowerBound", "UpperBound"):
        one(name, lambda x, y, n=name: raw(n)(tf.sort(x), y), F(2, 5), F(2, 3))
    for a, b in itertools.product((False, True), repeat=2):
        shapes = (4, 3) if a else (3, 4), (2, 4) if b else (4, 2)
        one("MatMul", raw("MatMul", transpose_a=a, transpose_b=b), F(*shapes[0]), F(*shapes[1]))
    one("MatrixBandPart", lambda x: tf.linalg.band_part(x, 1, 0), F(2, 3, 4))
    for name in ("MatrixDiag", "MatrixDiagPart", "MatrixInverse", "SelfAdjointEigV2"):
        one(name, lambda x, n=name: raw(n)(definite(x)), SQUARES)
    one("SelfAdjointEigV2", lambda x: tf.linalg.eigvalsh(definite(x)), SQUARES)
    one("Qr", lambda x: tf.abs(tf.linalg.qr(x)[1]), SQUARES)
    one("MatrixInverse", raw("MatrixInverse", adjoint=True), SQUARES)
    one("MatrixSetDiag", raw("MatrixSetDiag"), F(2, 3, 4), F(2, 3))
    for version, more in (("V2", {}), ("V3", {"align": "LEFT_RIGHT"})):
        one(
            f"MatrixDiag{version}",
            lambda x, v=version, m=more: raw(f"MatrixDiag{v}", **m)(x, [-1, 1], -1, -1, 0.5),
            F(2, 3, 4),
        )
        one(
            f"MatrixDiagPart{version}",
            lambda x, v=version, m=more: raw(f"MatrixDiagPart{v}", **m)(x, [-1, 1], 0.5),
            F(2, 4, 3),
        )
        one(
            f"MatrixSetDiag{version}",
            lambda x, y, v=version, m=more: raw(f"MatrixSetDiag{v}", **m)(x, y, [0, 1]),
            F(2, 3, 4),
            F(2, 2, 3),
        )
    one("MatrixSolve", lambda x, y: tf.linalg.solve(definite(x), y), SQUARES, F(2, 3, 2))
    one(
        "MatrixTriangularSolve",
        lambda x, y: tf.linalg.triangular_solve(definite(x), y),
        SQUARES,
        F(2, 3, 2),
    )
    one(
        "MatrixTriangularSolve",
        lambda x, y: tf.linalg.triangular_solve(definite(x), y, False, True),
        SQUARES,
        F(3, 2),
    )
    for axis in (-1, 0):
        one("OneHot", lambda i, a=axis: tf.one_hot(i, 4, axis=a), I(4, 2, 3))
    one("OneHot", lambda i, on, off: tf.one_hot(i, 4, on, off), I(4, 3), F(), F())
    one("Pad", lambda x: tf.pad(x, [[0, 1], [2, 0]]), F(2, 3))
    one("PadV2", lambda x, v: tf.pad(x, [[0, 1], [2, 0]], constant_values=v), F(2, 3), F())
    one(
        "PadV2",
        lambda x: tf.pad(
            x, [[0, 1], [2, 4 - tf.shape(tf.ensure_shape(x, [None, None]))[1]]], constant_values=0.5
        ),
        F(2, 3),
    )
    one("MirrorPad", lambda x: tf.pad(x, [[0, 1], [2, 0]], "SYMMETRIC"), F(2, 3))
    one("PartitionedCall", called, F(2, 3), F(3))
    one(
        "StatefulPartitionedCall",
        lambda x: tf.function(lambda x: tf.random.normal([2]) * 0 + x)(x),
        F(2),
    )
    one("Assert", checked, F(2, 3))
    for name, function in STATEFUL.items():
        one(name, function, F(2, 3), I(3))
    one("Print", lambda x: tf.compat.v1.Print(x, [0]), F(2, 3))
    for shape in ([6], [-1, 2], [1, 3, -1, 1]):
        one("Reshape", lambda x, s=shape: tf.reshape(x, s), F(2, 3))
    one(
        "Reshape",
        lambda x: tf.reshape(x, [tf.shape(tf.ensure_shape(x, [None, 3]))[0] * 3]),
        F(2, 3),
    )
    for axes in ([0, -1], [-2, 1]):
        one("Roll", lambda x, shift, a=axes: tf.roll(x, tf.stack([shift, 1]), a), F(3, 4), I(9))
    one("Select", lambda c, x, y: raw("Select")(c > 0.5, x, y), F(2, 3), F(2, 3), F(2, 3))
    one("Select", lambda c, x, y: raw("Select")(c > 0.5, x, y), F(2), F(2, 3), F(2, 3))
    one("SelectV2", lambda c, x, y: tf.where(c > 0.5, x, y), F(3), F(2, 3), F())
    one("SelectV2", lambda c, x, y: tf.where(c > 0.5, x, y), F(2, 3), F(2, 1), F(2, 1))
    for name in ("Shape", "Size", "Rank"):
        one(
            name,
            lambda x, n=name: (
                raw(n)(tf.ensure_shape(x, [None, None])) * tf.cast(10 * x[0, 0], tf.int32)
            ),
            F(2, 3),
        )
    one("ShapeN", lambda x, y: [tf.cast(s, tf.float32) * y for s in tf.shape_n([x, y])], F(3), F(2))
    for name in ("OnesLike", "ZerosLike"):
        one(
            name, lambda x, n=name: raw(n)(tf.cast(x, tf.float64)) + tf.cast(x, tf.float64), F(2, 3)
        )
    one("Slice", lambda x, i: tf.slice(x, tf.stack([i, 0]), [2, 3]), F(5, 3), I(4))
    one("Slice", lambda x: tf.slice(x, [1, 0], [2, -1]), F(5, 3))
    one("StridedSlice", lambda x, i: x[i : i + 2, ..., tf.newaxis, 1], F(5, 2, 3), I(4))
    one("StridedSlice", lambda x, i: x[i], F(5, 3), I(5))
    one("StridedSlice", lambda x: x[::-2, tf.newaxis, 1:], F(5, 3))
    for name in ("Softmax", "LogSoftmax"):
        one(name, raw(name), F(2, 3))
        one(name, lambda x, n=name: raw(n)(tf.reshape(x, [2, 3])), F(1, 2, 1, 3))
    one("SoftmaxCrossEntropyWithLogits", raw("SoftmaxCrossEntropyWithLogits"), F(2, 3), F(2, 3))
    one(
        "SparseSoftmaxCrossEntropyWithLogits",
        raw("SparseSoftmaxCrossEntropyWithLogits"),
        F(2, 3),
        I(3, 2),
    )
    for kind in ("Sum", "Max", "Min", "Prod"):
        one(
            f"UnsortedSegment{kind}",
            lambda x, i, n=f"UnsortedSegment{kind}": raw(n)(x, i, 4),
            F(3, 2),
            I(4, 3),
        )
        one(
            f"UnsortedSegment{kind}",
            lambda x, i, n=f"UnsortedSegment{kind}": raw(n)(x, i, 4),
            F(3, 2),
            I(4, 3, 2),
        )
    one("Squeeze", lambda x: tf.squeeze(x, [0, -1]), F(1, 3, 1))
    one("Squeeze", lambda x: tf.squeeze(x), F(1, 3, 1))
    one("TensorScatterUpdate", raw("TensorScatterUpdate"), F(4, 2), I(4, 1, 1), F(1, 2))
    one("ScatterNd", lambda i, x: tf.scatter_nd(i, x, [4, 2]), I(4, 3, 1), F(3, 2))
    one("Tile", lambda x: tf.tile(x, [2, 3]), F(2, 3))
    one("TopKV2", lambda x: raw("TopKV2")(x, 2), F(2, 5))
    for name in ("Transpose", "ConjugateTranspose"):
        one(name, lambda x, n=name: raw(n)(x, [2, 0, 1]), F(2, 3, 4))
        one(name, lambda x, n=name: tf.math.real(raw(n)(complexes(x), [1, 0])), F(2, 3))
    one(
        "If",
        lambda x, c, w: tf.cond(c > 0.5, lambda: x @ w, lambda: tf.sin(x) * w),
        F(2, 2),
        F(),
        F(2, 2),
    )
    one("If", lambda x, c, w: tf.stop_gradient(branches(x, c, w)), F(2, 2), F(), F(2, 2))
    one("If", by_shape, F(3, 2), F(2))
    one("Case", cases_of_switch, F(2, 3), I(3))
    one("While", loop_in_loop, F(2, 3), I(4))
    one("While", repeated, F(2, 3), F(3), I(4))
    one("While", in_loop, F(4, 2), I(5))
    one("TensorListGetItem", lambda x, i: reads(x, i, 2), F(4, 2), I(4))
    one("TensorListGetItem", read_in_loop, F(4, 2), I(4, 2))
    one("TensorListGetItem", read_in_branch, F(4, 2), I(4), F())
    gathers = lambda x, i: tf.TensorArray(tf.float32, 4).unstack(x).gather(i)  # noqa: E731
    one("TensorListGather", gathers, F(4, 2), I(4, 3))
    one("TensorListGather", lambda x: gathers(x, [2, 0, 2]), F(4, 3))
    one("TensorListSetItem", written, F(4, 2), I(4))
    one("TensorListScatterIntoExistingList", scattered_list, F(2, 3), I(4, 2))
    one("TensorListPushBack", grown, F(4, 2))
    one("TensorListConcatV2", lambda x: tf.stop_gradient(joined_list(x)), F(4, 2))
    for name in ("Area", "Bicubic", "Bilinear", "NearestNeighbor"):
        name = f"Resize{name}"
        one(name, lambda x, n=name: raw(n)(x, [7, 3]), IMAGES)
    one(
        "ExtractImagePatches",
        raw(
            "ExtractImagePatches",
            ksizes=[1, 2, 2, 1],
            strides=[1, 1, 2, 1],
            rates=[1, 1, 1, 1],
            padding="VALID",
        ),
        IMAGES,
    )
    one(
        "ImageProjectiveTransformV3",
        lambda x, t: raw("ImageProjectiveTransformV3", interpolation="BILINEAR")(x, t, [4, 4], 0.0),
        IMAGES,
        F(2, 8, high=0.4),
    )
    one(
        "ScaleAndTranslate",
        lambda x: raw("ScaleAndTranslate")(x, [7, 3], [1.5, 0.7], [0.1, 0.2]),
        IMAGES,
    )
    for name in ("HSVToRGB", "RGBToHSV"):
        one(name, raw(name), F(2, 3))
    one("Bitcast", lambda x: tf.bitcast(x, tf.int32), F(2, 3))
    one(
        "DenseBincount",
        lambda i: tf.math.bincount(i, minlength=4, maxlength=4, dtype=tf.float32),
        I(4, 6),
    )
    one("Range", lambda x: tf.range(x, x + 2.9), F())
    one("SparseToDense", lambda i, x: raw("SparseToDense")(i, [4], x, 0.5), I(4, 1), F(1))
    one("PlaceholderWithDefault", raw("PlaceholderWithDefault", shape=[None, 3]), F(2, 3))
    for name, more in RANDOM.items():
        add(
            name,
            Case(
                lambda x, n=name, m=more: x + tf.cast(raw(n, **m[0])([5], *m[1]), tf.float32),
                F(5),
                random=True,
            ),
        )
    gamma = lambda x: x[0] + tf.stop_gradient(raw("RandomGamma")([5], x))[:, 0]  # noqa: E731
    add("RandomGamma", Case(gamma, F(2), random=True))
    add(
        "Multinomial",
        Case(lambda x: x + tf.cast(raw("Multinomial")(x, 5), tf.float32), F(2, 5), random=True),
    )
    for name, sampler in SAMPLERS.items():
        one(name, lambda seed, s=sampler: s(tf.stack([seed, 1])), I(100))
    return f


RANDOM = {
    "RandomUniform": ({"dtype": tf.float32}, ()),
    "RandomStandardNormal": ({"dtype": tf.float32}, ()),
    "TruncatedNormal": ({"dtype": tf.float32}, ()),
    "RandomUniformInt": ({}, (0, 1000)),
    "RandomPoissonV2": ({}, (50.0,)),
}
SAMPLERS = {
    "StatelessRandomNormalV2": lambda seed: tf.random.stateless_normal([4], seed),
    "StatelessRandomUniformV2": lambda seed: tf.random.stateless_uniform([4], seed),
    "StatelessRandomUniformIntV2": lambda seed: tf.random.stateless_uniform(
        [4], seed, 0, 99, tf.int32
    ),
    "StatelessRandomUniformFullIntV2": lambda seed: tf.random.stateless_uniform(
        [4], seed, None, None, tf.int32
    ),
    "StatelessTruncatedNormalV2": lambda seed: tf.random.stateless_truncated_normal([4], seed),
    "StatelessRandomGammaV3": lambda seed: tf.random.stateless_gamma([4], seed, alpha=2.0),
    "StatelessRandomNormal": lambda seed: raw("StatelessRandomNormal")([4], seed),
    "StatelessRandomUniform": lambda seed: raw("StatelessRandomUniform")([4], seed),
    "StatelessRandomUniformInt": lambda seed: raw("StatelessRandomUniformInt")([4], seed, 0, 99),
    "StatelessRandomUniformFullInt": lambda seed: raw("StatelessRandomUniformFullInt")([4], seed),
    "StatelessTruncatedNormal": lambda seed: raw("StatelessTruncatedNormal")([4], seed),
    "StatelessRandomBinomial": lambda seed: raw("StatelessRandomBinomial")([4], seed, 9.0, 0.5),
    "StatelessRandomPoisson": lambda seed: raw("StatelessRandomPoisson", dtype=tf.float32)(
        [4], seed, 50.0
    ),
    "StatelessRandomGammaV2": lambda seed: raw("StatelessRandomGammaV2")([4], seed, 2.0),
    "StatelessMultinomial": lambda seed: raw("StatelessMultinomial")([[0.1, 0.2, 0.3]], 4, seed),
    "StatelessParameterizedTruncatedNormal": lambda seed: raw(
        "StatelessParameterizedTruncatedNormal"
    )([4], seed, 0.0, 1.0, -1.0, 1.0),
}


def cases_of(name):
    """The cases of an operation: those that are written down, or what its definition says."""
    return EXPLICIT.get(name) or elementwise(
        name, **({"low": 1.1, "high": 3.0} if name == "Acosh" else {})
    )


EXPLICIT = explicit()
