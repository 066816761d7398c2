"""Every rule of `tf.vectorized_map` that tfdp trusts equals a loop over the rows, and mixes none.

Each case is a function of operands. Each operand alone differs by rows, and all together; the others
are shared. The gradients with respect to all operands belong to the results. Then one row becomes a
NaN, an infinity or an index that does not exist, and all other rows have to stay as they are.
`pfor_map.TRUSTED` has the operations that pass; no other operation runs vectorized.
"""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor

from tests._compat.rule_cases import EXPLICIT, ROWS, Floats, Indices, cases_of
from tfdp._compat.pfor_map import TRUSTED, vectorized_map

BAD_ROW = 1


def leaves(values):
    return [tf.convert_to_tensor(v) for v in tf.nest.flatten(values)]


class Checked:
    """A case whose operands differ by rows where `stacked` says so; the last operand is upstream."""

    def __init__(self, case, backwards=True):
        self.case = case
        rng = np.random.default_rng(0)
        self.values = [operand.draw(rng) for operand in case.operands]
        first = leaves(case.function(*(tf.constant(v[0]) for v in self.values)))
        ends = [t for t in first if t.dtype == tf.float32] if backwards else []
        self.upstream = [Floats(*t.shape).draw(rng) for t in ends]
        self.values += self.upstream

    def subsets(self):
        count = len(self.case.operands)
        groups = [(i,) for i in range(count)]
        if self.upstream:
            groups.append(tuple(range(count, len(self.values))))
        every = [*range(len(self.values))]
        chosen = {*groups, (*range(count),), (*every,)}
        return sorted(map(list, chosen), key=lambda one: (len(one), one))

    def of_row(self, *values):
        """The results and gradients for the operands of one row."""
        count = len(self.case.operands)
        operands, upstream = values[:count], values[count:]
        if not upstream:
            return leaves(self.case.function(*operands))
        floats = [x for x in operands if x.dtype == tf.float32]
        with tf.GradientTape() as tape:
            tape.watch(floats)
            results = leaves(self.case.function(*operands))
            ends = [r for r in results if r.dtype == tf.float32]
            total = sum(tf.reduce_sum(r * u) for r, u in zip(ends, upstream, strict=True))
        gradients = []
        if floats:
            with contextlib.suppress(LookupError):  # it has no gradient
                gradients = tape.gradient(total, floats, unconnected_gradients="zero")
        return [*results, *map(tf.convert_to_tensor, gradients)]

    def vectorized(self, stacked, compiled=False, unknown=False):
        shared = {i: tf.constant(v[0]) for i, v in enumerate(self.values) if i not in stacked}

        def one(rows):
            rows = dict(zip(stacked, rows, strict=True))
            return self.of_row(*({**shared, **rows}[i] for i in range(len(self.values))))

        def run(*rows):
            return vectorized_map(one, rows)

        specs = [
            tf.TensorSpec([None] * v.ndim if unknown else v.shape, v.dtype)
            for v in (self.values[i] for i in stacked)
        ]
        return tf.function(run, autograph=False, jit_compile=compiled).get_concrete_function(*specs)

    def in_a_loop(self, values, stacked):
        """In a graph, as lists have other gradients outside."""
        of_row = tf.function(self.of_row, autograph=False)
        rows = (
            [v[row if i in stacked else 0] for i, v in enumerate(values)] for row in range(ROWS)
        )
        return [[t.numpy() for t in of_row(*map(tf.constant, row))] for row in rows]


# A row that is mixed with others is off by its own size; functions near their poles are off by less.
_SAME, _ZERO = 1e-4, 1e-5


def equal(found, expected, rtol=_SAME):
    for ours, theirs in zip(found, expected, strict=True):
        if ours.dtype.kind in "Ob":
            np.testing.assert_array_equal(ours, theirs)
        else:
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=_ZERO)


def check(case, compiled=False, unknown_too=True, backwards=True):
    """Returns what was found wrong, and in how many ways the operands could be stacked."""
    checked, problems, ways = Checked(case, backwards), [], 0
    subsets = [*checked.subsets()][-1 if compiled else 0 :]
    for stacked, unknown in [
        *((s, False) for s in subsets),
        *([(subsets[-1], True)] if unknown_too else []),
    ]:
        label = f"stacked {stacked} of {len(case.operands)}{' open' * unknown}{' xla' * compiled}"
        try:
            run = checked.vectorized(stacked, compiled, unknown)
        except Exception as error:
            problems.append(("refused", label, first_line(error)))
            continue
        ways += 1
        try:
            good = [t.numpy() for t in run(*(tf.constant(checked.values[i]) for i in stacked))]
            if not case.random:
                expected = checked.in_a_loop(checked.values, stacked)
                for row in range(ROWS):
                    equal([t[row] for t in good], expected[row])
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            kind = "fails" if isinstance(error, tf.errors.OpError) else "WRONG"
            lacks = "tf2xla conversion failed" in str(error)  # XLA lacks an operation
            problems.append(("refused" if lacks else kind, label, first_line(error)))
            continue
        if case.random:
            if any(
                np.array_equal(t[0] - checked.values[0][0][:1], t[1] - checked.values[0][1][:1])
                for t in good[:1]
            ):
                problems.append(("WRONG", label, "rows draw the same"))
            continue
        operands = [*case.operands, *(Floats(*u.shape[1:]) for u in checked.upstream)]
        for place in stacked:
            for poison in operands[place].poisons(checked.values[place][BAD_ROW]):
                values = [v.copy() for v in checked.values]
                values[place][BAD_ROW] = poison
                label_of = f"{label} | {place} {poison.flat[-1]}"
                others = [v[::-1] if i in stacked else v for i, v in enumerate(values)]
                try:
                    found, reversed_ = (
                        [t.numpy() for t in run(*(tf.constant(v[i]) for i in stacked))]
                        for v in (values, others)
                    )
                except tf.errors.OpError as error:
                    problems.append(("ends", label_of, first_line(error)))
                    continue
                try:  # no row sees another one: neither do others see the bad row, nor it them
                    for row in range(ROWS):
                        own = [t[row] for t in found]
                        equal(own, [t[ROWS - 1 - row] for t in reversed_], 1e-6)
                        if row != BAD_ROW:
                            equal(own, [t[row] for t in good], 1e-6)
                except AssertionError as error:
                    problems.append(("MIXED", label_of, first_line(error)))
    return problems, ways


def first_line(error):
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    text = str(error).partition("[[{{node")[0].strip()
    if isinstance(error, tf.errors.OpError):
        text = text.rpartition("\n")[2]
    return f"{type(error).__name__} {' '.join(text.split())[:200]}"


# Rules of TensorFlow that tfdp does not use: they are wrong, belong to old loops or XLA, or make or
# read what no model has in its rows.
OUTSIDE = set(
    """
    ApproximateEqual ClipByValue DecodeCSV Gather LogicalXor ParseExampleV2 ParseSingleExample
    PrintV2 SparseSegmentMean SparseSegmentMeanGrad SparseSegmentMeanWithNumSegments
    SparseSegmentSqrtN SparseSegmentSqrtNGrad SparseSegmentSqrtNWithNumSegments SparseSegmentSum
    SparseSegmentSumGrad SparseSegmentSumWithNumSegments StackPopV2 StackPushV2
    TensorArrayGatherV3 TensorArrayGradV3 TensorArrayReadV3 TensorArrayScatterV3
    TensorArraySizeV3 TensorArrayV3 TensorArrayWriteV3 TopK XlaEinsum XlaSharding StringFormat
    _EagerConst
    """.split()  # noqa: SIM905
)
# Operations that occur in the gradients of others, in branches, loops and lists, or by other names.
ONLY_INSIDE = set(
    """
    AvgPool3DGrad AvgPoolGrad Conv2DBackpropFilter Conv2DBackpropInput Conv3DBackpropFilterV2
    Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput
    FusedBatchNormGradV3 MaxPool3DGrad MaxPool3DGradGrad MaxPoolGrad MaxPoolGradGrad
    MaxPoolGradGradV2 MaxPoolGradV2 MirrorPadGrad OptionalFromValue OptionalGetValue
    ResizeBicubicGrad ResizeBilinearGrad ResizeNearestNeighborGrad ScaleAndTranslateGrad
    StatelessCase StatelessIf StatelessRandomGetKeyCounter StatelessWhile StridedSliceGrad
    TensorListElementShape TensorListFromTensor TensorListLength TensorListPopBack
    TensorListReserve TensorListStack
    """.split()  # noqa: SIM905
)


def test_the_rules_of_this_tensorflow_are_known():
    """A new version may have new rules, which first have to pass `test_every_rule`."""
    assert set(pfor._pfor_converter_registry) - TRUSTED == OUTSIDE


@pytest.fixture
def exercised(monkeypatch):
    """The types of the operations that rules converted."""
    found, before = set(), pfor._PforInput.__init__

    def noticed(self, converter, operation, inputs):
        found.add(operation.type)
        before(self, converter, operation, inputs)

    monkeypatch.setattr(pfor._PforInput, "__init__", noticed)
    return found


def problems_of(name):
    """What is wrong with an operation, but refusals and errors that end the whole step."""
    for number, case in enumerate(cases_of(name)):
        has_indices = any(isinstance(operand, Indices) for operand in case.operands)
        # The latter take long; XLA has random numbers of its own.
        by_xla = has_indices and not name.startswith(("Stateless", "TensorList", "While"))
        ways = 0
        # Where a gradient raises an error, it hides what is forwards.
        choices = [(False, True), *[(False, False)] * has_indices, *[(True, False)] * by_xla]
        for compiled, backwards in choices + [(True, True)] * by_xla:
            problems, found = check(case, compiled, number == 0 and backwards, backwards)
            yield from ((name, number, *p) for p in problems if p[0] in ("WRONG", "MIXED", "fails"))
            ways += found
        if not ways:
            yield name, number, "is refused", problems


@pytest.mark.parametrize(("name", "number"), [("GatherNd", 0), ("TensorListGather", 1)])
def test_a_rule_forwards(name, number):
    problems, _ = check(cases_of(name)[number], unknown_too=False, backwards=False)
    assert not problems


@pytest.mark.slow
def test_every_rule(exercised):
    names = sorted({*EXPLICIT, *TRUSTED} - ONLY_INSIDE)
    assert not [problem for name in names for problem in problems_of(name)]
    assert not TRUSTED - exercised
