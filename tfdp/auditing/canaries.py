"""Canaries: training examples that an audit includes or leaves out by the toss of a coin.

A *world* is one draw of the coins. It changes a model and its data for one training: an included canary
is in the data as itself, an absent one as a null record that contributes nothing. So two worlds that
differ in one coin are zero_out neighbours, and both have the same number of records.
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
    """The seed of the coins of one training, apart from what a user draws with the same seed."""
    return [int.from_bytes(purpose), seed, run]


def toss(count: int, seed, included=None) -> np.ndarray:
    """A fair coin for each canary, bool [count]; `included` are the coins themselves, if given."""
    if included is None:
        return np.random.default_rng(seed).random(count) < 0.5
    included = np.asarray(included, bool)
    if included.shape != (count,):
        raise ValueError(
            f"Expected included to hold {count} booleans. Received shape {included.shape}."
        )
    return included


class DiracCanaries:
    """Canaries whose gradient is one reserved weight: the strongest that a clip norm allows.

    The audited model gets an input more, which says of each row which canary it is, and an embedding
    with one weight for each canary. The gradient of an included canary is a multiple of the unit
    vector of its weight, clipped to the clip norm; no other example has a gradient there. The rest of
    the model trains as it would, and every mechanism treats the reserved weights as it treats all
    others. Only a loss without a gradient at the canaries' rows silences them, such as a hinge loss
    that is satisfied, or one that is saturated. Further weights stay blank: they show the noise alone.

    Args:
        count: number of canaries, at least 1. About half of them are included.
        blanks: number of weights that no example ever touches.

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
        """Draws which canaries are included: by coins of a seed, or as `included` says, bool [count].

        Anyone who knows the seed knows the coins, so it is part of no release.
        """
        return DiracWorld(toss(self.count, seed, included), self.blanks)


class DiracWorld:
    """One draw of `DiracCanaries`.

    Attributes:
        included: bool [canaries].
        callbacks: Keras callbacks that `fit` has to get for the released weights of every step to be
            observed; without them, only those of the last step are.
    """

    def __init__(self, included: np.ndarray, blanks: int):
        self.included = included
        self.callbacks = [_Transcript()]
        self._blanks = blanks

    def model(self, base: keras.Model) -> keras.Model:
        """A model with the reserved weights around `base`, to be made private, compiled and fitted.

        Args:
            base: a built Keras model.

        Raises:
            ValueError: the inputs of the model are not known, or it is private already.

        Returns:
            A functional model. Its inputs are those of `base` and, as the last one (or under the name
            "canary"), the number of the canary of each row, int32 [rows, 1].
        """
        if isinstance(base, PrivateTraining):
            raise ValueError(
                "Expected a model that is not private yet, since the canaries' weights become part of "
                "it. Received a private one. Call tfdp.make_private(world.model(model))."
            )
        try:
            given = input_structure(base)
        except (AttributeError, ValueError) as error:
            raise ValueError(
                f"Expected a functional or Sequential model with Input layers. Received {base.name!r}, "
                "whose inputs are not known. Wrap it: x = keras.Input(shape); "
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
        """(x, y) or (x, y, sample_weight) of a training with the canaries first; weights default to 1.

        Schemes that leave out the end of the data keep them there. They have features and labels of the
        first examples, which have no effect: their number, the last part of x, decides the gradient.
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
        """Examples `x` that are no canaries, as inputs of the model that `self.model` made."""
        rows = len(keras.tree.flatten(x)[0])
        return _with(x, np.full((rows, 1), len(self.included), "int32"))

    def attack(self, model, observe: str) -> Scores:
        """The scores that an attacker gives the canaries of a trained model that `self.model` made.

        `observe` is "every" release, or the "last" one; raises ValueError for another model.
        """
        if _WEIGHTS not in [layer.name for layer in model.layers]:
            raise ValueError(
                f"Expected the model that world.model made. Received {model.name!r}, which has no "
                "weights of the canaries. In train, begin with model = world.model(model)."
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
        """What `attack` sees, in words."""
        if observe == "last" or self.steps_seen < 2:
            return "the weights at the end"
        return f"{self.steps_seen:,} released weights along the training"

    def observed(self, model) -> np.ndarray:
        """The released values of canaries and blanks: float64 [releases, canaries + blanks].

        The last row holds the weights of the trained `model` as they are; the rows before, those that
        the callback saw after every step.
        """
        seen, last = [*self.callbacks[0].seen], _reserved_weights(model)
        if not seen or not np.array_equal(seen[-1], last):
            seen.append(last)
        count = len(self.included)
        return np.delete(np.asarray(seen, float), [count, count + 1], axis=1)


def _as_array(values):
    """A list of numbers, which Keras takes for one array, as an array."""
    if isinstance(values, (list, tuple)) and values and np.ndim(values[0]) == 0:
        return np.asarray(values)
    return values


def _with(inputs, last):
    """Adds an input to a structure of inputs."""
    if isinstance(inputs, dict):
        return {**inputs, "canary": last}
    return (*inputs, last) if isinstance(inputs, (list, tuple)) else (inputs, last)


def _reserved_weights(model) -> np.ndarray:
    return model.get_layer(_WEIGHTS).embeddings.numpy()[:, 0]


class _Transcript(keras.callbacks.Callback):
    """Keeps the reserved weights after every step; it reads weights and changes none."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(_reserved_weights(self.model))
