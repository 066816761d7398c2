"""Settings shared by the accountant and training, each declared once."""

import dataclasses
import functools

from tfdp._settings import Need, Setting
from tfdp._settings import settings_of as declared_settings
from tfdp.accounting.guarantee import ADJACENCIES, KINDS
from tfdp.accounting.mechanisms import (
    READINGS,
    RELEASES,
    USUAL_MECHANISM,
    mechanism_class,
    mechanism_names,
)
from tfdp.accounting.numerics.noise_families import FAMILIES
from tfdp.accounting.sampling import sampling_names
from tfdp.accounting.strategies import OBJECTIVES, STRATEGIES

# The default privacy budget of a training, if neither epsilon nor noise is set.
USUAL_EPSILON = 2.0


def _summaries() -> dict[str, str]:
    return {name: mechanism_class(name).summary for name in mechanism_names()}


mechanism = Setting(
    help="Where the privacy comes from.", default=USUAL_MECHANISM, choices=_summaries
)
epsilon = Setting(
    help="The privacy budget, for which the noise is computed, instead of --noise_multiplier.",
    rival="noise_multiplier",
)
noise_multiplier = Setting(
    help="The noise on the sum over the clip norm, instead of --epsilon (dp_dropout: twice the paper's "
    "sigma).",
    interval="[0, inf)",
    rival="epsilon",
)
guarantee = Setting(
    help="The epsilon that --epsilon limits: proven, by a theorem about the run; claimed, by the "
    "paper's formula.",
    default="proven",
    choices=KINDS,
)
delta = Setting(
    help="The probability parameter of the guarantee, well below 1/N.",
    default=1e-5,
    interval="(0, 1)",
)
adjacency = Setting(
    help="The difference between neighbouring data sets.", default="zero_out", choices=ADJACENCIES
)
lot_size = Setting(help="The nominal lot size: the logical batch of one step.")
epochs = Setting(help="The number of passes over the data.", rival="steps")
steps = Setting(help="The number of steps, instead of --epochs.", rival="epochs")
sampling = Setting(
    help="The sampling of lots, which the accounting follows.", choices=sampling_names
)
groups = Setting(
    help="The number of groups of the data that take turns with --sampling=cyclic_poisson. For matrix, "
    "by default as many as --bands; without either, the number with the least noise.",
    needs=(Need("sampling", ("cyclic_poisson",)),),
)
learning_rate = Setting(help="The initial learning rate.")
learning_rate_decay = Setting(
    help="The factor on the learning rate after every epoch.", default=1.0
)
momentum = Setting(help="The momentum of sgd.", default=0.0, interval="[0, 1)")

composition = Setting(
    help="The paper's recipe that the claimed epsilon follows, for dp_dropout and sgld.",
    choices=READINGS,
)
release = Setting(
    help="The release of si_dpsgd: theta, one noisy draw; or mu, the un-noised means, as in the "
    "authors' code (the proven epsilon is then infinite).",
    choices=RELEASES,
)
noise = Setting(help="The family of the noise of discrete_sgd.", choices=FAMILIES)
degrees_of_freedom = Setting(
    help="The degrees of freedom of --noise=student_t, for discrete_sgd.",
    needs=(Need("noise", ("student_t", None)),),
)
strategy = Setting(
    help="The correlation of the noise of different steps, for matrix.", choices=STRATEGIES
)
bands = Setting(
    help="The number of coefficients of the strategy of matrix. By default as many as --groups; for "
    "cyclic lots, the steps of an epoch.",
    needs=(Need("strategy", ("banded_toeplitz", "sqrt_toeplitz", None)),),
)
objective = Setting(
    help="The error over the steps that --strategy=banded_toeplitz minimizes, for matrix.",
    choices=OBJECTIVES,
    needs=(Need("strategy", ("banded_toeplitz", None)),),
)


def settings_of(declared: type) -> dict[str, Setting]:
    """Returns the settings of a dataclass; mechanism-specific ones need one of their mechanisms."""
    own = {name for each in mechanism_names() for name in mechanism_class(each).settings}
    known = declared_settings(declared)
    for name in own & known.keys():
        need = Need("mechanism", functools.partial(_belongs, name))
        known[name] = dataclasses.replace(known[name], needs=(need, *known[name].needs))
    return known


def _belongs(name: str, mechanism: str) -> bool:
    return name in mechanism_class(mechanism).settings
