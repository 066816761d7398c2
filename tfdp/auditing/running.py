"""The audit: trains with canaries, guesses which were included, and tests the stated epsilons.

Formal guarantee: if a stated epsilon is true for zero_out neighbours, the bound of the audit exceeds it
with probability at most 1 - confidence, over the coin flips of the canaries and the randomness of
training. This relies only on the coins, and on no assumption about the training. So a bound that
exceeds the stated epsilon refutes it, and a bound that does not exceed it proves nothing.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping

import keras
from absl import logging

from tfdp._validate import fraction, one_of, positive, whole
from tfdp.accounting.guarantee import KINDS, Guarantee, check_delta, format_epsilon
from tfdp.auditing.bounds import LowerBound, one_run, usual_guesses
from tfdp.auditing.canaries import seed_of
from tfdp.auditing.scores import Scores


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Audit:
    """The result of `audit`: a lower bound on epsilon, and what it says about the stated epsilons.

    Print it for the verdict on each stated epsilon.

    Attributes:
        bound: The lower bound on epsilon, by `one_run`, from the guesses in all trainings.
        scores: The scores of all canaries in all trainings.
        guarantees: The stated guarantees by kind ("claimed", "proven").
        runs: Number of trainings.
        seed: Seed of the coin flips.
        observed: Description of what the attacker saw.
        records: Number of records of one training, including canaries; None if unknown.

    Example:
        >>> from tfdp.experiments import Experiment, audit_experiment
        >>> experiment = Experiment(
        ...     mechanism="dpsgd", model="linear", sampling="cyclic", batch_size=479,
        ...     steps=3, noise_multiplier=4.0)
        >>> print(audit_experiment(experiment, canaries=200, confidence=0.999).verdict("proven"))
        The proven epsilon 0.926... stands: ...A better attack might show more.
    """

    bound: LowerBound
    scores: Scores
    guarantees: dict[str, Guarantee]
    runs: int
    seed: int
    observed: str
    records: int | None = None

    def __str__(self):
        count = self.bound.counts
        runs = "one training" if self.runs == 1 else f"{self.runs} trainings"
        among = "" if self.records is None else f" of {self.records:,} records"
        about = (
            f"Audit: {count['correct']:,} of {count['guesses']:,} guesses about {count['canaries']:,} "
            f"canaries are right, in {runs}{among}, with coins of seed {self.seed}. Observed: "
            f"{self.observed}; area under the ROC {self.scores.auc:.3f}."
        )
        return "\n".join([*(self.verdict(kind) for kind in self.guarantees), about])

    @property
    def attacks(self) -> dict[str, Scores]:
        """The scores, by the name of the attack."""
        return {"attack": self.scores}

    @property
    def title(self) -> str:
        """A short verdict on a refuted guarantee, or on the last one if none is refuted."""
        refuted = [kind for kind in self.guarantees if self.refutes(kind)]
        return self.verdict((refuted or [*self.guarantees])[-1]).partition(" (")[0]

    def refutes(self, kind: str) -> bool:
        """Returns whether the bound exceeds the stated epsilon of a kind, "claimed" or "proven"."""
        return self.bound.epsilon > self.guarantees[kind].epsilon

    def verdict(self, kind: str) -> str:
        """Returns the verdict on the stated epsilon of a kind, in one or two sentences."""
        stated, bound = self.guarantees[kind].epsilon, self.bound
        start = f"The {kind} epsilon {format_epsilon(stated)}"
        least, most = rounded_down(bound.epsilon), rounded_down(bound.ceiling)
        shown = f"{least} ({100 * bound.confidence:g}% confidence, delta = {bound.delta:g})"
        if self.refutes(kind):
            return f"{start} is refuted: epsilon is at least {shown}."
        if math.isinf(stated):
            return f"{start} cannot be refuted: the attack shows at least {shown}."
        if bound.ceiling < stated:
            advice = "This audit could not have refuted it. Use more canaries, or more runs."
        else:
            advice = "A better attack might show more."
        return (
            f"{start} stands: the attack shows at least {shown}, and could not have shown more than "
            f"{most} with {bound.counts['guesses']:,} guesses. {advice}"
        )

    def to_dict(self) -> dict:
        """Returns the result as a JSON-safe dictionary."""
        return {
            "bound": dataclasses.asdict(self.bound),
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
    """Attacks your training and returns a lower bound on its epsilon, to compare with the stated one.

    Use it to test an implementation: a bound above the stated epsilon refutes it, for example because
    of a bug. A bound below it proves nothing.

    Args:
        train: A function of a world, such as a `DiracWorld`, that builds a model, extends it by
            `world.model`, trains it on `world.data(x, y)` with `world.callbacks`, and returns it.
        canaries: `DiracCanaries(200)`, the strongest; or `ExampleCanaries(x, y)`, whose attacker
            sees only the confidence of the final model.
        delta: The delta of all epsilons, in (0, 1).
        runs: Number of trainings, each with new coin flips. Their guesses are pooled.
        guesses: Number of guesses in each training. Fix it before you see scores. None takes a half
            of up to 50 canaries, a quarter of up to 200, and a tenth of more.
        confidence: Confidence of the bound, in (0, 1).
        observe: The weights that the attacker sees: "every", after each step, which proven
            guarantees cover; or "last", only the final weights.
        adjacency: Neighbouring relation of the stated guarantees. Canaries are zero_out neighbours,
            so a guarantee for replace_one is harder to refute.
        stated: Epsilons by kind, such as {"claimed": 1.0}, for models that state none; None takes
            both epsilons of the model.
        seed: Seed of the coin flips of the canaries.

    Returns:
        An `Audit`.

    Raises:
        ValueError: If an argument is out of range, or neither the model nor `stated` has an epsilon.

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
        >>> print(auditing.audit(train, auditing.DiracCanaries(100), stated={"claimed": 0.01}))
        The claimed epsilon 0.01 ...
        Audit: ...
    """
    delta, confidence = check_delta(delta), fraction("confidence", confidence)
    runs, seed = whole("runs", runs, 1), whole("seed", seed, 0)
    of_kinds = {} if stated is None else _given(stated, delta, adjacency)
    one_of("observe", observe, ("every", "last"))
    if guesses is None:
        guesses = usual_guesses(canaries.count)
    guesses = whole("guesses", guesses, 1, canaries.count)
    scores, guarantees, records = [], [], None
    for number in range(runs):
        world = canaries.world(seed=seed_of(b"coins of canaries", seed, number))
        model = trained(train, world)
        if observe == "every" and world.callbacks and not world.steps_seen:
            logging.warning(
                "No step was observed, only the final weights. Pass callbacks=world.callbacks to fit "
                "to observe every release."
            )
        scores.append(world.attack(model, observe))
        if stated:
            continue
        if not hasattr(model, "privacy"):
            raise ValueError(
                f"The {type(model).__name__} that train returned is not private, so it states no "
                "epsilon. Return the model that tfdp.make_private made, or pass, for example, "
                "stated={'claimed': 1.0}."
            )
        run = model.privacy.current_run
        records = None if run is None else run.sampling.num_examples
        guarantees.append([model.privacy.spent(delta, kind, adjacency) for kind in KINDS])
    for of_kind in zip(*guarantees, strict=True):
        # Pooled runs are only as private as the worst of them.
        loosest = max(of_kind, key=lambda guarantee: guarantee.epsilon)
        of_kinds[loosest.kind] = loosest
    return Audit(
        bound=one_run(
            sum(of_run.guesses(guesses) for of_run in scores),
            guesses * runs,
            canaries.count * runs,
            delta=delta,
            confidence=confidence,
        ),
        scores=Scores.of(scores),
        guarantees=of_kinds,
        runs=runs,
        seed=seed,
        observed=world.seen(observe),
        records=records,
    )


def trained(train: Callable, world) -> keras.Model:
    """Returns the model that a user's `train` function trained; raises ValueError if there is none."""
    model = train(world)
    if not isinstance(model, keras.Model):
        raise ValueError(
            "Expected train(world) to return the model that it trained. Received: "
            f"{type(model).__name__}. End it with `return model`."
        )
    return model


def rounded_down(epsilon: float) -> str:
    """Returns three digits, rounded down, so that a printed lower bound is never too large."""
    text = f"{epsilon:.3g}"
    return text if float(text) <= epsilon else f"{epsilon * (1 - 5e-3):.3g}"


def _given(stated, delta, adjacency) -> dict[str, Guarantee]:
    """Guarantees from a user's stated epsilons."""
    return {
        one_of("stated", kind, KINDS): Guarantee(
            epsilon=positive("stated", epsilon),
            delta=delta,
            kind=kind,
            adjacency=adjacency,
            sampling="unknown",
            released="what the user says",
            mechanism="unknown",
        )
        for kind, epsilon in stated.items()
    }
