"""The audit: trains with canaries, guesses which were included, and compares with what is stated.

Formal guarantee: if a stated epsilon is true for zero_out neighbours, then the bound of the audit
exceeds it with a probability of at most 1 - confidence, over the coins of the canaries and the
randomness of the trainings. It rests on the coins alone: nothing is assumed about the training, which
is why a bound that exceeds the stated epsilon refutes the statement. A bound that does not exceed it
proves nothing.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import keras
import numpy as np
from absl import logging
from scipy import special

from tfdp._validate import fraction, one_of, positive, whole
from tfdp.accounting.composition import guarantee_of_all
from tfdp.accounting.guarantee import KINDS, Guarantee, check_delta
from tfdp.auditing.bounds import LowerBound, clopper_pearson, many_runs, one_run, usual_guesses
from tfdp.auditing.coins import seed_of
from tfdp.auditing.effects import Effect
from tfdp.auditing.scores import Scores
from tfdp.auditing.tradeoffs import ApproximateDP, Tradeoff, of_guarantees
from tfdp.auditing.wording import verdict

OBSERVED = ("every", "last")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Audit:
    """What an audit saw.

    Attributes:
        bound: the lower bound on epsilon that decides; `bounds.one_run` of all runs.
        others: lower bounds that rest on more conditions, or on another hypothesis, by method.
        effect: effect over noise in the first run, as an estimate of mu; None if there is too little
            to estimate it from.
        scores: of all canaries in all runs.
        guarantees: what is stated, by kind ("claimed", "proven").
        runs, seed: as in `audit`.
        observed: what the attacker saw, in words.
        records: number of records of the audited training, canaries among them; None if unknown.
        stated_at: by kind a function of delta that returns what is stated there, where that is known.

    Example:
        >>> from tfdp.experiments import Experiment, audit_experiment
        >>> experiment = Experiment(
        ...     mechanism="dpsgd", model="linear", sampling="cyclic", batch_size=479,
        ...     steps=3, noise_multiplier=4.0)
        >>> found = audit_experiment(experiment, canaries=40, confidence=0.999)
        >>> found.bound.method, found.runs, found.refutes("proven")
        ('one_run', 1, False)
        >>> sorted(found.to_dict())[:4]
        ['auc', 'bound', 'effect', 'observed']
    """

    bound: LowerBound
    others: dict[str, LowerBound]
    effect: Effect | None
    scores: Scores
    guarantees: dict[str, Guarantee | float]
    runs: int
    seed: int
    observed: str
    records: int | None = None
    stated_at: Mapping[str, Callable[[float], Guarantee]] = dataclasses.field(default_factory=dict)

    def __str__(self):
        return "\n".join(verdict(self, kind) for kind in self.guarantees)

    def stated(self, kind: str) -> Guarantee:
        """The guarantee of a kind.

        Args:
            kind: "claimed" or "proven".

        Raises:
            ValueError: no guarantee of this kind was stated.
        """
        if kind not in self.guarantees:
            raise ValueError(
                f"Expected kind to be one of {sorted(self.guarantees)}, which were stated. Received "
                f"{kind!r}."
            )
        return self.guarantees[kind]

    def allowed(self, kind: str) -> Tradeoff:
        """The trade-off curve that a stated guarantee allows, at all deltas where that is known."""
        stated = self.stated(kind)
        if kind not in self.stated_at:
            return ApproximateDP(stated.epsilon, stated.delta)
        return of_guarantees(self.stated_at[kind], stated.delta)

    def refutes(self, kind: str) -> bool:
        """Whether the lower bound exceeds the stated epsilon of a kind."""
        return self.bound.epsilon > self.stated(kind).epsilon

    def to_dict(self) -> dict:
        """A JSON-safe dictionary."""
        return {
            "bound": self.bound.to_dict(),
            "others": {name: bound.to_dict() for name, bound in self.others.items()},
            "effect": None if self.effect is None else dataclasses.asdict(self.effect),
            "stated": {kind: stated.to_dict() for kind, stated in self.guarantees.items()},
            "refuted": {kind: self.refutes(kind) for kind in self.guarantees},
            "runs": self.runs,
            "seed": self.seed,
            "observed": self.observed,
            "records": self.records,
            "auc": self.scores.auc,
        }


def audit(
    train: Callable,
    canaries,
    *,
    delta: float = 1e-5,
    runs: int = 1,
    guesses: int | None = None,
    confidence: float = 0.95,
    observe: str = "every",
    adjacency: str = "zero_out",
    stated: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Audit:
    """Trains with canaries and returns a lower bound on epsilon beside what is stated.

    Args:
        train: a function of a world, such as a `DiracWorld`. It builds a model, changes it with
            `world.model`, trains it on `world.data(x, y)` with `world.callbacks`, and returns it.
        canaries: `DiracCanaries(200)`, the strongest; or `ExampleCanaries(x, y)`, whose attacker sees
            the confidence of the last model only.
        delta: the delta of every epsilon, in (0, 1).
        runs: number of trainings, each with coins of its own; their guesses count together.
        guesses: number of guesses in each run; None takes `usual_guesses`. It is fixed before the first
            run, since choosing it by the scores would make the bound wrong.
        confidence: of the bounds, in (0, 1).
        observe: "every", the weights after every step, which is what proven guarantees are about; or
            "last", the weights at the end only.
        adjacency: neighbouring relation of the stated guarantees. Canaries are zero_out neighbours,
            so a guarantee for replace_one, which is weaker for these, is compared with less.
        stated: epsilons by kind, for models that do not state theirs; None takes them from the
            model's ledger.
        seed: decides the coins of the canaries.

    Raises:
        ValueError: an argument is not in its range, or the model states nothing.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> from tfdp import auditing
        >>> x = np.zeros((50, 3), "float32")
        >>> def train(world):
        ...     model = world.model(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
        ...     model = tfdp.make_private(model)
        ...     model.compile(
        ...         tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=0.5), "mse")
        ...     x_all, y_all = world.data(x, x[:, :1])
        ...     model.fit(x_all, y_all, batch_size=75, verbose=0, callbacks=world.callbacks)
        ...     return model
        >>> found = auditing.audit(train, auditing.DiracCanaries(100), stated={"claimed": 0.01})
        >>> print(auditing.verdict(found, "claimed"))
        The claimed epsilon 0.01 ...
    """
    delta, confidence = check_delta(delta), fraction("confidence", confidence)
    runs, seed = whole("runs", runs, 1), whole("seed", seed, 0)
    if not hasattr(canaries, "world"):
        raise ValueError(f"Expected canaries such as DiracCanaries(200). Received: {canaries!r}")
    if stated is not None:
        stated = _given(stated, delta, adjacency)
    one_of("observe", observe, OBSERVED)
    guesses = usual_guesses(canaries.count) if guesses is None else whole("guesses", guesses, 1)
    if guesses > canaries.count:
        raise ValueError(
            f"Expected guesses to be at most the number of canaries, {canaries.count}. Received "
            f"{guesses}. Use more canaries."
        )
    scores, effect, found, correct = [], None, None, 0
    for number in range(runs):
        world = canaries.world(seed=seed_of(b"coins of canaries", seed, number))
        model = trained(train, world)
        if observe == "every" and world.callbacks and not world.steps_seen:
            logging.warning(
                "No step was observed, only the weights at the end: give fit callbacks=world.callbacks "
                "to observe every release."
            )
        seen, of_run = world.attack(model, observe, confidence)
        scores.append(seen)
        correct += seen.guesses(guesses)
        effect = of_run if number == 0 else effect
        privacy = None if stated is not None else _privacy(model)
        of_this = stated or {kind: privacy.spent(delta, kind, adjacency) for kind in KINDS}
        found = _loosest(found, of_this)
    pooled = Scores.of(scores)
    count = {"correct": correct, "guesses": guesses * runs, "canaries": canaries.count * runs}
    limits = {"delta": delta, "confidence": confidence}
    others = {"one_run_gaussian": one_run(**count, **limits, hypothesis="gaussian")}
    for hypothesis in ("approximate", "gaussian"):
        bound = _by_threshold(pooled, limits, hypothesis)
        if bound is not None:
            others[bound.method] = bound
    return Audit(
        bound=one_run(**count, **limits),
        others=others,
        effect=effect,
        scores=pooled,
        guarantees=found,
        runs=runs,
        seed=seed,
        observed=world.seen(observe),
        records=None if privacy is None else _records(privacy),
        stated_at=_at_all_deltas(privacy, adjacency),
    )


def trained(train: Callable, world) -> keras.Model:
    """The model that a user's function has trained in a world; ValueError if it returns none."""
    model = train(world)
    if not isinstance(model, keras.Model):
        raise ValueError(
            "Expected train(world) to return the model that it trained. Received: "
            f"{type(model).__name__}. End it with `return model`."
        )
    return model


def _records(privacy) -> int | None:
    run = privacy.current_run
    return None if run is None else run.num_examples


def _at_all_deltas(privacy, adjacency):
    if privacy is None:
        return {}
    runs = tuple(privacy.ledger.runs)  # of the last run, and not the model with its data

    def at(kind, delta):
        return guarantee_of_all(kind, runs, delta, adjacency)

    return {kind: functools.partial(at, kind) for kind in KINDS}


def _by_threshold(scores: Scores, limits: dict, hypothesis: str) -> LowerBound | None:
    """A bound that takes canaries for independent runs, at a threshold that other canaries chose."""
    halves = [Scores(scores.values[i::2], scores.included[i::2]) for i in (0, 1)]
    if any(len(set(half.included)) < 2 for half in halves):
        return None
    candidates = np.quantile(halves[0].values, np.linspace(0.02, 0.98, 25))
    best = max(candidates, key=lambda threshold: _promise(halves[0].counts(threshold)))
    return many_runs(*halves[1].counts(best), **limits, hypothesis=hypothesis)


def _promise(counts):
    """How far apart two rates surely are, in standard deviations of a Gaussian: a quick comparison."""
    tp, included, fp, absent = counts
    least, most = clopper_pearson(tp, included)[0], clopper_pearson(fp, absent)[1]
    if least <= 0 or most >= 1:
        return -np.inf
    return float(special.ndtri(least) - special.ndtri(most))


def _given(stated, delta, adjacency) -> dict[str, Guarantee]:
    """Guarantees from epsilons that a user states."""
    if not isinstance(stated, Mapping) or not stated:
        raise ValueError(
            "Expected stated to hold epsilons by kind, such as {'claimed': 1.0}. Received: "
            f"{stated!r}"
        )
    return {
        one_of("stated", kind, KINDS): Guarantee(
            epsilon=positive("stated", epsilon),
            delta=delta,
            kind=kind,
            adjacency=adjacency,
            sampling="unknown",
            released="what the user says",
            mechanism="unknown",
            assumptions=(),
        )
        for kind, epsilon in stated.items()
    }


def _privacy(model):
    privacy = getattr(model, "privacy", None)
    if privacy is None:
        raise ValueError(
            f"Expected train to return a private model, or stated epsilons. Received a "
            f"{type(model).__name__} that states none. Return the model that tfdp.make_private made, "
            "or pass stated={'claimed': 1.0}."
        )
    return privacy


def _loosest(known, new):
    """The largest epsilon of several runs: together they are no better than the worst of them."""
    if known is None:
        return new
    return {
        kind: max(known[kind], new[kind], key=lambda guarantee: guarantee.epsilon) for kind in known
    }
