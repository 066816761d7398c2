"""TensorFlow Privacy's accounting functions under their own names and arguments.

Code that was written for TensorFlow Privacy finds `compute_dp_sgd_privacy_statement` and
`compute_dp_sgd_privacy` here. Their arguments do not say how lots were drawn, on which everything that
is proven depends. So the answers name the ways in which lots may have been drawn, with what is proven
for each. The numbers are those of `proven` and `claimed` for the runs that `_runs` describes.
"""

import dataclasses
import math
import textwrap
from typing import Any

from tfdp._validate import flag, positive, refuse, whole
from tfdp.accounting.composition import claimed, proven
from tfdp.accounting.contribution import Contribution
from tfdp.accounting.guarantee import Guarantee, check_delta, format_epsilon
from tfdp.accounting.mechanisms.dpsgd import DPSGD
from tfdp.accounting.run import Run
from tfdp.accounting.sampling import sampling_class
from tfdp.accounting.wording import Statement

# Microbatches of any size above 1 cost the same; their size is not among the arguments.
_SOME_EXAMPLES = 2
_CONDITIONS = {
    "poisson": "if lots were drawn by Poisson sampling",
    "shuffle": "if each epoch took every example at most once",
    "unknown": "if every example may have been in every lot",
}
_ADVICE = (
    "tf.data's shuffle(...).batch(...) draws no Poisson lots. It is the second case, if the order "
    "does not depend on what the examples hold. tfdp's fit(x, y) really draws Poisson lots, and its "
    "model's own statement is about what was executed."
)
_MICROBATCHES = (
    "With microbatches of several examples, one example moves a clipped mean by twice the clip norm, "
    "which the claimed formula leaves out. The figure for Poisson sampling holds if microbatches are "
    "fixed groups of examples and whole groups were drawn, as tfdp does; where single examples were "
    "drawn and then grouped, nothing is amplified. If each example was clipped by itself, pass "
    "used_microbatching=False."
)


def compute_dp_sgd_privacy_statement(
    number_of_examples: int,
    batch_size: int,
    num_epochs: float,
    noise_multiplier: float,
    delta: float,
    used_microbatching: bool = True,
    max_examples_per_user: int | None = None,
    accountant_type: None = None,
) -> str:
    """Privacy statement of DP-SGD from TensorFlow Privacy's arguments, for each way of drawing lots.

    It begins with a table: what is proven if lots were drawn by Poisson sampling, if every epoch took
    each example at most once, and if nothing is known about the order; and what the formula of 2020
    claims. tfdp's full statement for Poisson lots follows.

    Args:
      number_of_examples: Public number of examples.
      batch_size: Nominal number of examples in a lot, however they were grouped into microbatches.
      num_epochs: Passes over the data, above 0; may be fractional. Numbers of steps are rounded up.
      noise_multiplier: Standard deviation of the noise over the clip norm; 0 for no noise.
      delta: Probability in (0, 1).
      used_microbatching: Whether several examples were clipped together. The default is TensorFlow
        Privacy's; a tfdp optimizer without `num_microbatches` clips every example by itself.
      max_examples_per_user: Largest number of examples of one user; the text then also says what is
        proven for all examples of a user together. None states nothing about users.
      accountant_type: Must be None: the smaller of the bounds by privacy loss distributions and by
        Rényi divergences is always taken.

    Returns:
      Several lines of text.

    Raises:
      ValueError: If an argument is out of range.

    Example:
      >>> import tfdp
      >>> print(tfdp.compute_dp_sgd_privacy_statement(
      ...     number_of_examples=60000, batch_size=256, num_epochs=15, noise_multiplier=1.1,
      ...     delta=1e-5, used_microbatching=False))
      DP-SGD with 60000 examples, lots of 256, noise multiplier 1.1, 15 epochs, ...
        proven if lots were drawn by Poisson sampling:         1.13...
        proven if each epoch took every example at most once:  20.57
      ...
    """
    if accountant_type is not None:
        refuse(
            "accountant_type", "None", accountant_type,
            "Leave it out: both bounds are computed, and the smaller one is taken.",
        )  # fmt: skip
    told = _Told(number_of_examples, batch_size, num_epochs, noise_multiplier, delta)
    microbatching = flag("used_microbatching", used_microbatching)
    users = whole("max_examples_per_user", max_examples_per_user, 1, optional=True)
    runs = told.runs(_SOME_EXAMPLES if microbatching else 1)
    found = {name: proven(run, told.delta) for name, run in runs.items()}
    claim = claimed(runs["poisson"], told.delta)
    lines = [*_filled(told.words(microbatching)), "", *_table(found, claim)]
    if users is not None:
        lines += ["", *_user_table(runs, users, told.delta)]
    lines += ["", *_filled(_ADVICE)]
    if microbatching:
        lines += ["", *_filled(_MICROBATCHES)]
    statement = Statement.from_guarantees([runs["poisson"]], claim, found["poisson"], planned=True)
    about = "What follows is proven if lots were drawn by Poisson sampling, and not otherwise."
    return "\n".join([*lines, "", about, "", statement.text()]) + "\n"


class PrivacyOfDPSGD(tuple):
    """The pair that TensorFlow Privacy's `compute_dp_sgd_privacy` returns; as text, a statement.

    Attributes:
      epsilon: Epsilon that is proven if lots were drawn by Poisson sampling; first of the pair.
      rdp_order: Rényi order of the bound, or None if another bound is smaller; second of the pair.
      statement: The statement in words, which says what is proven for other lots.
    """

    def __new__(cls, epsilon: float, rdp_order: float | None, statement: str) -> "PrivacyOfDPSGD":
        made = super().__new__(cls, (epsilon, rdp_order))
        made.epsilon, made.rdp_order, made.statement = epsilon, rdp_order, statement
        return made

    def __getnewargs__(self) -> tuple:  # for `copy` and `pickle`
        return self.epsilon, self.rdp_order, self.statement

    def __str__(self) -> str:
        return self.statement


def compute_dp_sgd_privacy(
    n: int, batch_size: int, noise_multiplier: float, epochs: float, delta: float
) -> PrivacyOfDPSGD:
    """Epsilon of DP-SGD under Poisson sampling with single examples, as TensorFlow Privacy's function.

    The epsilon is proven only if lots were really drawn by Poisson sampling and every example was
    clipped by itself. `print` of the result says so, and what is proven otherwise.

    Args:
      n: Public number of examples.
      batch_size: Nominal lot size.
      noise_multiplier: Standard deviation of the noise over the clip norm.
      epochs: Passes over the data, above 0.
      delta: Probability in (0, 1).

    Returns:
      The pair (epsilon, Rényi order), whose text is a statement.

    Raises:
      ValueError: If an argument is out of range.

    Example:
      >>> import tfdp
      >>> epsilon, _ = tfdp.compute_dp_sgd_privacy(
      ...     n=60000, batch_size=256, noise_multiplier=1.1, epochs=15, delta=1e-5)
      >>> print(f"{epsilon:.2f}")
      1.13
    """
    told = _Told(n, batch_size, epochs, noise_multiplier, delta)
    found = proven(told.runs(1)["poisson"], told.delta)
    statement = compute_dp_sgd_privacy_statement(
        n, batch_size, epochs, noise_multiplier, delta, used_microbatching=False
    )
    order = found.details.get("rdp_order") if found.details.get("conversion") == "RDP" else None
    return PrivacyOfDPSGD(found.epsilon, order, statement)


@dataclasses.dataclass(frozen=True)
class _Told:
    """The arguments, validated."""

    number_of_examples: Any
    batch_size: Any
    num_epochs: Any
    noise_multiplier: Any
    delta: Any

    def __post_init__(self):
        whole("number_of_examples", self.number_of_examples, 1)
        whole("batch_size", self.batch_size, 1, self.number_of_examples)
        positive("num_epochs", self.num_epochs)
        check_delta(self.delta)

    def runs(self, microbatch_size: int) -> dict[str, Run]:
        """The run for each way of drawing lots."""
        ratio = self.number_of_examples / self.batch_size
        steps = math.ceil(self.num_epochs * ratio - 1e-9)
        # Whole epochs, so that an example takes part as often as there are epochs that were begun.
        whole_epochs = math.ceil(self.num_epochs) * (self.number_of_examples // self.batch_size)
        return {
            name: Run(
                mechanism=DPSGD(noise_multiplier=self.noise_multiplier),
                sampling=sampling_class(name)(
                    num_examples=self.number_of_examples, lot_size=self.batch_size
                ),
                steps=max(1, whole_epochs if name == "shuffle" else steps),
                contribution=Contribution(microbatch_size=min(microbatch_size, self.batch_size)),
            )
            for name in _CONDITIONS
        }

    def words(self, microbatching: bool) -> str:
        microbatches = "with" if microbatching else "without"
        return (
            f"DP-SGD with {self.number_of_examples} examples, lots of {self.batch_size}, noise "
            f"multiplier {self.noise_multiplier:g}, {self.num_epochs:g} epochs, {microbatches} "
            "microbatches of several examples, as the arguments say: nothing here has seen the "
            "training. All epsilons are for one record that is replaced by one that contributes "
            f"nothing (zero_out), at delta = {self.delta:g}, and for all weights along the way."
        )


def _table(found: dict[str, Guarantee], claim: Guarantee) -> list[str]:
    rows = [(f"proven {_CONDITIONS[name]}:", each.epsilon) for name, each in found.items()]
    rows.append(("claimed (formula of 2020, any lots):", claim.epsilon))
    return [f"  {words:<54} {format_epsilon(epsilon)}" for words, epsilon in rows]


def _user_table(runs: dict[str, Run], users: int, delta: float) -> list[str]:
    lines = [f"For all examples of one user together, who has at most {users}:"]
    for name, condition in _CONDITIONS.items():
        run = runs[name]
        user = dataclasses.replace(run.contribution, max_examples_per_user=users)
        epsilon = proven(dataclasses.replace(run, contribution=user), delta).epsilon
        lines.append(f"  {f'proven {condition}:':<54} {format_epsilon(epsilon)}")
    return lines


def _filled(paragraph: str) -> list[str]:
    return textwrap.wrap(paragraph, width=96)
