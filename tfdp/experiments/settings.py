"""The settings of an experiment: what `train.py` has flags for."""

import dataclasses
import math

from tfdp.accounting import PrivacyBudget
from tfdp.accounting.mechanisms.none import NoMechanism
from tfdp.optimizers import MECHANISMS as PRIVATE_MECHANISMS

NONE = NoMechanism.name
MECHANISMS = (NONE, *PRIVATE_MECHANISMS)
UPDATE_RULES = ("sgd", "adam", "adamw", "adagrad", "rmsprop", "nadam")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """The settings of one training; `train.py` has a flag for each, with the same name.

    Attributes: see `python train.py --help`. Exactly one of `epsilon` and `noise_multiplier` is
    used: with a noise multiplier, `epsilon` is what comes out. None stands for the default of the
    mechanism, and is the only value for a mechanism that has no such setting.
    """

    mechanism: str
    dataset: str
    model: str
    batch_size: int
    learning_rate: float
    epochs: float = 1.0
    steps: int | None = None
    data_dir: str | None = None
    normalization: str = "none"
    activation: str = "relu"
    normalize_output: bool = False
    epsilon: float | None = None
    delta: float = 1e-5
    guarantee: str = "proven"
    adjacency: str = "zero_out"
    noise_multiplier: float | None = None
    l2_norm_clip: float = 1.0
    clipping: str = "global"
    target_quantile: float | None = None
    quantile_learning_rate: float | None = None
    quantile_noise_multiplier: float | None = None
    microbatches: int | None = None
    physical_batch_size: int | None = None
    sampling: str = "poisson"
    groups: int | None = None
    optimizer: str = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    learning_rate_decay: float = 1.0
    learning_rate_exponent: float | None = None
    release: str | None = None
    noise: str | None = None
    degrees_of_freedom: float | None = None
    encode: bool | None = None
    denoise: bool | None = None
    codebook_size: int | None = None
    composition: str | None = None
    strategy: str | None = None
    bands: int | None = None
    objective: str | None = None
    public_data: str | None = None
    public_examples: int = 30
    statistics: str = "example"
    engine: str = "auto"
    jit_compile: bool = False
    seed: int | None = None
    insecure_seed: int | None = None

    @property
    def private(self) -> bool:
        """Whether there is a mechanism at all."""
        return self.mechanism != NONE

    @property
    def takes_public_data(self) -> bool:
        """Whether normalization statistics come from public examples."""
        if self.normalization != "batch":
            return False
        return self.private or self.public_data is not None

    def __post_init__(self):
        if self.mechanism not in MECHANISMS:
            raise ValueError(
                f"Unknown mechanism {self.mechanism!r}. Expected one of {', '.join(MECHANISMS)}."
            )
        if self.optimizer not in UPDATE_RULES:
            raise ValueError(
                f"Unknown optimizer {self.optimizer!r}. Expected one of {', '.join(UPDATE_RULES)}."
            )
        for name in ("learning_rate", "learning_rate_decay", "l2_norm_clip", "epochs"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"Expected --{name} to be a finite number above 0. Found {value}.")
        for name in ("batch_size", "steps", "microbatches", "physical_batch_size"):
            value = getattr(self, name)
            if value is not None and not value >= 1:
                raise ValueError(f"Expected --{name} to be at least 1. Found {value}.")
        if self.normalization != "batch" and (
            self.public_data is not None or self.statistics != "example"
        ):
            raise ValueError(
                "Expected --public_data and --statistics with --normalization=batch only. Found "
                f"--normalization={self.normalization}."
            )
        if not self.public_examples >= 2:
            raise ValueError(
                f"Expected --public_examples to be at least 2. Found {self.public_examples}."
            )
        if self.noise_multiplier is not None and not (0 <= self.noise_multiplier < math.inf):
            raise ValueError(
                f"Expected --noise_multiplier to be a finite number of at least 0. Found "
                f"{self.noise_multiplier}."
            )
        if self.private and self.epsilon is None and self.noise_multiplier is None:
            raise ValueError("Expected --epsilon or --noise_multiplier. Found neither.")
        if self.epsilon is not None:
            PrivacyBudget(self.epsilon, self.delta, self.guarantee, self.adjacency)
        else:
            PrivacyBudget(1.0, self.delta, self.guarantee, self.adjacency)
