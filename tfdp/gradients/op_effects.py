"""Classifies TensorFlow ops by what they may keep of the tensors that they are given.

This module lists the stateful ops that are allowed, so that an unknown op is refused. Besides all ops
that write, the lists leave out GuaranteeConst, which returns the first tensor that it ever received;
LearnedUnigramCandidateSampler, which counts labels; and the TensorArray ops of TensorFlow 1, through
which data can flow where the graph shows no edge.
"""

import enum
import functools

from tfdp._compat.tensorflow import op_definition

# Ops that TensorFlow declares stateful, although they keep nothing of what they are given.
_READS = {
    "DisableCopyOnRead",
    "IsResourceHandleRefCounting",
    "LookupTableExportV2",
    "LookupTableFindV2",
    "LookupTableSizeV2",
    "ReadVariableOp",
    "ResourceGather",
    "ResourceGatherNd",
    "VarIsInitializedOp",
    "VariableShape",
    "_ReadVariablesOp",
}
_CALLS = {"Case", "If", "StatefulPartitionedCall", "While"}  # their functions are inspected, too
# The state of these ops is a counter, which advances by the number of values that are drawn.
_RANDOM = {
    "AllCandidateSampler",
    "FixedUnigramCandidateSampler",
    "LogUniformCandidateSampler",
    "Multinomial",
    "NonDeterministicInts",
    "ParameterizedTruncatedNormal",
    "RandomCrop",
    "RandomGamma",
    "RandomPoisson",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "SampleDistortedBoundingBox",
    "SampleDistortedBoundingBoxV2",
    "StatelessRandomGetAlg",
    "TruncatedNormal",
    "UniformCandidateSampler",
}
# Ops of tf.random.Generator, whose counter is a variable and is saved. The number is that of the
# op's input (a shape or a difference) that determines how far the counter moves.
GENERATORS = dict.fromkeys(
    (
        "RngReadAndSkip",
        "RngSkip",
        "StatefulRandomBinomial",
        "StatefulStandardNormal",
        "StatefulStandardNormalV2",
        "StatefulTruncatedNormal",
        "StatefulUniform",
        "StatefulUniformFullInt",
        "StatefulUniformInt",
    ),
    2,
) | {"StatefulStandardNormal": 1}
_WORKSPACE = {
    "Assert",
    "CheckNumerics",
    "CheckNumericsV2",
    "CudnnRNN",
    "CudnnRNNBackprop",
    "CudnnRNNBackpropV2",
    "CudnnRNNBackpropV3",
    "CudnnRNNV2",
    "CudnnRNNV3",
}
# Memory for a loop to fill. With `init` it is zero at first; without, it holds what was there before.
EMPTY = "Empty"
PRINTS = {"Print", "PrintV2"}  # they print to the screen of the person who trains
_ALLOWED = _READS | _CALLS | _RANDOM | {*GENERATORS} | _WORKSPACE | PRINTS | {EMPTY}
# TensorFlow does not declare this op stateful, although it passes tensors on to other calls.
_REFUSED = {"BatchFunction"}
_PYTHON = {"EagerPyFunc", "PyFunc", "PyFuncStateless"}


class Effect(enum.Enum):
    """How an op has to be inspected."""

    NONE = "none"
    LOOK_INSIDE = "calls functions, or has arguments or attributes that matter"
    PYTHON = "calls Python code"
    WRITES = "writes, or is not known not to"


@functools.cache
def effect_of(op: str) -> Effect:
    """Returns what an op of type `op` may do besides computing its outputs."""
    if op in _PYTHON:
        return Effect.PYTHON
    definition = op_definition(op)
    if definition is None or op in _REFUSED:
        return Effect.WRITES
    references = any(argument.is_ref for argument in definition.input_arg)
    if (definition.is_stateful or references) and op not in _ALLOWED:
        return Effect.WRITES
    calls = any(attribute.type in ("func", "list(func)") for attribute in definition.attr)
    return Effect.LOOK_INSIDE if calls or op in {*GENERATORS, *PRINTS, EMPTY} else Effect.NONE


def deed(op: str) -> str:
    """Describes what a refused op does, in words that a variable's name may follow."""
    if op.startswith(("Lookup", "InitializeTable")) or "HashTable" in op:
        return "makes or changes a lookup table"
    if any(word in op for word in ("Assign", "Scatter", "Apply")):
        return "assigns to a variable"
    return "is not known to keep nothing of what it is given"
