"""TensorFlow Privacy's accounting functions, with their names and arguments.

Their arguments do not say how lots were drawn, although every proof depends on it. So the statement
lists the possible ways, with the proven epsilon of each.
"""

import math
import textwrap

from tfdp._validate import flag, positive, whole
from tfdp.accounting.composition import claimed, proven
from tfdp.accounting.described import describe
from tfdp.accounting.guarantee import Guarantee, check_delta, format_epsilon
from tfdp.accounting.mechanisms import DPSGD
from tfdp.accounting.run import Run
from tfdp.accounting.statements import Statement

_CONDITIONS = {
    "poisson": "proven if lots were drawn by Poisson sampling:",
    "shuffle": "proven if each epoch took every example at most once:",
    "unknown": "proven if every example may have been in every lot:",
    "claimed": "claimed (formula of 2020, any lots):",
}
_ADVICE = (
    "tf.data's shuffle(...).batch(...) does not draw Poisson lots. It is the second case, if the order "
    "does not depend on the contents. tfdp's fit(x, y) draws Poisson lots, and its "
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
) -> str:
    """Returns a privacy statement of DP-SGD, with the arguments of TensorFlow Privacy's function.

    Use it to account for a training with another library. For a model that tfdp trained, print
    `model.privacy.statement(delta)`, which knows how lots were drawn. The arguments here do not say
    that, so the text begins with a table: the proven epsilon for Poisson lots, for epochs and for an
    unknown order, and the epsilon claimed by the formula of 2020. The full statement for Poisson lots
    follows.

    Args:
        number_of_examples: Public number of examples.
        batch_size: Nominal number of examples in a lot.
        num_epochs: Number of passes over the data, above 0. The number of steps is rounded up.
        noise_multiplier: Standard deviation of the noise divided by the clip norm; 0 for no noise.
        delta: Probability in (0, 1), well below 1/N.
        used_microbatching: Whether several examples were clipped together. The default is
            TensorFlow Privacy's. A tfdp optimizer without `num_microbatches` clips every example
            separately, so pass False for it.
        max_examples_per_user: Largest number of examples of one user. The table is then repeated for
            all examples of a user together. None for single examples only.

    Returns:
        The text.

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
    several = flag("used_microbatching", used_microbatching)
    users = whole("max_examples_per_user", max_examples_per_user, 1, optional=True)
    # Microbatches of any size above 1 cost the same; their size is not among the arguments.
    runs = _runs(number_of_examples, batch_size, num_epochs, noise_multiplier, delta, 1 + several)
    found = {name: proven(run, delta) for name, run in runs.items()}
    claim = claimed(runs["poisson"], delta)
    about = (
        f"DP-SGD with {number_of_examples} examples, lots of {batch_size}, noise multiplier "
        f"{noise_multiplier:g}, {num_epochs:g} epochs, {'with' if several else 'without'} "
        "microbatches of several examples, according to the arguments: tfdp did not see the training. "
        "All epsilons are for one record replaced by one that contributes nothing (zero_out), "
        f"at delta = {delta:g}, and cover all intermediate weights."
    )
    lines = [*textwrap.wrap(about, 96), "", *_table(found | {"claimed": claim})]
    if users is not None:
        lines += ["", f"For all examples of one user together (at most {users}):"]
        lines += _table({n: proven(run.for_users(users), delta) for n, run in runs.items()})
    for paragraph in (_ADVICE, *([_MICROBATCHES] if several else [])):
        lines += ["", *textwrap.wrap(paragraph, 96)]
    statement = Statement.from_guarantees([runs["poisson"]], claim, found["poisson"])
    last = "The following is proven only if lots were drawn by Poisson sampling."
    return "\n".join([*lines, "", last, "", statement.text(full=True)]) + "\n"


def compute_dp_sgd_privacy(
    n: int, batch_size: int, noise_multiplier: float, epochs: float, delta: float
) -> tuple[float, float | None]:
    """Computes the proven epsilon of DP-SGD, with the arguments of TensorFlow Privacy's old function.

    It holds only for Poisson lots and single examples, which few input pipelines draw.
    `compute_dp_sgd_privacy_statement` reports the epsilon for other lots, too.

    Args:
        n: Number of training examples.
        batch_size: Nominal lot size.
        noise_multiplier: Standard deviation of the noise divided by the clip norm, above 0.
        epochs: Number of passes over the data, above 0 and possibly fractional.
        delta: Probability in (0, 1), well below 1/N.

    Returns:
        (epsilon, Rényi order). The order is None if a bound other than Rényi's is the smallest.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> import tfdp
        >>> epsilon, _ = tfdp.compute_dp_sgd_privacy(
        ...     n=60000, batch_size=256, noise_multiplier=1.1, epochs=15, delta=1e-5)
        >>> print(f"{epsilon:.2f}")
        1.13
    """
    found = proven(_runs(n, batch_size, epochs, noise_multiplier, delta, 1)["poisson"], delta)
    order = found.details.get("rdp_order") if found.details.get("conversion") == "RDP" else None
    return found.epsilon, order


def _runs(examples, batch_size, epochs, noise_multiplier, delta, microbatch_size) -> dict[str, Run]:
    """Returns the run for each way of drawing lots; errors name the public arguments."""
    whole("number_of_examples", examples, 1)
    whole("batch_size", batch_size, 1, examples)
    positive("num_epochs", epochs)
    check_delta(delta)
    steps = math.ceil(epochs * examples / batch_size - 1e-9)
    # Epochs are rounded up, since an example takes part in every epoch that was begun.
    of_epochs = math.ceil(epochs) * (examples // batch_size)
    return {
        name: describe(
            DPSGD(noise_multiplier=noise_multiplier),
            name,
            num_examples=examples,
            lot_size=batch_size,
            steps=max(1, of_epochs if name == "shuffle" else steps),
            microbatch_size=min(microbatch_size, batch_size),
        )
        for name in ("poisson", "shuffle", "unknown")
    }


def _table(figures: dict[str, Guarantee]) -> list[str]:
    return [f"  {_CONDITIONS[n]:<54} {format_epsilon(g.epsilon)}" for n, g in figures.items()]
