"""Canaries: training examples that an audit includes or leaves out by coin flips.

A *world* is one outcome of the flips. It changes a model and its data for one training: an included
canary is in the data, and an absent one is replaced by a null record that contributes nothing. So two
worlds that differ in one coin are zero_out neighbours, and both have the same number of records.
"""

import keras
import numpy as np

from tfdp._compat.keras import input_structure
from tfdp._validate import whole
from tfdp.auditing.scores import Scores, matched_filter
from tfdp.layers.gate import CanaryGate
from tfdp.training.dp_model import PrivateTraining

_WEIGHTS = "canary_weights"


def seed_of(purpose: bytes, seed: int, run: int) -> list[int]:
    """Returns the seed of one training's coins, independent of other draws from the same user seed."""
    return [int.from_bytes(purpose), seed, run]


def toss(count: int, seed, included=None) -> np.ndarray:
    """Returns fair coin flips, bool [count]; or `included`, if the outcomes are given."""
    if included is None:
        return np.random.default_rng(seed).random(count) < 0.5
    included = np.asarray(included, bool)
    if included.shape != (count,):
        raise ValueError(
            f"Expected included to have {count} booleans. Received shape {included.shape}."
        )
    return included


class DiracCanaries:
    """Artificial canaries for `audit`, each with its own weight: the strongest that clipping allows.

    Canaries are examples that an audit includes or leaves out by coin flips; `ExampleCanaries` are real
    examples. These need another input of the audited model, the number of the canary in each row, and
    an embedding with one reserved weight for each canary. The gradient of an included canary points
    along its own weight, with the clip norm as its length. No other example has a gradient there.

    The rest of the model trains as usual, and every mechanism treats the reserved weights like all
    others. A canary has no effect where the loss has no gradient at its row, such as a satisfied hinge
    loss or a saturated loss. Further reserved weights, the blanks, belong to no canary and show only
    the noise.

    Args:
        count: Number of canaries, at least 1. About half of them are included.
        blanks: Number of blank weights, which no example ever changes; at least 0.

    Example:
        >>> import numpy as np
        >>> from tfdp.auditing import DiracCanaries
        >>> world = DiracCanaries(3).world(seed=0, included=[True, False, True])
        >>> (x, numbers), y = world.data(np.zeros((2, 5)), np.zeros(2))
        >>> x.shape, numbers[:, 0]  # a canary, a null record, a canary, two ordinary rows
        ((5, 5), array([0, 4, 2, 3, 3], dtype=int32))
    """

    def __init__(self, count: int, blanks: int = 2000):
        self.count = whole("count", count, 1)
        self.blanks = whole("blanks", blanks, 0)

    def world(self, seed: int, included=None) -> "DiracWorld":
        """Flips the coins of one training.

        Args:
            seed: Seed of the coin flips. Anyone who knows it knows the coins, so do not release it.
            included: Bool [count], the outcomes; None draws them from the seed.
        """
        return DiracWorld(toss(self.count, seed, included), self.blanks)


class DiracWorld:
    """The canaries of one training, after the coins of `DiracCanaries` were flipped.

    Attributes:
        included: Bool [canaries].
        callbacks: Keras callbacks to pass to `fit`, so that the attacker sees the weights after every
            step. Without them, the attacker sees only the final weights.
    """

    def __init__(self, included: np.ndarray, blanks: int):
        self.included = included
        self.callbacks = [_Transcript()]
        self._blanks = blanks

    def model(self, base: keras.Model) -> keras.Model:
        """Adds the reserved weights to `base`; make the result private, compile and fit it.

        Args:
            base: A built Keras model.

        Returns:
            A functional model with one more input than `base`: the number of the canary in each row,
            int32 [rows, 1]. It is the last input, or "canary" if inputs have names.

        Raises:
            ValueError: If the inputs of the model are unknown, or it is already private.
        """
        if isinstance(base, PrivateTraining):
            raise ValueError(
                "Expected a model that is not private yet, because the reserved weights become part "
                "of it. Received a private one. Call tfdp.make_private(world.model(model))."
            )
        try:
            given = input_structure(base)
        except (AttributeError, ValueError) as error:
            raise ValueError(
                f"Expected a functional or Sequential model with Input layers. Received {base.name!r}, "
                "whose inputs are unknown. Wrap it: x = keras.Input(shape); "
                "keras.Model(x, model(x)); or audit with ExampleCanaries, which change no model."
            ) from error
        if isinstance(given, (list, tuple)) and len(given) == 1:
            (given,) = given
        inputs = keras.tree.map_structure(
            lambda t: keras.Input(batch_shape=t.shape, dtype=t.dtype, name=t.name), given
        )
        number = keras.Input((1,), dtype="int32", name="canary")
        count = len(self.included)
        weights = keras.layers.Embedding(
            count + 2 + self._blanks,
            1,
            embeddings_initializer="zeros",
            dtype="float32",
            name=_WEIGHTS,
        )
        value = weights(number)
        outputs = keras.tree.map_structure(
            lambda output: CanaryGate(count, dtype=output.dtype)(output, value, number),
            base(inputs),
        )
        return keras.Model(_with(inputs, number), outputs, name=f"{base.name}_with_canaries")

    def data(self, x, y, sample_weight=None):
        """Returns the data of the training, (x, y) or (x, y, sample_weight), with the canaries first.

        They come first because some sampling schemes drop the end of the data. Their features and
        labels are copies of the first examples, without effect: the number of the canary, the last
        part of x, determines the gradient.

        Args:
            x: Features of the ordinary examples: an array, or a structure of arrays [examples, ...].
            y: Their labels.
            sample_weight: Their sample weights, or None. The canaries get weight 1.
        """
        x, y = _as_array(x), _as_array(y)
        count = len(self.included)
        rows = len(keras.tree.flatten(x)[0])
        copied = np.arange(count) % rows

        def extended(values):
            return np.concatenate([np.asarray(values)[copied], values])

        def weighted(values):
            return np.concatenate([np.ones_like(np.asarray(values)[copied]), values])

        # As `CanaryGate` reads them: `count` is an ordinary row, and `count + 1` a null record.
        own = np.where(self.included, np.arange(count), count + 1)
        numbers = np.concatenate([own, np.full(rows, count)]).astype("int32")[:, None]
        x, y = (keras.tree.map_structure(extended, part) for part in (x, y))
        if sample_weight is None:
            return _with(x, numbers), y
        return _with(x, numbers), y, keras.tree.map_structure(weighted, sample_weight)

    def inputs(self, x):
        """Returns ordinary examples `x` as inputs of the model from `self.model`."""
        rows = len(keras.tree.flatten(x)[0])
        return _with(x, np.full((rows, 1), len(self.included), "int32"))

    def attack(self, model, observe: str) -> Scores:
        """Returns the attacker's scores of the canaries.

        Args:
            model: The trained model, from `self.model`.
            observe: The weights that the attacker sees: "every", after each step, or "last", at the
                end.

        Raises:
            ValueError: If the model has no reserved weights.
        """
        if _WEIGHTS not in [layer.name for layer in model.layers]:
            raise ValueError(
                f"Expected the model from world.model. Received {model.name!r}, which has no "
                "reserved weights. In train, begin with model = world.model(model)."
            )
        count, seen = len(self.included), self.observed(model)
        canaries, blanks = seen[:, :count], seen[:, count:]
        if observe == "last":
            canaries, blanks = canaries[-1:], blanks[-1:]
        return Scores(matched_filter(canaries, blanks), self.included)

    @property
    def steps_seen(self) -> int:
        """Number of steps after which the callback saw the weights."""
        return len(self.callbacks[0].seen)

    def seen(self, observe: str) -> str:
        """Returns a description of what `attack` sees."""
        if observe == "last" or self.steps_seen < 2:
            return "the weights at the end"
        return f"{self.steps_seen:,} released weights along the training"

    def observed(self, model) -> np.ndarray:
        """Returns the released values of canaries and blanks: float64 [releases, canaries + blanks].

        The last row is the current weights of the trained `model`. The rows before are the weights
        that the callback saw after each step.
        """
        seen, last = [*self.callbacks[0].seen], _reserved_weights(model)
        if not seen or not np.array_equal(seen[-1], last):
            seen.append(last)
        count = len(self.included)
        return np.delete(np.asarray(seen, float), [count, count + 1], axis=1)


def _as_array(values):
    """Converts a list of numbers, which Keras treats as one array, to an array."""
    if isinstance(values, (list, tuple)) and values and np.ndim(values[0]) == 0:
        return np.asarray(values)
    return values


def _with(inputs, last):
    """Returns a structure of inputs with one more input."""
    if isinstance(inputs, dict):
        return {**inputs, "canary": last}
    return (*inputs, last) if isinstance(inputs, (list, tuple)) else (inputs, last)


def _reserved_weights(model) -> np.ndarray:
    return model.get_layer(_WEIGHTS).embeddings.numpy()[:, 0]


class _Transcript(keras.callbacks.Callback):
    """Records the reserved weights after every step, without changing any weights."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(_reserved_weights(self.model))
