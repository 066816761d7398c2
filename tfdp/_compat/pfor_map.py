"""`tf.vectorized_map`, restricted to the tested rules of the operations in `TRUSTED`."""

import contextlib
from collections.abc import Callable

import tensorflow as tf
from absl import logging
from tensorflow.python.ops.parallel_for.control_flow_ops import pfor

from tfdp._compat import (  # noqa: F401, each module adds its rules to `RULES`
    pfor_convolutions,
    pfor_indices,
    pfor_layers,
    pfor_random,
)
from tfdp._compat.keras import as_in_a_larger_batch
from tfdp._compat.pfor_conversion import AT_ONCE, RULES, NotCovered, looped, taken

# Some of TensorFlow's rules mixed rows, which silently breaks the bound on one example's influence.
# `tests/_compat/test_every_rule.py` compares each of these with a loop over the rows, forwards and
# through its gradient, with numbers that are not finite and indices that do not exist.
TRUSTED = frozenset(
    """
    Abs Acos Acosh Add AddN AddV2 AdjustContrastv2 AdjustHue AdjustSaturation All Angle Any ArgMax
    ArgMin Asin Asinh Assert Atan Atan2 Atanh AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad
    BatchMatMul BatchMatMulV2 BatchMatMulV3 BatchToSpaceND BesselI0 BesselI0e BesselI1 BesselI1e
    BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 BiasAdd BiasAddGrad
    Bitcast BitwiseAnd BitwiseOr BitwiseXor BroadcastTo Bucketize Case Cast Ceil CheckNumerics
    Cholesky Complex ComplexAbs ConcatV2 Conj ConjugateTranspose Conv2D Conv2DBackpropFilter
    Conv2DBackpropInput Conv3D Conv3DBackpropFilterV2 Conv3DBackpropInputV2 Cos Cosh Cross Cumprod
    Cumsum Dawsn DepthToSpace DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter
    DepthwiseConv2dNativeBackpropInput Diag DiagPart Digamma Div DivNoNan Einsum Elu EluGrad
    EnsureShape Equal Erf Erfc Erfinv Exp ExpandDims Expint Expm1 ExtractImagePatches FFT FFT2D
    FFT3D Fill Floor FloorDiv FloorMod FresnelCos FresnelSin FusedBatchNormGradV3 FusedBatchNormV3
    GatherNd GatherV2 Greater GreaterEqual HSVToRGB IFFT IFFT2D IFFT3D IRFFT IRFFT2D IRFFT3D
    Identity IdentityN If Igamma IgammaGradA Igammac Imag ImageProjectiveTransformV3 Inv Invert
    IsFinite IsInf IsNan LeakyRelu LeakyReluGrad LeftShift Less LessEqual Lgamma Log Log1p
    LogMatrixDeterminant LogSoftmax LogicalAnd LogicalNot LogicalOr LowerBound MatMul MatrixBandPart
    MatrixDeterminant MatrixDiag MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixDiagV2
    MatrixDiagV3 MatrixInverse MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3 MatrixSolve
    MatrixTriangularSolve Max MaxPool MaxPool3D MaxPool3DGrad MaxPool3DGradGrad MaxPoolGrad
    MaxPoolGradGrad MaxPoolGradGradV2 MaxPoolGradV2 MaxPoolV2 Maximum Mean Min Minimum MirrorPad
    MirrorPadGrad Mod Mul MulNoNan Multinomial Ndtri Neg NotEqual OneHot OnesLike OptionalFromValue
    OptionalGetValue Pack Pad PadV2 PartitionedCall PlaceholderWithDefault Polygamma Pow Print Prod
    Qr RFFT RFFT2D RFFT3D RGBToHSV RandomGamma RandomPoissonV2 RandomStandardNormal RandomUniform
    RandomUniformInt Rank Real RealDiv Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad
    Reshape ResizeArea ResizeBicubic ResizeBicubicGrad ResizeBilinear ResizeBilinearGrad
    ResizeNearestNeighbor ResizeNearestNeighborGrad ReverseV2 RightShift Rint Roll Round Rsqrt
    RsqrtGrad ScaleAndTranslate ScaleAndTranslateGrad ScatterNd Select SelectV2 SelfAdjointEigV2
    Selu SeluGrad Shape ShapeN Sigmoid SigmoidGrad Sign Sin Sinh Size Slice Softmax
    SoftmaxCrossEntropyWithLogits Softplus SoftplusGrad Softsign SoftsignGrad SpaceToBatchND
    SpaceToDepth SparseSoftmaxCrossEntropyWithLogits Spence Split SplitV Sqrt SqrtGrad Square
    SquaredDifference Squeeze StatefulPartitionedCall StatelessCase StatelessIf StatelessMultinomial
    StatelessParameterizedTruncatedNormal StatelessRandomBinomial StatelessRandomGammaV2
    StatelessRandomGammaV3 StatelessRandomGetKeyCounter StatelessRandomNormal
    StatelessRandomNormalV2 StatelessRandomPoisson StatelessRandomUniform
    StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 StatelessRandomUniformInt
    StatelessRandomUniformIntV2 StatelessRandomUniformV2 StatelessTruncatedNormal
    StatelessTruncatedNormalV2 StatelessWhile StopGradient StridedSlice StridedSliceGrad Sub Sum Tan
    Tanh TanhGrad TensorListConcatV2 TensorListElementShape TensorListFromTensor TensorListGather
    TensorListGetItem TensorListLength TensorListPopBack TensorListPushBack TensorListReserve
    TensorListScatterIntoExistingList TensorListSetItem TensorListStack TensorScatterUpdate Tile
    TopKV2 Transpose TruncateDiv TruncateMod TruncatedNormal Unpack UnsortedSegmentMax
    UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum UpperBound While Xdivy Xlog1py Xlogy
    ZerosLike Zeta
    """.split()  # noqa: SIM905
)
# Operations of Keras' layers that run for one row at a time without a warning. TensorFlow has rules for
# slices whose ends the rows share.
LOOPED = frozenset(
    """
    DenseBincount Range SparseCross SparseToDense StridedSlice StridedSliceGrad
    """.split()  # noqa: SIM905
)

_CALLS = ("Case", "If", "PartitionedCall", "While")  # these call functions of the graph


def vectorized_map(function: Callable, rows, failed: list | None = None):
    """Maps `function` over rows with `tf.vectorized_map`, by the rules of the operations in `TRUSTED`.

    Any other operation, and one whose rule does not cover inputs that differ by row, runs for one row
    at a time, with a warning. If that is impossible, the map raises an error.

    TensorFlow's table of rules stays as it is: its vectorizer asks an operation for its attribute
    `pfor_converter` first. Maps inside of `function` are TensorFlow's own.

    Args:
        function: Maps the tensors of one row, without leading axis, to tensors. Additions in it behave
            as in a larger batch (`keras.as_in_a_larger_batch`).
        rows: A structure of tensors with a common leading axis.
        failed: A list that gets the operations whose conversion raised, the inner ones first.
    """

    def convert(pfor_input):
        try:
            return _converted(pfor_input)
        except Exception:
            if failed is not None:
                failed.append(pfor_input.op)
            raise

    rows = tf.nest.map_structure(tf.convert_to_tensor, rows)
    numbers = [leaf.shape[0] for leaf in tf.nest.flatten(rows)]
    known = next((number for number in numbers if number is not None), None)

    def of_row(index):
        with as_in_a_larger_batch():
            row = tf.nest.map_structure(lambda leaf: taken(leaf, index), rows)
            found = tf.nest.map_structure(tf.convert_to_tensor, function(row))
        _mark(tf.compat.v1.get_default_graph(), convert)
        return found

    with _without_log_of_state():
        number = tf.shape(tf.nest.flatten(rows)[0])[0] if known is None else known
        return pfor(of_row, number, fallback_to_while_loop=False)


def _mark(graph, convert):
    """Gives all operations of a graph, and of the functions that it calls, this conversion."""
    for operation in graph.get_operations():
        operation.pfor_converter = convert
        if operation.type.removeprefix("Stateless").removeprefix("Stateful") in _CALLS:
            for value in operation.node_def.attr.values():
                for called in (value.func, *value.list.func):
                    # TensorFlow 1's functions (`Defun`) have no graph, and no rule opens them.
                    inner = called.name and getattr(graph._get_function(called.name), "graph", None)
                    if inner:
                        _mark(inner, convert)


@contextlib.contextmanager
def _without_log_of_state():
    """Context in which TensorFlow does not log its whole state for each error; tfdp raises its own."""

    def is_other(record):
        text = record.getMessage()
        return "pfor was converting" not in text and "created at:\n" not in text

    tf.get_logger().addFilter(is_other)
    try:
        yield
    finally:
        tf.get_logger().removeFilter(is_other)


def _converted(pfor_input):
    operation = pfor_input.op
    rule = getattr(operation, AT_ONCE, None)
    if rule is None and operation.type in TRUSTED:
        rule = RULES.get(operation.type)
    reason = "it has no vectorization rule that is known to keep examples apart"
    if rule is not None:
        try:
            return rule(pfor_input)
        except NotCovered as error:
            reason = str(error).rstrip(".")
    if operation.type not in LOOPED:
        if not _can_loop(operation):
            raise ValueError(reason)
        if operation.type not in _WARNED_OF:
            _WARNED_OF.add(operation.type)
            logging.warning(
                "TensorFlow operation %s (%s) runs for one example at a time, which is slow, "
                "because %s.",
                operation.type,
                operation.name,
                reason,
            )
    return looped(pfor_input)


_WARNED_OF: set[str] = set()


def _can_loop(operation):
    definition = operation.op_def
    kinds = {tensor.dtype for tensor in (*operation.inputs, *operation.outputs)}
    return not (
        definition.is_stateful
        or any("func" in attribute.type for attribute in definition.attr)
        or kinds & {tf.variant, tf.resource}
        or not operation.outputs
        # Results of another shape for each row cannot be stacked.
        or not all(output.shape.is_fully_defined() for output in operation.outputs)
    )


def batch_of_one(tree):
    """Gives every leaf [...], which is one example, a leading axis of length one.

    Where shapes are known, the vectorized graph has far fewer operations. But the length of a tensor
    with no other axis stays unknown, because Keras' layers would treat an axis of length one as one of
    features.
    """

    def grown(leaf):
        if leaf.shape.rank:
            return leaf[tf.newaxis]
        return tf.raw_ops.PlaceholderWithDefault(input=leaf[tf.newaxis], shape=[None])

    return tf.nest.map_structure(grown, tree)
