"""Declares the settings of an experiment, each of them once.

Each field of `Experiment` declares its type, default, help text, allowed values, bounds and the
settings that it goes with. The flags of `train.py`, its help, the settings in run.json and the
refusal of settings that would have no effect are all derived from these fields. The settings of a new
mechanism are declared here; the mechanism names those that it has in its `settings`.

This module imports neither TensorFlow nor Keras.
"""

import dataclasses
import types
import typing

from tfdp.accounting import PrivacyBudget, mechanism_names
from tfdp.accounting.guarantee import ADJACENCIES, KINDS
from tfdp.accounting.mechanisms.dpsgd import DPSGD
from tfdp.accounting.mechanisms.registry import mechanism_class
from tfdp.accounting.numerics.noise_families import FAMILIES
from tfdp.accounting.strategies import OBJECTIVES, STRATEGIES
from tfdp.data.datasets import DATASETS
from tfdp.experiments.conditions import (
    MODELS,
    NONE,
    NORMALIZED,
    PRIVATE_BATCH,
    SCALED,
    TEXT_MODELS,
    WORD_MODELS,
    check_together,
    why_unused,
)
from tfdp.experiments.setting import (
    CLIPPING,
    DATA,
    EXECUTION,
    OWN,
    PRIVACY,
    TRAINING,
    Need,
    Setting,
    setting,
)
from tfdp.experiments.setting import GROUPS as GROUPS
from tfdp.experiments.start_settings import StartSettings
from tfdp.experiments.word_settings import WordSettings

# The activations of Keras that act on each number by itself.
ACTIVATIONS = (
    "relu",
    "tanh",
    "celu",
    "elu",
    "exponential",
    "gelu",
    "hard_sigmoid",
    "hard_silu",
    "hard_tanh",
    "leaky_relu",
    "linear",
    "log_sigmoid",
    "mish",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "softplus",
    "softsign",
    "squareplus",
    "swish",
)

_BATCH = Need("normalization", ("batch",))
_PRIVATE_BATCH = Need("normalization", (PRIVATE_BATCH,))
_NOT_PRIVATE = Need("mechanism", (NONE,))
_WEIGHT_NOISE = Need("weight_noise")
_SGD = Need("optimizer", ("sgd",))
_NO_NORMALIZATION = Need(
    "model",
    tuple(name for name in (*MODELS, *WORD_MODELS) if name not in NORMALIZED),
    said="a --model without a normalization of its own",
)
_ADAPTIVE = Need("clipping", ("adaptive",))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment(WordSettings, StartSettings):
    """The settings of one training. `train.py` has a flag of the same name for each of them.

    The help text of each field is in `SETTINGS` and in `python train.py --help`. If
    `noise_multiplier` is None, the noise is calibrated to `epsilon`. Otherwise `epsilon` is not used,
    and the epsilon of the run follows from the noise.

    Example:
        >>> from tfdp.experiments import Experiment
        >>> experiment = Experiment(mechanism="dpsgd", epsilon=2.0, epochs=10)
        >>> experiment.dataset, experiment.batch_size, experiment.private
        ('digits', 256, True)
        >>> Experiment(mechanism="dpsgd", epsilon=-1.0)
        Traceback (most recent call last):
        ...
        ValueError: Expected ...epsilon ...
    """

    mechanism: str = setting(
        DPSGD.name,
        "Where the privacy comes from.",
        group=PRIVACY,
        choices=mechanism_names,
        explain=lambda name: mechanism_class(name).summary,
    )
    epsilon: float | None = setting(
        None,
        "The privacy budget, from which the noise is computed.",
        group=PRIVACY,
        above=0,
        private=True,
        rival="noise_multiplier",
        otherwise=2.0,
    )
    delta: float = setting(
        1e-5,
        "The probability parameter of the guarantee, below 1/N.",
        group=PRIVACY,
        above=0,
        below=1,
    )
    guarantee: str = setting(
        "proven",
        "Which epsilon --epsilon means: that of a theorem about the run as it is executed, or that "
        "of the paper's own accounting.",
        group=PRIVACY,
        choices=KINDS,
        private=True,
    )
    adjacency: str = setting(
        "zero_out", "What neighbouring data sets differ in.", group=PRIVACY, choices=ADJACENCIES
    )
    noise_multiplier: float | None = setting(
        None,
        "The noise over the clip norm, instead of --epsilon.",
        group=PRIVACY,
        at_least=0,
        private=True,
        rival="epsilon",
    )
    noise_decay: float | None = setting(
        None,
        "The factor on the noise after every epoch; below 1, later epochs have less noise.",
        group=PRIVACY,
        above=0,
        own=True,
    )

    dataset: str = setting(
        "digits",
        "The data. digits is embedded; the others come from tensorflow_datasets: "
        f"{', '.join(sorted(DATASETS.keys() - {'digits'}))}, or any other one whose examples have a "
        "class label and an image or a text.",
        group=DATA,
    )
    train_split: str | None = setting(
        None,
        "Other training examples than the usual ones, in the notation of tensorflow_datasets, such as "
        "test[:6080]. The result says that N is another one.",
        group=DATA,
    )
    test_split: str | None = setting(
        None,
        "Other test examples than the usual ones, such as test[6080:] or train[96000:]. They must not "
        "be training examples.",
        group=DATA,
    )
    data_dir: str | None = setting(
        None,
        "Where tensorflow_datasets keeps its data; without it $TFDS_DATA_DIR, or its own place.",
        group=DATA,
        recorded=False,
    )
    model: str = setting(
        "mlp",
        "The network. lenet5 and tutorial_cnn are for images of at least 12 and 13 pixels, "
        "tutorial_lstm is for rows of characters, and bilstm, bilstm_dl and transformer are for texts.",
        group=DATA,
        choices=(*MODELS, *TEXT_MODELS, *WORD_MODELS),
    )
    width: float = setting(
        1.0,
        "A factor on the number of channels or hidden units; 1 is the network of the papers.",
        group=DATA,
        above=0,
        needs=(Need("model", SCALED),),
    )
    normalization: str = setting(
        "none",
        "What normalizes after the trainable layers. batch takes its statistics from public "
        "examples (without a private mechanism: from the batch, unless there is --public_data); group "
        "is usual for private ResNets; private_batch takes running statistics that are learned as "
        "weights are, with clipping and noise.",
        group=DATA,
        choices=("none", "layer", "layer_affine", "group", "batch", PRIVATE_BATCH),
        needs=(_NO_NORMALIZATION,),
    )
    normalize_output: bool = setting(
        False,
        "Whether the output layer is normalized too.",
        group=DATA,
        needs=(Need("normalization", ("layer", "layer_affine", "group", "batch", PRIVATE_BATCH)),),
    )
    activation: str = setting(
        "relu", "The activation of the hidden layers.", group=DATA, choices=ACTIVATIONS
    )
    public_data: str | None = setting(
        None,
        "Where the public examples come from; without it kmnist for mnist, cifar100 for cifar10 and "
        "strokes (drawn at random) for digits.",
        group=DATA,
        choices=("kmnist", "cifar100", "strokes"),
        needs=(_BATCH,),
    )
    public_examples: int = setting(
        30,
        "How many public examples there are; the papers have 30 and 128.",
        group=DATA,
        at_least=2,
        needs=(_BATCH,),
    )
    statistics: str = setting(
        "example",
        "What the statistics of --normalization=batch are taken over: example, the public examples "
        "and one example at a time; batch, the whole lot, as in the papers, which needs 2L-1 times "
        "the noise. So it is with --normalization=private_batch in training.",
        group=DATA,
        choices=("example", "batch"),
        needs=(Need("normalization", ("batch", PRIVATE_BATCH)),),
    )
    truncation: float = setting(
        3.0,
        "The number to which the inputs of --normalization=private_batch are truncated for its "
        "statistics, C' in the paper.",
        group=DATA,
        above=0,
        needs=(_PRIVATE_BATCH,),
    )
    statistics_share: float = setting(
        0.2,
        "The factor of the running statistics in the vector that is clipped: a larger one gives more "
        "of the privacy budget to them, and less to the weights.",
        group=DATA,
        above=0,
        needs=(_PRIVATE_BATCH,),
    )
    moving_rate: float = setting(
        0.02,
        "The weight of a lot in the running statistics, alpha in the paper's equations 9 and 10; a "
        "decay of the learning rate decays it, too.",
        group=DATA,
        above=0,
        below=1,
        needs=(_PRIVATE_BATCH,),
    )

    batch_size: int = setting(
        256,
        "The nominal lot size: the logical batch of one step.",
        group=TRAINING,
        at_least=1,
        argument="lot_size",
    )
    epochs: float = setting(
        15.0, "How many passes over the data are made.", group=TRAINING, above=0, rival="steps"
    )
    steps: int | None = setting(
        None,
        "How many steps are taken, instead of --epochs.",
        group=TRAINING,
        at_least=1,
        rival="epochs",
    )
    learning_rate: float = setting(0.15, "The learning rate.", group=TRAINING, above=0)
    learning_rate_decay: float = setting(
        1.0, "The factor on the learning rate after every epoch.", group=TRAINING, above=0
    )
    optimizer: str = setting(
        "sgd",
        "The update rule that the private gradients are given to.",
        group=TRAINING,
        choices=("sgd", "adam", "adamw", "adagrad", "rmsprop", "nadam"),
        rule=True,
    )
    momentum: float = setting(
        0.0, "The momentum of sgd.", group=TRAINING, at_least=0, below=1, rule=True, needs=(_SGD,)
    )
    nesterov: bool = setting(
        False,
        "Whether the momentum of sgd is Nesterov's.",
        group=TRAINING,
        rule=True,
        needs=(_SGD, Need("momentum")),
    )
    weight_noise: float = setting(
        0.0,
        "The standard deviation of constant Gaussian noise on the trainable weights, one draw for each "
        "lot, in training and in testing (SI-DPSGD, section 3).",
        group=TRAINING,
        at_least=0,
        needs=(_NOT_PRIVATE,),
    )
    noisy_weights: str = setting(
        "all",
        "Which trainable weights have --weight_noise; kernels leaves out biases and the scales and "
        "offsets of normalizations.",
        group=TRAINING,
        choices=("all", "kernels"),
        needs=(_WEIGHT_NOISE,),
    )
    noise_draws: int = setting(
        5,
        "Over how many draws of --weight_noise the test accuracy is the mean.",
        group=TRAINING,
        at_least=1,
        needs=(_WEIGHT_NOISE,),
    )
    update_noise: float = setting(
        0.0,
        "The standard deviation of Gaussian noise on every entry of the lot's mean gradient in the "
        "updates of sgd (SI-DPSGD, section 3).",
        group=TRAINING,
        at_least=0,
        needs=(_NOT_PRIVATE, _SGD),
    )
    sampling: str = setting(
        "poisson",
        "How lots are drawn; the accounting follows it.",
        group=TRAINING,
        choices=(
            "poisson",
            "random_allocation",
            "cyclic",
            "shuffle",
            "with_replacement",
            "fixed_size",
            "cyclic_poisson",
        ),
    )
    groups: int | None = setting(
        None,
        "How many groups of the data take turns with --sampling=cyclic_poisson.",
        group=TRAINING,
        at_least=1,
        needs=(Need("sampling", ("cyclic_poisson",)),),
    )
    physical_batch_size: int | None = setting(
        None,
        "How many examples are in memory at once; without it the whole lot.",
        group=TRAINING,
        at_least=1,
    )

    l2_norm_clip: float = setting(
        1.0,
        "The L2 norm to which each example's gradient is clipped.",
        group=CLIPPING,
        above=0,
        private=True,
    )
    clipping: str = setting(
        "global",
        "How gradients are bounded: as one vector; layer by layer, each at its share; each layer at "
        "the clip norm; normalized; or at a clip norm that follows a quantile of the norms.",
        group=CLIPPING,
        choices=("global", "per_layer", "each_layer", "automatic", "adaptive"),
        private=True,
    )
    microbatches: int | None = setting(
        None,
        "How many microbatches a lot has; without it one for each example. Larger ones cost 2C.",
        group=CLIPPING,
        at_least=1,
        private=True,
        argument="num_microbatches",
    )
    target_quantile: float | None = setting(
        None,
        "The fraction of gradients that --clipping=adaptive leaves unclipped.",
        group=CLIPPING,
        above=0,
        below=1,
        private=True,
        needs=(_ADAPTIVE,),
    )
    quantile_learning_rate: float | None = setting(
        None,
        "The learning rate of the clip norm of --clipping=adaptive.",
        group=CLIPPING,
        above=0,
        private=True,
        needs=(_ADAPTIVE,),
    )
    quantile_noise_multiplier: float | None = setting(
        None,
        "The noise on the count of unclipped gradients of --clipping=adaptive; without it 5 times "
        "the noise multiplier, which sum and count share.",
        group=CLIPPING,
        above=0,
        private=True,
        needs=(_ADAPTIVE,),
    )

    learning_rate_exponent: float | None = setting(
        None,
        "The gamma of the learning rate eta_0 / t^gamma, for dp_dropout and sgld.",
        group=OWN,
        at_least=0,
        own=True,
    )
    composition: str | None = setting(
        None,
        "The paper's recipe that the claimed epsilon follows, for dp_dropout and sgld.",
        group=OWN,
        choices=("ac", "ac_as_printed", "zcdp", "zcdp_a", "zcdp_c", "zcdp_as_printed"),
        own=True,
    )
    release: str | None = setting(
        None,
        "What si_dpsgd releases: theta, one noisy draw; or mu, the un-noised means, as the authors' "
        "code does (the proven epsilon is then infinite).",
        group=OWN,
        choices=("theta", "mu"),
        own=True,
    )
    noise: str | None = setting(
        None, "The family of the noise of discrete_sgd.", group=OWN, choices=FAMILIES, own=True
    )
    degrees_of_freedom: float | None = setting(
        None,
        "The degrees of freedom of --noise=student_t, for discrete_sgd.",
        group=OWN,
        above=0,
        own=True,
        needs=(Need("noise", ("student_t", None)),),
    )
    encode: bool | None = setting(
        None, "Whether discrete_sgd encodes gradients.", group=OWN, own=True
    )
    denoise: bool | None = setting(
        None, "Whether discrete_sgd denoises the noisy sum.", group=OWN, own=True
    )
    codebook_size: int | None = setting(
        None,
        "How many preselected vectors discrete_sgd has.",
        group=OWN,
        at_least=1,
        own=True,
        needs=(Need("encode", (None, True)),),
    )
    strategy: str | None = setting(
        None,
        "How matrix correlates the noise of different steps.",
        group=OWN,
        choices=STRATEGIES,
        own=True,
    )
    bands: int | None = setting(
        None,
        "How many coefficients the strategy of matrix has.",
        group=OWN,
        at_least=1,
        own=True,
        needs=(Need("strategy", ("banded_toeplitz", "sqrt_toeplitz", None)),),
    )
    objective: str | None = setting(
        None,
        "The error over the steps that --strategy=banded_toeplitz minimizes, for matrix.",
        group=OWN,
        choices=OBJECTIVES,
        own=True,
        needs=(Need("strategy", ("banded_toeplitz", None)),),
    )

    test_every: int | None = setting(
        None,
        "After how many epochs the test accuracy of what would be released then is measured, for a "
        "curve in run.json and TensorBoard; the proven epsilon covers the weights of every step.",
        group=EXECUTION,
        at_least=1,
    )
    validation_split: float | None = setting(
        None,
        "The share of the training examples that is not trained on, and whose accuracy says when "
        "training ends. These examples have no guarantee.",
        group=TRAINING,
        above=0,
        below=1,
    )
    patience: int = setting(
        3,
        "After how many epochs without a better accuracy on the validation examples training ends.",
        group=TRAINING,
        at_least=1,
        needs=(Need("validation_split", said="--validation_split"),),
    )
    engine: str = setting(
        "auto",
        "How per-example gradients are computed.",
        group=EXECUTION,
        choices=("auto", "ghost", "vectorized", "loop"),
        private=True,
    )
    jit_compile: bool = setting(
        False, "Whether the training step is compiled with XLA.", group=EXECUTION
    )
    seed: int | None = setting(
        None,
        "Decides the initial weights and whatever else is public. Noise and lots stay secret.",
        group=EXECUTION,
        at_least=0,
        below=2**32,
    )
    insecure_seed: int | None = setting(
        None,
        "Decides noise and lots too, for debugging, so that nothing finite is proven. It is not "
        "recorded.",
        group=EXECUTION,
        recorded=False,
        at_least=0,
    )

    @property
    def private(self) -> bool:
        """Whether the training is private: its mechanism is not "none"."""
        return self.mechanism != NONE

    @property
    def takes_public_data(self) -> bool:
        """Whether normalization takes its statistics from public examples."""
        if self.normalization != "batch":
            return False
        return self.private or self.public_data is not None

    def recorded(self) -> dict:
        """Returns the settings that run.json holds.

        `Experiment(**recorded)` is this experiment, except for the settings that are never written:
        the seed of the noise and the folder of the data.
        """
        return {name: getattr(self, name) for name, known in SETTINGS.items() if known.recorded}

    def __post_init__(self):
        for name, known in SETTINGS.items():
            known.check(getattr(self, name))
        values = vars(self)
        for name, known in SETTINGS.items():
            if values[name] != known.default and (unused := why_unused(known, values)):
                raise ValueError(unused.sentence)
        check_together(self)
        if self.private and self.epsilon is None and self.noise_multiplier is None:
            raise ValueError("Expected --epsilon or --noise_multiplier. Found neither.")
        epsilon = 1.0 if self.epsilon is None else self.epsilon
        PrivacyBudget(epsilon, self.delta, self.guarantee, self.adjacency)


def _settings() -> dict[str, Setting]:
    hints = typing.get_type_hints(Experiment)
    known = {}
    for field in dataclasses.fields(Experiment):
        hint = hints[field.name]
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        known[field.name] = dataclasses.replace(
            field.metadata["setting"],
            name=field.name,
            kind=next(kind for kind in kinds if kind is not types.NoneType),
            optional=types.NoneType in kinds,
        )
    return known


# All settings by name, in the order of the fields.
SETTINGS: dict[str, Setting] = _settings()
