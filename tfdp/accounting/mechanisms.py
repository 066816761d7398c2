"""Mechanisms: the noise that is added, and to which quantity; one small frozen class for each.

A mechanism has fields and checks, but no analysis of its privacy: `proofs.py` has its theorem,
`claims.py` the formula of its paper, and `assumptions.py` and `wording.py` its sentences. No other code
depends on the type of a run's mechanism.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np

from tfdp._validate import Schedule, flag, instance, one_of, schedule, text
from tfdp.accounting import noise_tables
from tfdp.accounting.contribution import Contribution
from tfdp.accounting.encoding import Encoding
from tfdp.accounting.noise_tables import Noise
from tfdp.accounting.records import settle
from tfdp.accounting.strategies import Strategy

Entry = TypeVar("Entry")

# The default mechanism.
USUAL_MECHANISM = "dpsgd"
# What SI-DPSGD may release.
RELEASES = ("theta", "mu")
# Names of the readings of the dropout paper's claim (see `claims.READINGS`).
READINGS = ("ac", "ac_as_printed", "zcdp", "zcdp_a", "zcdp_c", "zcdp_as_printed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism:
    """Base class of mechanisms: which noise a training adds, and to which quantity.

    `describe("dpsgd", ...)` makes the mechanism of a run from its name. To add a mechanism, derive a
    frozen dataclass, from `NoisyMechanism` if it adds noise, and use `register_mechanism`
    (docs/adding.md).

    Class attributes:
        name: Name in the registry, in ledgers and in flags.
        summary: A few words about the mechanism, for help texts.
        schedules: Names of the fields that may be a table over steps.
        settings: Experiment settings that are specific to this mechanism.
        update_rules: Keras update rules that the mechanism allows: "any", since they see only noisy
            sums; "linear", if a proven guarantee needs SGD, with or without momentum; or "own", the
            paper's step.
        adaptive_clipping: Whether the clip norm may depend on earlier releases.
        usual_sampling: Name of the default sampling scheme.

    Example:
        >>> from tfdp.accounting import describe
        >>> run = describe("dpsgd", "poisson", num_examples=1000, lot_size=100, steps=10,
        ...                noise_multiplier=(4.0, 4.0, *[2.0] * 8))
        >>> run.mechanism.schedule("noise_multiplier", 4)
        array([4., 4., 2., 2.])
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    schedules: ClassVar[tuple[str, ...]] = ()
    settings: ClassVar[tuple[str, ...]] = ()
    update_rules: ClassVar[str] = "any"
    adaptive_clipping: ClassVar[bool] = False
    usual_sampling: ClassVar[str] = "poisson"

    def check(self, steps: int, contribution: Contribution) -> None:
        """Raises ValueError if this mechanism does not fit the other parts of its run."""
        for name, table in self.tables().items():
            if len(table) < steps:
                raise ValueError(
                    f"Expected {name} to have one value for each of the {steps} steps. Received "
                    f"{len(table)} values. Pass a constant or the whole schedule."
                )
        if contribution.adaptive_clipping and not self.adaptive_clipping:
            raise ValueError(
                f"adaptive_clipping cannot be combined with {self.name!r}: it needs a mechanism whose "
                "steps are private one by one, such as dpsgd. Remove it."
            )

    def with_noise(self, noise: float) -> "Mechanism":
        """Returns a copy with this noise multiplier; a table over steps is multiplied by it."""
        del noise
        return self

    def tables(self) -> dict[str, tuple]:
        """Returns the fields that have one value for each step, by name."""
        values = {name: getattr(self, name) for name in self.schedules}
        return {name: value for name, value in values.items() if isinstance(value, tuple)}

    def schedule(self, name: str, steps: int) -> np.ndarray:
        """Returns the values of a field at each step, as an array of shape (steps,).

        None, an unknown constant, becomes 1: a constant factor of all values changes no guarantee.

        Args:
            name: One of `schedules`.
            steps: Number of steps.
        """
        value = getattr(self, name)
        array = np.asarray(1.0 if value is None else value, dtype=float)
        return np.full(steps, float(array)) if array.ndim == 0 else array[:steps]


_CLASSES: dict[str, type[Mechanism]] = {}


def register_mechanism(kind: type[Mechanism]) -> type[Mechanism]:
    """Class decorator that registers a new mechanism under its `name`, for `describe` and the flags.

    A class without its own entries in `proofs.PROOFS`, `claims.CLAIMS` and the tables of sentences has
    the entries of its base class.

    Args:
        kind: The class, a frozen dataclass that derives from `Mechanism`.

    Returns:
        The class.

    Raises:
        ValueError: If the class has no name, or another class is registered under this name.

    Example:
        >>> import dataclasses
        >>> from typing import ClassVar
        >>> from tfdp.accounting import mechanism_names, register_mechanism
        >>> from tfdp.accounting.mechanisms import DPSGD
        >>> @register_mechanism
        ... @dataclasses.dataclass(frozen=True, kw_only=True)
        ... class RoundedDPSGD(DPSGD):
        ...     name: ClassVar[str] = "rounded_dpsgd_of_the_example"
        >>> "rounded_dpsgd_of_the_example" in mechanism_names()
        True
    """
    name = text("the name of a mechanism", getattr(kind, "name", ""), remedy="Give it one.")
    if _CLASSES.setdefault(name, kind) is not kind:
        raise ValueError(f"Expected a new mechanism name. Received {name!r}, which is taken.")
    return kind


@register_mechanism
@dataclasses.dataclass(frozen=True, kw_only=True)
class NoMechanism(Mechanism):
    """Training without privacy: a baseline, or training that was not accounted.

    Attributes:
        reason: Why nothing is proven, a sentence; for example, that the earlier training of the
            weights is unknown.
        declarable: Whether the run stands for unaccounted plain training, which the user may
            declare to have used public data.
    """

    reason: str = "The run was not private: no noise hides an example."
    declarable: bool = False

    name: ClassVar[str] = "none"
    summary: ClassVar[str] = "no noise and no privacy, to compare with"

    def __post_init__(self):
        text("reason", self.reason, remedy="Remove it, or state why nothing is proven.")
        flag("declarable", self.declarable)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyMechanism(Mechanism):
    """Base class of the mechanisms that add noise.

    Attributes:
        noise_multiplier: Standard deviation (or scale) of the noise on the sum, divided by the clip
            norm; one number, or one for each step.
    """

    noise_multiplier: Noise

    schedules: ClassVar[tuple[str, ...]] = ("noise_multiplier",)

    def __post_init__(self):
        settle(self, noise_multiplier=noise_tables.checked(self.noise_multiplier))

    def with_noise(self, noise: float) -> "NoisyMechanism":
        table = self.noise_multiplier
        new = tuple(z * noise for z in table) if isinstance(table, tuple) else noise
        return dataclasses.replace(self, noise_multiplier=new)


@register_mechanism
@dataclasses.dataclass(frozen=True, kw_only=True)
class DPSGD(NoisyMechanism):
    """Fresh Gaussian noise on every clipped sum (Abadi et al. 2016)."""

    name: ClassVar[str] = "dpsgd"
    summary: ClassVar[str] = "fresh noise on every sum of clipped gradients"
    adaptive_clipping: ClassVar[bool] = True
    settings: ClassVar[tuple[str, ...]] = ("noise_decay",)


@register_mechanism
@dataclasses.dataclass(frozen=True, kw_only=True)
class DPDropout(DPSGD):
    """Differentially private dropout: DP-SGD whose noise is interpreted as dropout.

    The weights move by eta_t / 2 times (clipped gradient + noise of standard deviation 2 C sigma).
    The noise multiplier is 2 sigma, with the paper's sigma.

    Attributes:
        composition: The reading of the paper's recipe that the claimed epsilon follows, one of
            `READINGS`; None for the class's `default_reading`.
    """

    composition: str | None = None

    name: ClassVar[str] = "dp_dropout"
    summary: ClassVar[str] = "Langevin steps whose noise is read as dropout"
    settings: ClassVar[tuple[str, ...]] = ("learning_rate_exponent", "composition")
    update_rules: ClassVar[str] = "own"
    default_reading: ClassVar[str] = "ac"

    def __post_init__(self):
        super().__post_init__()
        one_of("composition", self.composition, READINGS, optional=True)


@register_mechanism
@dataclasses.dataclass(frozen=True, kw_only=True)
class SGLD(DPDropout):
    """Stochastic gradient Langevin dynamics, the baseline of the dropout paper.

    Noise, releases and zCDP composition are those of DP-dropout, so the accounting is the same. Only
    the interpretation of the noise as dropout of the network is missing.
    """

    name: ClassVar[str] = "sgld"
    summary: ClassVar[str] = "Langevin steps without dropout, the baseline of dp_dropout"
    default_reading: ClassVar[str] = "zcdp"


@register_mechanism
@dataclasses.dataclass(frozen=True, kw_only=True)
class SIDPSGD(NoisyMechanism):
    """SI-DPSGD: noise on the weights, around means that are updated without noise.

    Attributes:
        noise_multiplier: z_t, constant or per step. The noise on the weights of step t has the
            standard deviation z_t C lr_t / L.
        learning_rates: Learning rates lr_t of the means, constant or per step; None for an unknown
            constant.
        momentum: Momentum coefficient, constant or per step.
        nesterov: Whether the momentum is Nesterov's.
        optimizer: Name of the update rule of the means.
        release: "theta" (the noisy weights) or "mu" (the means, without noise).
    """

    learning_rates: Schedule = None
    momentum: float | tuple[float, ...] = 0.0
    nesterov: bool = False
    optimizer: str = "sgd"
    release: str = "theta"

    name: ClassVar[str] = "si_dpsgd"
    summary: ClassVar[str] = "noise in the weights, around means that carry none"
    settings: ClassVar[tuple[str, ...]] = ("release",)
    update_rules: ClassVar[str] = "linear"
    schedules: ClassVar[tuple[str, ...]] = ("noise_multiplier", "learning_rates", "momentum")

    def __post_init__(self):
        super().__post_init__()
        rule = "Pass the name of an update rule, for example 'sgd'."
        settle(
            self,
            learning_rates=schedule("learning_rates", self.learning_rates, optional=True),
            momentum=schedule("momentum", self.momentum),
            nesterov=flag("nesterov", self.nesterov),
            optimizer=text("optimizer", self.optimizer, remedy=rule).lower(),
            release=one_of("release", self.release, RELEASES),
        )


@register_mechanism
@dataclasses.dataclass(frozen=True, kw_only=True)
class Matrix(NoisyMechanism):
    """Gaussian noise that a Toeplitz strategy correlates over steps.

    Attributes:
        noise_multiplier: Standard deviation of the noise before it is correlated, divided by the clip
            norm; one number for all steps.
        strategy: The strategy C, whose inverse correlates the noise.
    """

    noise_multiplier: float
    strategy: Strategy

    name: ClassVar[str] = "matrix"
    summary: ClassVar[str] = (
        "noise that is correlated over the steps, so that the weights carry less"
    )
    settings: ClassVar[tuple[str, ...]] = ("strategy", "bands", "objective")
    schedules: ClassVar[tuple[str, ...]] = ()
    usual_sampling: ClassVar[str] = "cyclic_poisson"

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.noise_multiplier, tuple):
            raise ValueError(
                f"Expected one noise_multiplier for all steps. Received {len(self.noise_multiplier)} "
                "values, with which the strategy would not be a Toeplitz matrix. Pass one number."
            )
        instance("strategy", self.strategy, Strategy, remedy="Pass tfdp.accounting.Strategy(...).")


@register_mechanism
@dataclasses.dataclass(frozen=True, kw_only=True)
class DiscreteSGD(NoisyMechanism):
    """Encoded gradients with noise of any family.

    Attributes:
        noise_multiplier: Scale of the noise divided by the clip norm, constant or per step.
        encoding: Codebook and family of the noise.
    """

    encoding: Encoding

    name: ClassVar[str] = "discrete_sgd"
    summary: ClassVar[str] = "encoded gradients, noise of any family, and denoising"
    settings: ClassVar[tuple[str, ...]] = (
        "noise",
        "degrees_of_freedom",
        "encode",
        "denoise",
        "codebook_size",
        "noise_decay",
    )

    def __post_init__(self):
        super().__post_init__()
        instance("encoding", self.encoding, Encoding, remedy="Pass tfdp.accounting.Encoding(...).")


def mechanism_names() -> tuple[str, ...]:
    """Returns the names of all registered mechanisms, such as "dpsgd", in alphabetical order.

    Example:
        >>> from tfdp.accounting import mechanism_names
        >>> {"dpsgd", "matrix", "si_dpsgd"} <= set(mechanism_names())
        True
    """
    return tuple(sorted(_CLASSES))


def mechanism_class(name: str) -> type[Mechanism]:
    """Returns the class registered under `name`; raises ValueError if there is none."""
    return _CLASSES[one_of("mechanism", name, mechanism_names())]


def entry_of(table: Mapping[type[Mechanism], Entry], mechanism: Any) -> Entry:
    """Returns the entry of a mechanism's class in a table, or of the nearest base class.

    Raises:
        ValueError: If the table has no such entry.
    """
    for kind in type(mechanism).__mro__:
        if kind in table:
            return table[kind]
    raise ValueError(
        f"No theorem or claim is known for the mechanism {mechanism.name!r}. Add it to "
        "tfdp.accounting.proofs.PROOFS and tfdp.accounting.claims.CLAIMS."
    )
