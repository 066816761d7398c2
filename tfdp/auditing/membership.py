"""Membership inference on released models: what an attacker who sees only the last model gets.

Two attacks on examples that a coin includes or leaves out:

* the loss threshold (Yeom et al. 2018): examples with a small loss were included;
* the likelihood ratio LiRA (Carlini et al. 2022): shadow models, trained with coins drawn anew,
  show the confidence in an example where it was and where it was not included.

An audit with Dirac canaries is far stronger. This is for the person who wants to know what a realistic
attacker gets from real examples.
"""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
from scipy import special

from tfdp._validate import whole
from tfdp.accounting.guarantee import Guarantee
from tfdp.auditing.coins import seed_of, toss
from tfdp.auditing.running import trained
from tfdp.auditing.scores import Scores
from tfdp.auditing.tradeoffs import ApproximateDP, Tradeoff, of_guarantees

# The least standard deviation of confidences: with few shadow models, some would seem to have none.
_LEAST_SPREAD = 1e-3


class ExampleCanaries:
    """Examples of a user's own data, each included or left out by a coin.

    An absent example takes its place with weight zero, so worlds are zero_out neighbours.

    Args:
        x: array, or structure of arrays [examples, ...].
        y: array of integer labels [examples], or [examples, 1].
        rows: int array [examples], where these examples are in the data that `ExampleWorld.data` gets,
            which leaves them out there; None if they are not among these.

    Example:
        >>> import numpy as np
        >>> from tfdp.auditing import ExampleCanaries
        >>> canaries = ExampleCanaries(np.zeros((4, 2)), np.arange(4))
        >>> x, y, weight = canaries.world(seed=0).data(np.ones((3, 2)), np.zeros(3))
        >>> x.shape, weight[4:].tolist(), set(weight[:4].tolist()) <= {0.0, 1.0}
        ((7, 2), [1.0, 1.0, 1.0], True)
    """

    def __init__(self, x, y, rows=None):
        self.x = keras.tree.map_structure(np.asarray, x)
        self.y = np.asarray(y)
        if self.y.shape[1:] == (1,):
            self.y = self.y[:, 0]
        self.count = len(self.y)
        self.rows = np.zeros(0, int) if rows is None else np.asarray(rows, int)
        lengths = {len(leaf) for leaf in keras.tree.flatten(self.x)}
        if self.y.ndim != 1 or lengths != {self.count}:
            raise ValueError(
                "Expected examples and one integer label for each of them, an array of shape "
                f"(examples,). Received lengths {sorted(lengths)} and labels of shape {self.y.shape}. "
                "Of one-hot labels take y.argmax(axis=1)."
            )
        if rows is not None and len(set(self.rows.tolist())) != self.count:
            raise ValueError(
                f"Expected rows to hold {self.count} different numbers, one for each example. Received "
                f"{len(self.rows)}, {len(set(self.rows.tolist()))} of them different."
            )
        if np.any(self.rows < 0):
            raise ValueError(f"Expected rows of at least 0. Received {int(self.rows.min())}.")

    def world(self, seed, included=None) -> "ExampleWorld":
        """Draws which examples are included; arguments as in `DiracCanaries.world`."""
        return ExampleWorld(self, toss(self.count, seed, included))


@dataclasses.dataclass(frozen=True, eq=False)
class ExampleWorld:
    """One draw of `ExampleCanaries`.

    Attributes:
        canaries: the examples.
        included: bool [canaries].

    Example:
        >>> import numpy as np
        >>> from tfdp.auditing import ExampleCanaries
        >>> canaries = ExampleCanaries(np.zeros((3, 2)), np.arange(3))
        >>> x, y, weight = canaries.world(seed=0, included=[True, False, True]).data()
        >>> weight.tolist()
        [1.0, 0.0, 1.0]
    """

    canaries: ExampleCanaries
    included: np.ndarray

    callbacks = ()

    def model(self, base: keras.Model) -> keras.Model:
        """Returns `base`: examples need no change of the model."""
        return base

    def inputs(self, x):
        """Returns `x`: examples need no change of the inputs."""
        return x

    def attack(self, model, observe: str, confidence: float) -> tuple[Scores, None]:
        """The last model's confidence in each example as its score; see `DiracWorld.attack`."""
        del observe, confidence
        return Scores(log_odds(model, self.canaries.x, self.canaries.y), self.included), None

    def seen(self, observe: str) -> str:
        """What `attack` sees, in words."""
        del observe
        return "the confidence of the model at the end"

    def data(self, x=None, y=None):
        """Returns (x, y, sample_weight) of a training: the canaries, then other examples.

        Args:
            x, y: other examples, which are always included (but for the canaries' own `rows` of them);
                None for none.
        """
        own = self.canaries
        weight = self.included.astype("float32")
        if x is None:
            return own.x, own.y, weight
        if len(own.rows):
            self._check_rows(x)
            x = keras.tree.map_structure(lambda a: np.delete(a, own.rows, axis=0), x)
            y = np.delete(y, own.rows, axis=0)
        x = keras.tree.map_structure(lambda a, b: np.concatenate([b, np.asarray(a)]), x, own.x)
        y = np.concatenate([own.y, np.asarray(y)])
        return x, y, np.concatenate([weight, np.ones(len(y) - own.count, "float32")])

    def _check_rows(self, x):
        own = self.canaries
        given, mine = (np.asarray(keras.tree.flatten(part)[0]) for part in (x, own.x))
        if own.rows.max() >= len(given) or not np.array_equal(given[own.rows], mine):
            raise ValueError(
                f"Expected the examples themselves at their rows of the {len(given)} given ones. Found "
                "others. Pass the data that the canaries were taken from, in the same order."
            )


def log_odds(model, x, y) -> np.ndarray:
    """The model's confidence in the labels, log(p / (1 - p)): float64 [examples].

    Args:
        model: a classifier with outputs [examples, classes]: logits, or probabilities that sum to 1; or
            [examples, 1], the logit or the probability of label 1.
        x, y: examples and their integer labels.

    Raises:
        ValueError: the labels are no indices of the outputs.
    """
    outputs = np.asarray(model.predict(x, verbose=0, batch_size=500), float)
    if outputs.ndim == 2 and outputs.shape[1] == 1:
        probable = outputs.min() >= 0 and outputs.max() <= 1
        other = 1.0 - outputs if probable else np.zeros_like(outputs)
        outputs = np.concatenate([other, outputs], axis=1)
    known = np.issubdtype(np.asarray(y).dtype, np.integer)
    if outputs.ndim != 2 or not known or np.min(y) < 0 or np.max(y) >= outputs.shape[1]:
        raise ValueError(
            f"Expected integer labels that are indices of outputs [examples, classes]. Found outputs "
            f"of shape {outputs.shape} and labels such as {np.unique(y)[:5]}. For another model pass "
            "confidence=, a function of (model, x, y)."
        )
    sums = outputs.sum(axis=1)
    probabilities = outputs.min() >= 0 and np.allclose(sums, 1.0, atol=1e-3)
    logs = np.log(np.maximum(outputs, 1e-30)) if probabilities else outputs
    rows = np.arange(len(y))
    own = logs[rows, y]
    others = logs.copy()
    others[rows, y] = -np.inf
    return own - special.logsumexp(others, axis=1)


@dataclasses.dataclass(frozen=True, eq=False)
class Membership:
    """What two black-box attacks found out.

    Attributes:
        loss, lira: scores of all examples in all models.
        guarantee: the proven guarantee of each training, or None if the models state none.
        models: number of models.
        allowed: what is proven, at every delta, or None. By default that of the guarantee alone.

    Example:
        >>> import numpy as np
        >>> from tfdp.auditing import Membership, Scores
        >>> scores = Scores(np.arange(4.0), np.array([False, False, True, True]))
        >>> Membership(loss=scores, lira=scores, guarantee=None, models=1).table(rates=(0.1,))
        [(0.1, 1.0, 1.0, None)]
    """

    loss: Scores
    lira: Scores
    guarantee: Guarantee | None
    models: int
    allowed: Tradeoff | None = None

    def __post_init__(self):
        if self.guarantee is not None and self.allowed is None:
            curve = ApproximateDP(self.guarantee.epsilon, self.guarantee.delta)
            object.__setattr__(self, "allowed", curve)

    def to_dict(self) -> dict:
        """A JSON-safe dictionary."""
        return {
            "models": self.models,
            "examples": len(self.loss.values) // self.models,
            "guarantee": None if self.guarantee is None else self.guarantee.to_dict(),
            "auc": {"loss": self.loss.auc, "lira": self.lira.auc},
            "rates": [
                dict(zip(("fpr", "loss", "lira", "allowed"), row, strict=True))
                for row in self.table()
            ],
        }

    def __str__(self):
        rows = [
            f"{100 * fpr:g}% false positives: loss threshold {100 * loss:.2f}%, LiRA {100 * lira:.2f}%"
            + ("" if allowed is None else f", allowed {100 * allowed:.2f}%")
            for fpr, loss, lira, allowed in self.table()
        ]
        return "\n".join([f"Found examples in {self.models} models:", *rows])

    def table(self, rates=(0.001, 0.01, 0.1)) -> list[tuple]:
        """Rows (false positive rate, rate of the loss attack, of LiRA, largest that is allowed)."""
        rows = []
        for fpr in rates:
            allowed = None if self.allowed is None else float(self.allowed.largest_tpr(fpr))
            rows.append((fpr, self.loss.tpr_at(fpr), self.lira.tpr_at(fpr), allowed))
        return rows


def membership_inference(
    train: Callable,
    canaries: ExampleCanaries,
    *,
    models: int = 16,
    delta: float = 1e-5,
    confidence: Callable = log_odds,
    seed: int = 0,
) -> Membership:
    """Trains models, attacks each of them with all others as shadow models, and pools the scores.

    Args:
        train: a function of an `ExampleWorld` that trains on `world.data(...)` and returns the model.
        canaries: the examples, a few hundred or more.
        models: number of models, at least 4; with 16 or more LiRA is as strong as it is known to be.
        delta: the delta of the guarantee that is reported, in (0, 1).
        confidence: a function (model, x, y) -> [examples]; larger where the model knows an example.
        seed: decides the coins.

    Raises:
        ValueError: an argument is not in its range, or the trainings state different epsilons.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> from tfdp import auditing
        >>> rng = np.random.default_rng(0)
        >>> canaries = auditing.ExampleCanaries(rng.normal(size=(60, 4)), rng.integers(0, 2, 60))
        >>> def train(world):
        ...     model = tfdp.make_private(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]))
        ...     model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=4.0),
        ...                   keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        ...     x, y, weight = world.data()
        ...     model.fit(x, y, sample_weight=weight, batch_size=30, verbose=0)
        ...     return model
        >>> found = auditing.membership_inference(train, canaries, models=4)
        >>> 0.2 < found.loss.auc < 0.8
        True
    """
    models = whole("models", models, 4)
    values, coins, guarantee, allowed = [], [], None, None
    for number in range(models):
        world = canaries.world(seed=seed_of(b"coins of examples", seed, number))
        model = trained(train, world)
        values.append(np.asarray(confidence(model, canaries.x, canaries.y), float))
        coins.append(world.included)
        if hasattr(model, "privacy"):
            stated = model.privacy.spent(delta)
            if guarantee is None:
                guarantee, allowed = stated, of_guarantees(model.privacy.spent, delta)
            elif not np.isclose(stated.epsilon, guarantee.epsilon):
                raise ValueError(
                    "Expected train to make the same training in every world, since the scores of all "
                    f"models are pooled. Found proven epsilons {guarantee.epsilon:g} and "
                    f"{stated.epsilon:g}."
                )
    values, coins = np.stack(values), np.stack(coins)
    loss = Scores.of(Scores(v, c) for v, c in zip(values, coins, strict=True))
    lira = Scores.of(
        Scores(_likelihood_ratio(values, coins, number), coins[number]) for number in range(models)
    )
    return Membership(loss=loss, lira=lira, guarantee=guarantee, models=models, allowed=allowed)


def _likelihood_ratio(values, coins, target):
    """Log of the likelihood ratio of the target's confidences, by the other models' (LiRA, online).

    One variance for all examples of a world, which few models estimate better than one for each.
    """
    others = np.arange(len(values)) != target
    shadow, inside = values[others], coins[others]
    means, spreads = [], []
    for world in (inside, ~inside):
        count = world.sum(axis=0)
        mean = np.sum(np.where(world, shadow, 0.0), axis=0) / np.maximum(1, count)
        # An example that no shadow model had in this world has the mean of all models.
        mean = np.where(count > 0, mean, shadow.mean(axis=0))
        rest = np.where(world, shadow - mean, 0.0)
        freedom = max(1, int(count.sum() - np.sum(count > 0)))
        means.append(mean)
        spreads.append(max(_LEAST_SPREAD, float(np.sqrt(np.sum(rest**2) / freedom))))
    densities = [
        -0.5 * ((values[target] - mean) / spread) ** 2 - np.log(spread)
        for mean, spread in zip(means, spreads, strict=True)
    ]
    return densities[0] - densities[1]
