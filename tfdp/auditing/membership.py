"""Membership inference on released models, by an attacker who sees only the last model.

A coin flip includes each example in the training data or leaves it out. Two attacks guess which:

* the loss threshold (Yeom et al. 2018): examples with a small loss were included;
* the likelihood ratio LiRA (Carlini et al. 2022): shadow models, trained with new coin flips, show
  how confident a model is about an example with it and without it in the training data.

An audit with Dirac canaries is far stronger. Use these attacks to learn what a realistic attacker can
infer about real examples.
"""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
from scipy import special

from tfdp._validate import whole
from tfdp.accounting.guarantee import Guarantee, format_epsilon
from tfdp.auditing.canaries import seed_of, toss
from tfdp.auditing.running import trained
from tfdp.auditing.scores import Scores

# The least standard deviation of confidences, which may seem to be constant in few shadow models.
_LEAST_SPREAD = 1e-3
# False positive rates of the report.
_RATES = (0.001, 0.01, 0.1)


class ExampleCanaries:
    """Your own examples as canaries for `audit` and `membership_inference`.

    A coin flip includes each example in a training or leaves it out. An absent example keeps its place
    with sample weight 0, so two draws of the coins are zero_out neighbours. `DiracCanaries` are
    stronger, but artificial.

    Args:
        x: Features of the examples: an array, or a structure of arrays [examples, ...].
        y: Integer labels, an array [examples] or [examples, 1].
        rows: Int array [examples]: the indices of these examples in the data that is passed to
            `ExampleWorld.data`, which removes them there. None if that data does not contain them.

    Raises:
        ValueError: If the lengths differ, or two examples have the same row.

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
        lengths = {len(leaf) for leaf in keras.tree.flatten(self.x)}
        if self.y.ndim != 1 or lengths != {self.count}:
            raise ValueError(
                "Expected examples and one integer label for each of them, an array of shape "
                f"(examples,). Received lengths {sorted(lengths)} and labels of shape {self.y.shape}. "
                "Convert one-hot labels by y.argmax(axis=1)."
            )
        self.rows = np.zeros(0, int) if rows is None else np.asarray(rows, int)
        if rows is not None and len({row for row in self.rows.tolist() if row >= 0}) != self.count:
            raise ValueError(
                f"Expected {self.count} different rows of at least 0, one for each example. Received "
                f"{self.rows[:5].tolist()} and so on."
            )

    def world(self, seed, included=None) -> "ExampleWorld":
        """Flips the coins of one training; the arguments are those of `DiracCanaries.world`."""
        return ExampleWorld(self, toss(self.count, seed, included))


@dataclasses.dataclass(frozen=True, eq=False)
class ExampleWorld:
    """The canaries of one training, after the coins of `ExampleCanaries` were flipped.

    Attributes:
        canaries: The examples.
        included: Bool [canaries].
    """

    canaries: ExampleCanaries
    included: np.ndarray

    callbacks = ()

    def model(self, base: keras.Model) -> keras.Model:
        """Returns `base` unchanged."""
        return base

    def inputs(self, x):
        """Returns `x` unchanged."""
        return x

    def attack(self, model, observe: str) -> Scores:
        """Returns the final model's confidence in each example; see `DiracWorld.attack`."""
        return Scores(log_odds(model, self.canaries.x, self.canaries.y), self.included)

    def seen(self, observe: str) -> str:
        """Returns a description of what `attack` sees."""
        return "the confidence of the model at the end"

    def data(self, x=None, y=None):
        """Returns (x, y, sample_weight) of the training: the canaries, then other examples.

        Args:
            x: Features of other examples, which are always included; None for none. Those at the
                canaries' own `rows` are removed.
            y: Their labels.

        Raises:
            ValueError: If the canaries are not at their `rows` of `x`.
        """
        own, weight = self.canaries, self.included.astype("float32")
        if x is None:
            return own.x, own.y, weight
        first, mine = (np.asarray(keras.tree.flatten(part)[0]) for part in (x, own.x))
        there = first[own.rows[own.rows < len(first)]]
        if len(own.rows) and not np.array_equal(there, mine):
            raise ValueError(
                f"Expected the examples at their rows of the {len(first)} given ones. Found "
                "others. Pass the data that the canaries were taken from, in the same order."
            )

        def joined(others, canaries):
            return np.concatenate([canaries, np.delete(others, own.rows, axis=0)])

        x, y = keras.tree.map_structure(joined, x, own.x), joined(y, own.y)
        return x, y, np.concatenate([weight, np.ones(len(y) - own.count, "float32")])


def log_odds(model, x, y) -> np.ndarray:
    """Returns a classifier's confidence in integer labels, log(p / (1 - p)): float64 [examples].

    Args:
        model: A model with outputs [examples, classes], logits or probabilities that sum to 1; or
            [examples, 1], the logit or the probability of label 1.
        x: Features of the examples.
        y: Integer labels [examples].

    Raises:
        ValueError: If the outputs or the labels have another form.
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
    probabilities = outputs.min() >= 0 and np.allclose(outputs.sum(axis=1), 1.0, atol=1e-3)
    logs = np.log(np.maximum(outputs, 1e-30)) if probabilities else outputs
    own = np.arange(outputs.shape[1]) == np.asarray(y)[:, None]
    return logs[own] - special.logsumexp(np.where(own, -np.inf, logs), axis=1)


@dataclasses.dataclass(frozen=True, eq=False)
class Membership:
    """The result of `membership_inference`: how well attacks on released models recognize examples.

    Print it for a table of true positive rates, beside the rates that the proven guarantee allows.

    Attributes:
        attacks: Scores of all examples in all models, by the name of the attack: "loss" and "lira".
        guarantee: The proven guarantee of each training; None if the models are not private.
        models: Number of attacked models.

    Example:
        >>> import numpy as np
        >>> from tfdp.auditing import Membership, Scores
        >>> scores = Scores(np.arange(4.0), np.array([False, False, True, True]))
        >>> print(Membership(attacks={"lira": scores}, guarantee=None, models=1))
        Membership of 4 examples in 1 model; nothing is proven. True positive rates:
        false positives       lira
                   0.1%    100.00%
        ...
    """

    attacks: dict[str, Scores]
    guarantee: Guarantee | None
    models: int

    @property
    def guarantees(self) -> dict[str, Guarantee]:
        """The guarantee by its kind; empty if there is none."""
        return {} if self.guarantee is None else {"proven": self.guarantee}

    @property
    def examples(self) -> int:
        """Number of examples that coin flips included or left out."""
        return len(next(iter(self.attacks.values())).values) // self.models

    @property
    def title(self) -> str:
        """Description of what was attacked."""
        models = "1 model" if self.models == 1 else f"{self.models} models"
        return f"Membership of {self.examples:,} examples in {models}"

    @property
    def rates(self) -> dict[float, dict[str, float]]:
        """True positive rates of the attacks, and the "allowed" rate, by false positive rate."""
        found = {}
        for fpr in _RATES:
            found[fpr] = {name: scores.tpr_at(fpr) for name, scores in self.attacks.items()}
            if self.guarantee is not None:
                found[fpr]["allowed"] = self.guarantee.tpr(fpr)
        return found

    def __str__(self):
        proven = "nothing is proven"
        if self.guarantee is not None:
            epsilon = format_epsilon(self.guarantee.epsilon)
            proven = f"proven epsilon {epsilon} at delta = {self.guarantee.delta:g}"
        names = [*self.attacks, *(["allowed"] if self.guarantees else [])]
        lines = [f"{self.title}; {proven}. True positive rates:"]
        lines.append(f"{'false positives':>15} {''.join(f'{name:>10}' for name in names)}")
        for fpr, rates in self.rates.items():
            cells = "".join(f"{f'{100 * rates[name]:.2f}%':>10}" for name in names)
            lines.append(f"{f'{100 * fpr:g}%':>15} {cells}")
        areas = ", ".join(f"{name} {scores.auc:.3f}" for name, scores in self.attacks.items())
        return "\n".join([*lines, f"Area under the ROC: {areas}. Weak attacks prove nothing."])

    def to_dict(self) -> dict:
        """Returns the result as a JSON-safe dictionary."""
        return {
            "models": self.models,
            "examples": self.examples,
            "guarantee": None if self.guarantee is None else self.guarantee.to_dict(),
            "auc": {name: scores.auc for name, scores in self.attacks.items()},
            "rates": [{"fpr": fpr} | rates for fpr, rates in self.rates.items()],
        }


def membership_inference(
    train: Callable,
    canaries: ExampleCanaries,
    *,
    models: int = 16,
    delta: float = 1e-5,
    confidence: Callable = log_odds,
    seed: int = 0,
) -> Membership:
    """Attacks your training as a realistic attacker would, who sees only the final model.

    It trains several models, each with new coin flips, and attacks each of them with the others as
    shadow models. Weak results prove nothing: `audit` with `DiracCanaries` is far stronger.

    Args:
        train: A function of an `ExampleWorld` that trains a new model on `world.data(...)` and
            returns it.
        canaries: The examples, a few hundred or more.
        models: Number of models, at least 4; LiRA reaches its full strength with 16 or more.
        delta: The delta of the reported guarantee, in (0, 1).
        confidence: A function (model, x, y) that returns a number for each example, larger if the
            model is surer of its label. The default is for classifiers with integer labels.
        seed: Seed of the coin flips.

    Returns:
        A `Membership`.

    Raises:
        ValueError: If an argument is out of range, or the trainings state different epsilons.

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
        >>> 0.2 < found.attacks["loss"].auc < 0.8
        True
    """
    models = whole("models", models, 4)
    values, coins, guarantee = [], [], None
    for number in range(models):
        world = canaries.world(seed=seed_of(b"coins of examples", seed, number))
        model = trained(train, world)
        values.append(np.asarray(confidence(model, canaries.x, canaries.y), float))
        coins.append(world.included)
        if hasattr(model, "privacy"):
            stated = model.privacy.spent(delta)
            guarantee = guarantee or stated
            if not np.isclose(stated.epsilon, guarantee.epsilon):
                raise ValueError(
                    f"The trainings differ: their proven epsilons are {guarantee.epsilon:g} and "
                    f"{stated.epsilon:g}. Let train perform the same training in every world, because "
                    "the scores of all models are pooled."
                )
    known, included = np.stack(values), np.stack(coins)
    ratios = [_likelihood_ratio(known, included, number) for number in range(models)]
    return Membership(
        attacks={
            "lira": Scores(np.ravel(ratios), included.ravel()),
            "loss": Scores(known.ravel(), included.ravel()),
        },
        guarantee=guarantee,
        models=models,
    )


def _likelihood_ratio(values, coins, target):
    """Log likelihood ratio of the target's confidences, given the other models' (LiRA, online).

    All examples of a world share one variance, which few models estimate better than separate ones.
    """
    others = np.arange(len(values)) != target
    shadow, inside = values[others], coins[others]
    densities = []
    for world in (inside, ~inside):
        count = world.sum(axis=0)
        mean = np.sum(np.where(world, shadow, 0.0), axis=0) / np.maximum(1, count)
        # An example without a shadow model in this world gets the mean of all models.
        mean = np.where(count > 0, mean, shadow.mean(axis=0))
        rest = np.where(world, shadow - mean, 0.0)
        freedom = max(1, int(count.sum() - np.sum(count > 0)))
        spread = max(_LEAST_SPREAD, float(np.sqrt(np.sum(rest**2) / freedom)))
        densities.append(-0.5 * ((values[target] - mean) / spread) ** 2 - np.log(spread))
    return densities[0] - densities[1]
