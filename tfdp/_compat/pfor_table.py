"""The operations that `tf.vectorized_map` may run for all rows at once, by rules that are tested.

TensorFlow's rules have mixed rows before, which breaks the bound on what one example contributes, in
silence. `tests/_compat/test_every_rule.py` compares each of these with a loop over the rows, forwards
and through its gradient, with numbers that are not finite and indices that do not exist. Any other
operation runs for one row after the other, or is refused (`pfor_conversion.only_rules`).
"""

TRUSTED = frozenset(
    """
    Abs Acos Acosh Add AddN AddV2 AdjustContrastv2 AdjustHue AdjustSaturation All Angle Any ArgMax
    ArgMin Asin Asinh Assert Atan Atan2 Atanh AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad BatchMatMul
    BatchMatMulV2 BatchMatMulV3 BatchToSpaceND BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1
    BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 BiasAdd BiasAddGrad Bitcast BitwiseAnd
    BitwiseOr BitwiseXor BroadcastTo Bucketize Case Cast Ceil CheckNumerics Cholesky Complex ComplexAbs
    ConcatV2 Conj ConjugateTranspose Conv2D Conv2DBackpropFilter Conv2DBackpropInput Conv3D
    Conv3DBackpropFilterV2 Conv3DBackpropInputV2 Cos Cosh Cross Cumprod Cumsum Dawsn DepthToSpace
    DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput Diag
    DiagPart Digamma Div DivNoNan Einsum Elu EluGrad EnsureShape Equal Erf Erfc Erfinv Exp ExpandDims
    Expint Expm1 ExtractImagePatches FFT FFT2D FFT3D Fill Floor FloorDiv FloorMod FresnelCos FresnelSin
    FusedBatchNormGradV3 FusedBatchNormV3 GatherNd GatherV2 Greater GreaterEqual HSVToRGB IFFT IFFT2D
    IFFT3D IRFFT IRFFT2D IRFFT3D Identity IdentityN If Igamma IgammaGradA Igammac Imag
    ImageProjectiveTransformV3 Inv Invert IsFinite IsInf IsNan L2Loss LeakyRelu LeakyReluGrad LeftShift
    Less LessEqual Lgamma Log Log1p LogMatrixDeterminant LogSoftmax LogicalAnd LogicalNot LogicalOr
    LowerBound MatMul MatrixBandPart MatrixDeterminant MatrixDiag MatrixDiagPart MatrixDiagPartV2
    MatrixDiagPartV3 MatrixDiagV2 MatrixDiagV3 MatrixInverse MatrixSetDiag MatrixSetDiagV2
    MatrixSetDiagV3 MatrixSolve MatrixTriangularSolve Max MaxPool MaxPool3D MaxPool3DGrad
    MaxPool3DGradGrad MaxPoolGrad MaxPoolGradGrad MaxPoolGradGradV2 MaxPoolGradV2 MaxPoolV2 Maximum
    Mean Min Minimum MirrorPad MirrorPadGrad Mod Mul MulNoNan Multinomial Ndtri Neg NotEqual OneHot
    OnesLike Pack Pad PadV2 PartitionedCall PlaceholderWithDefault Polygamma Pow Print PrintV2 Prod Qr
    RFFT RFFT2D RFFT3D RGBToHSV RandomGamma RandomPoissonV2 RandomStandardNormal RandomUniform
    RandomUniformInt Rank Real RealDiv Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad Reshape
    ResizeArea ResizeBicubic ResizeBicubicGrad ResizeBilinear ResizeBilinearGrad ResizeNearestNeighbor
    ResizeNearestNeighborGrad ReverseV2 RightShift Rint Roll Round Rsqrt RsqrtGrad ScaleAndTranslate
    ScaleAndTranslateGrad ScatterNd Select SelectV2 SelfAdjointEigV2 Selu SeluGrad Shape ShapeN Sigmoid
    SigmoidGrad Sign Sin Sinh Size Slice Softmax SoftmaxCrossEntropyWithLogits Softplus SoftplusGrad
    Softsign SoftsignGrad SpaceToBatchND SpaceToDepth SparseSegmentMean SparseSegmentMeanGrad
    SparseSegmentMeanWithNumSegments SparseSegmentSqrtN SparseSegmentSqrtNGrad
    SparseSegmentSqrtNWithNumSegments SparseSegmentSum SparseSegmentSumGrad
    SparseSegmentSumWithNumSegments SparseSoftmaxCrossEntropyWithLogits Spence Split SplitV Sqrt
    SqrtGrad Square SquaredDifference Squeeze StatefulPartitionedCall StatelessCase StatelessIf
    StatelessMultinomial StatelessParameterizedTruncatedNormal StatelessRandomBinomial
    StatelessRandomGammaV2 StatelessRandomGammaV3 StatelessRandomGetKeyCounter StatelessRandomNormal
    StatelessRandomNormalV2 StatelessRandomPoisson StatelessRandomUniform StatelessRandomUniformFullInt
    StatelessRandomUniformFullIntV2 StatelessRandomUniformInt StatelessRandomUniformIntV2
    StatelessRandomUniformV2 StatelessTruncatedNormal StatelessTruncatedNormalV2 StatelessWhile
    StopGradient StridedSlice StridedSliceGrad Sub Sum Tan Tanh TanhGrad TensorListConcatV2
    TensorListElementShape TensorListFromTensor TensorListGather TensorListGetItem TensorListLength
    TensorListPopBack TensorListPushBack TensorListReserve TensorListScatterIntoExistingList
    TensorListSetItem TensorListStack TensorScatterUpdate Tile TopKV2 Transpose TruncateDiv TruncateMod
    TruncatedNormal Unpack UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum
    UpperBound While Xdivy Xlog1py Xlogy ZerosLike Zeta
    """.split()  # noqa: SIM905
)
# Operations of Keras' layers that run for one row after the other without a warning. TensorFlow has
# rules for slices whose ends the rows share.
LOOPED = frozenset(
    """
    DenseBincount Range SparseCross SparseToDense StridedSlice StridedSliceGrad StringFormat
    """.split()  # noqa: SIM905
)
