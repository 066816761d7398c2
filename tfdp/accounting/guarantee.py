"""Privacy guarantees: epsilon and delta, claimed or proven, with the assumptions behind them."""

import dataclasses
import decimal
import math
from typing import Any

import numpy as np

from tfdp._validate import fraction, one_of, positive, refuse, whole
from tfdp.accounting.numerics import attacks
from tfdp.accounting.records import html_table

ADJACENCIES = ("zero_out", "replace_one", "add_or_remove_one")
KINDS = ("claimed", "proven")
# Above this epsilon, the factor exp(epsilon) no longer bounds anything in practice.
VACUOUS_ABOVE = 50.0


def check_adjacency(adjacency: str) -> str:
    """Returns `adjacency`; raises ValueError if it is unknown."""
    return one_of("adjacency", adjacency, ADJACENCIES)


def check_kind(kind: str, name: str = "kind") -> str:
    """Returns `kind`, the value of argument `name`; raises ValueError if it is unknown."""
    return one_of(name, kind, KINDS)


def check_delta(delta: float) -> float:
    """Returns `delta` as a float; raises ValueError unless it lies strictly between 0 and 1."""
    remedy = "Use a value well below 1/num_examples, for example 1e-5."
    return fraction("delta", delta, remedy=remedy)


def delta_warning(delta: float, num_examples: int) -> str | None:
    """Returns a warning if delta is too large for the number of examples, and otherwise None.

    It is too large from 1/N on, because publishing one record chosen at random, without any noise, has
    delta = 1/N and epsilon 0.

    Args:
        delta: Probability in (0, 1).
        num_examples: Number N of examples.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> from tfdp.accounting import delta_warning
        >>> delta_warning(1e-5, num_examples=60000) is None
        True
        >>> delta_warning(1e-3, num_examples=1000)
        'delta = 0.001 is not below 1/N = 0.001: publishing one random record in full would...'
    """
    num_examples = whole("num_examples", num_examples, 1)
    if check_delta(delta) < 1.0 / num_examples:
        return None
    return (
        f"delta = {delta:g} is not below 1/N = {1.0 / num_examples:.3g}: publishing one random record "
        "in full would still satisfy it. Use a delta well below 1/N."
    )


def check_epsilon(epsilon: float) -> float:
    """Returns `epsilon` as a float; raises ValueError unless it is above 0 and finite."""
    return positive("epsilon", epsilon, remedy="Use, for example, 2.0.")


def format_epsilon(epsilon: float) -> str:
    """Formats epsilon, rounded up to four digits, as in "1.234" or "vacuous (epsilon = 7670)"."""
    if math.isinf(epsilon):
        return "infinite"
    words = f"{float(rounded_up(epsilon, 4)):.4g}"
    if epsilon > VACUOUS_ABOVE:
        return f"vacuous (epsilon = {words if epsilon >= 1e5 else math.ceil(epsilon)})"
    return words


def rounded_up(number: float, digits: int) -> decimal.Decimal:
    """Rounds a positive number up to this many significant digits; returns 0 unchanged."""
    nearest = decimal.Decimal(f"{number:.{digits}g}")
    if nearest >= decimal.Decimal(number * (1 - 1e-12)):  # ignores the float's own error
        return nearest
    unit = decimal.Decimal(1).scaleb(decimal.Decimal(number).adjusted() - digits + 1)
    return decimal.Decimal(number).quantize(unit, decimal.ROUND_UP)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
    """An (epsilon, delta) privacy guarantee of a training, with its assumptions.

    `proven`, `claimed` and `model.privacy.spent` return one. `print` shows it as a sentence; `tpr`,
    `advantage` and `curve` translate it into the success of a membership test, an attacker's decision
    whether a certain record was used.

    Attributes:
        epsilon: Number of at least 0. If it is infinite, `reason` says why.
        delta: Probability in (0, 1).
        kind: "claimed" (the formula of the paper) or "proven" (a theorem about the run).
        adjacency: "zero_out", "replace_one" or "add_or_remove_one".
        sampling, mechanism: Names of the sampling and of the mechanism.
        released: The released values that the guarantee covers, in words.
        max_examples_per_user: Largest number of records of one user. The guarantee covers all of
            them together.
        unit: The protected unit, if `max_examples_per_user` is 1: "record" or "person".
        assumptions: The assumptions, in sentences. All of them have to hold.
        reason: Why epsilon is infinite, a sentence; None if it is finite.
        mu: Parameter of the equivalent Gaussian mechanism (mu-GDP); None if there is none.
        details: JSON-safe facts about the bound.
        losses: The privacy losses behind epsilon. Without them, `tpr` and `advantage` follow from
            epsilon and delta alone.
        changes: Number of changes from one neighbour to the other, each with these losses. If it is
            above 1, the guarantee follows by group privacy.

    Example:
        >>> from tfdp.accounting import describe, proven
        >>> run = describe("dpsgd", "cyclic", num_examples=1000, lot_size=100, steps=20,
        ...                noise_multiplier=4.0)
        >>> guarantee = proven(run, delta=1e-4)
        >>> print(guarantee)
        proven epsilon: 1.145 at delta = 0.0001, for one record replaced by a record that contributes
        nothing (zero_out).
        >>> print(f"{guarantee.tpr(0.01):.3f} {guarantee.advantage:.3f}")  # of a membership test
        0.024 0.140
    """

    epsilon: float
    delta: float
    kind: str
    adjacency: str
    sampling: str
    released: str
    mechanism: str
    max_examples_per_user: int = 1
    unit: str = "record"
    assumptions: tuple[str, ...] = ()
    reason: str | None = None
    mu: float | None = None
    details: dict[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    losses: tuple = dataclasses.field(default=(), compare=False, repr=False)
    changes: int = 1

    def __post_init__(self):
        check_kind(self.kind)
        check_adjacency(self.adjacency)
        check_delta(self.delta)
        if not self.epsilon >= 0:
            refuse("epsilon", "0 or more", self.epsilon, "Infinity needs a reason, too.")
        if math.isinf(self.epsilon) and not self.reason:
            raise ValueError(
                "Expected a reason for an infinite epsilon. Received none. Pass it as reason."
            )

    @property
    def vacuous(self) -> bool:
        """Whether epsilon is too large to mean anything (above 50)."""
        return self.epsilon > VACUOUS_ABOVE

    @property
    def neighbours(self) -> str:
        """The neighbouring relation, in words."""
        who, s, other = f"one {self.unit}", "", f"a {self.unit} that contributes nothing"
        if self.max_examples_per_user > 1:
            who = f"all records of one user ({self.max_examples_per_user} at most)"
            s, other = "s", "records that contribute nothing"
        change = {
            "zero_out": f"replaced by {other}",
            "replace_one": f"replaced by any other {self.unit}{s}",
        }
        return f"{who} {change.get(self.adjacency, 'added or removed')}"

    def tpr(self, fpr: float) -> float:
        """Returns the largest true positive rate of any membership test at a false positive rate.

        Args:
            fpr: False positive rate of the test, in (0, 1).
        """
        return attacks.largest_tpr(self._curve, fraction("fpr", fpr))

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the trade-off between the two errors of any membership test, as two arrays.

        It is composed as exactly as epsilon is.

        Returns:
            Rising false positive rates, and the least false negative rate of a test at each of
            them. Straight lines between these points are a guarantee as well.

        Example:
            >>> from tfdp.accounting import describe, proven
            >>> import numpy as np
            >>> run = describe("dpsgd", "cyclic", num_examples=1000, lot_size=100, steps=20,
            ...                noise_multiplier=4.0)
            >>> false_positives, false_negatives = proven(run, delta=1e-4).curve()
            >>> print(f"{np.interp(0.01, false_positives, false_negatives):.3f}")
            0.976
        """
        return attacks.trade_off(self._curve, self.epsilon)

    @property
    def advantage(self) -> float:
        """Largest true positive rate minus false positive rate of any membership test, in [0, 1].

        It is the total variation distance.
        """
        return min(self._curve(0.0), 1.0)

    @property
    def chance_of_more(self) -> float:
        """Upper bound on the chance of outcomes whose privacy loss exceeds epsilon.

        After such an outcome, an observer who started at 50:50 between two neighbours is surer of one
        than e^epsilon / (1 + e^epsilon). This is not delta, which weighs outcomes by their excess.
        """
        if math.isinf(self.epsilon):
            return 0.0
        return attacks.chance_of_more(self._curve, self.epsilon) if self.epsilon > 0 else 1.0

    @property
    def _curve(self) -> attacks.Curve:
        known = attacks.of_one_point(self.epsilon, self.delta)
        if not self.losses or math.isinf(self.epsilon):
            return known
        from tfdp.accounting.numerics import group_privacy  # imported here: budgets do not need it

        curve = group_privacy.curve_of(self.losses, self.delta, self.epsilon, self.changes)
        return lambda at: min(curve(at), known(at))

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields but `losses`, and rates of attacks, in JSON-safe form.

        An infinite number becomes the string "inf".
        """
        fields = [field.name for field in dataclasses.fields(self) if field.name != "losses"]
        result = {name: getattr(self, name) for name in (*fields, "advantage", "vacuous")}
        result |= {f"tpr_at_fpr_{fpr:g}": self.tpr(fpr) for fpr in (0.001, 0.01)}
        return _json_safe(result)

    def __repr__(self) -> str:
        reason = f", reason={self.reason!r}" if self.reason else ""
        return (
            f"Guarantee({self.kind}={rounded_up(self.epsilon, 4):g}, delta={self.delta:g}, "
            f"adjacency={self.adjacency!r}{reason})"
        )

    def _repr_html_(self) -> str:
        rows = [
            (f"{self.kind} epsilon", format_epsilon(self.epsilon)),
            ("delta", f"{self.delta:g}"),
            ("neighbours", f"{self.neighbours} ({self.adjacency})"),
            ("released", self.released),
        ]
        return html_table([*rows, *([("why", self.reason)] if self.reason else [])])

    def __str__(self) -> str:
        text = (
            f"{self.kind} epsilon: {format_epsilon(self.epsilon)} at delta = {self.delta:g}, "
            f"for {self.neighbours} ({self.adjacency})."
        )
        return f"{text} {self.reason}" if self.reason else text


def _json_safe(value):
    if isinstance(value, dict):
        return {key: _json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_safe(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
