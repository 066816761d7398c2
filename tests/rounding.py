"""How far rounding may move what tests compare: one bound, from sizes.

Whatever its order, a sum of n floats with unit roundoff u differs from the exact one by at most

    gamma_n * sum |x_i|,    gamma_n = n u / (1 - n u)

(Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 4.2; a product inside of the sum
is one more rounding). Where results are the terms of further sums, as in layers, gradients and training
steps, roundings in sequence add up: (1 + gamma_m) (1 + gamma_n) <= 1 + gamma_(m + n) (Lemma 3.3). So a
test states the `terms`: the lengths of the sums in sequence between the inputs and the result, plus
`FUNCTION` for each division, root, or function such as exp. Both sides of a comparison are rounded,
which gives the factor of two in `rounding`.

The `magnitude` is sum |x_i|. Where terms have one sign (norms, squares, counts) it is each entry of the
result itself: `each=True`. Otherwise the default is the largest entry of the result: terms of random
signs add up to about sum |x_i| / sqrt(n), but so do their rounding errors (about sqrt(n) u in place of
n u; Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019, theorem 2.4), and
these two roots cancel. Sums that cancel more than that, such as differences of sums of other examples,
state the magnitude of what was summed.
"""

import math

import ml_dtypes
import numpy as np

from tfdp._compat import float32_products

# Roundings that a division, a root, or a function such as exp counts as: TensorFlow's float32 functions
# are accurate to two units in the last place, which are four unit roundoffs.
FUNCTION = 4
# Accuracies of methods, which are no rounding: of epsilons from privacy loss distributions, and of the
# distribution functions of noise, which are interpolated.
OF_EPSILON, OF_DISTRIBUTIONS = 1e-3, 2e-6
# Standard deviations of a norm's rounding: more happens once in 10^14 norms.
_DEVIATIONS = 8


def rounding(terms: int, magnitude=1.0, dtype="float32"):
    """Returns the largest difference of two computations with `terms` roundings in sequence each.

    Args:
        terms: number of terms of the sums in sequence, see the module.
        magnitude: sum of the absolute values of the terms, or the size of the result.
        dtype: the dtype with the coarsest rounding in the computation.

    Raises:
        ValueError: so many terms bound nothing; make the case smaller.
    """
    unit = float(ml_dtypes.finfo(dtype).eps) / 2
    if np.dtype(dtype) != np.float64:
        unit = max(unit, float32_products.unit())
    share = terms * unit
    if not share < 0.1:
        raise ValueError(f"{terms} roundings in {dtype} prove nothing. Make the case smaller.")
    bound = 2 * share / (1 - share) * np.asarray(magnitude, float)
    return bound if bound.ndim else float(bound)


def assert_close(
    actual, expected, terms: int, magnitude=None, *, each=False, dtype="float32", message=""
) -> None:
    """Raises AssertionError if two arrays differ by more than their rounding.

    Args:
        actual, expected: arrays or tensors of one shape; `expected` may be a scalar.
        terms, magnitude, each: see the module.
        dtype: of the computation; that of an array, if it is coarser. (References are in float64.)
        message: is shown first.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert not expected.ndim or actual.shape == expected.shape, (actual.shape, expected.shape)
    floats = [a.dtype for a in (actual, expected) if a.dtype.kind not in "biu"]
    coarsest = max([dtype, *floats], key=lambda one: float(ml_dtypes.finfo(one).eps))
    actual, expected = actual.astype(float), expected.astype(float)
    sizes = np.where(np.isfinite(expected), np.abs(expected), 0.0)
    if magnitude is None:
        magnitude = sizes if each else np.max(sizes, initial=0.0)
    bound = rounding(terms, magnitude, coarsest)
    with np.errstate(invalid="ignore"):
        difference = np.abs(actual - expected)
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    wrong = ~(same | (difference <= bound))
    if np.any(wrong):
        raise AssertionError(
            f"{message}\n{np.sum(wrong)} of {actual.size} entries differ, by up to "
            f"{np.max(difference[wrong]):.3g}; {terms} roundings in {coarsest} explain "
            f"{np.max(bound):.3g}.\nActual: {actual}\nExpected: {expected}"
        )


def close(*arrays, **options) -> bool:
    """Whether `assert_close` of the same arguments holds."""
    try:
        assert_close(*arrays, **options)
    except AssertionError:
        return False
    return True


def terms_of(model, rows: int = 1, steps: int = 1, length: int | None = None) -> int:
    """Returns the terms of all sums in sequence in training steps: forth and back, a norm, a sum.

    Each layer has a sum over its inputs, a sum over its outputs in the backward pass, a sum over the
    positions for the gradients of its weights, and a function with its derivative; those of recurrent
    layers are in sequence at every position. The sum of squares of a norm runs over all weights. Its
    rounding errors have random signs, so `_DEVIATIONS` sqrt(n) u bounds them (Higham and Mary), and the
    root halves that. Last come the sum over the examples, and the room that `tfdp.gradients.lot` leaves
    below it for rounding.

    Args:
        model: a built model.
        rows: examples whose gradients are added up in a step.
        steps: steps that follow each other.
        length: positions of an example, where the shape of the input lacks them.
    """
    shapes = [tensor.shape[1:] for tensor in getattr(model, "inputs", None) or []]
    sizes = [[length or 1 if n is None else n for n in shape] for shape in shapes]
    positions = max([*(math.prod(size[:-1] or size) for size in sizes), length or 1])
    layers = [la for la in model._flatten_layers() if not _has_layers(la)]
    through = sum(_terms_of_layer(layer, positions) for layer in layers)
    norm = math.ceil(_DEVIATIONS / 2 * math.sqrt(sum(math.prod(w.shape) for w in model.weights)))
    room = 16 + rows // 2
    return steps * (through + norm + 4 * FUNCTION + rows + room)


def _has_layers(layer):
    return any(inner is not layer for inner in layer._flatten_layers())


def _terms_of_layer(layer, positions):
    fans = 0
    for weight in layer.weights:
        size, (*_, inputs, outputs) = math.prod(weight.shape), (1, 1, *weight.shape)
        if size:
            fans += size // outputs + (size // inputs if len(weight.shape) > 1 else size)
    # The weights of a recurrent layer belong to its cell.
    return positions + (positions if hasattr(layer, "state_size") else 1) * (fans + 2 * FUNCTION)
