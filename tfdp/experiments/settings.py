"""The settings of an experiment, each declared once.

Each field of `Experiment` declares its type, help text, default, allowed values and required
settings; `tfdp._settings` derives the rest. Settings shared with the accountant are declared in
`tfdp.accounting.command.common`. A new mechanism declares its settings in one of the two and names them
in its `settings`.

This module imports neither TensorFlow nor Keras.
"""

import dataclasses
import shlex
import textwrap

from tfdp._settings import Need, Setting, flag_of, setting
from tfdp.accounting import PrivacyBudget, sampling_names
from tfdp.accounting.command import common
from tfdp.accounting.mechanisms import NoMechanism, mechanism_class
from tfdp.data.datasets import DATASETS
from tfdp.experiments import own_data
from tfdp.experiments.own_data import TFDS, kind_of
from tfdp.experiments.public_data import PUBLIC
from tfdp.models import MODELS, NORMALIZATIONS, PRIVATE_BATCH

ACTIVATIONS = ("relu", "tanh", "elu", "gelu", "leaky_relu", "selu", "sigmoid", "silu", "softplus")
NONE = NoMechanism.name
MULTI_WORKER = "multi_worker"
# The networks for images, for rows of characters, and for texts.
IMAGE_MODELS = tuple(name for name, known in MODELS.items() if not known.takes_tokens)
TEXT_MODELS = ("tutorial_lstm",)
WORD_MODELS = ("bilstm", "bilstm_dl", "transformer")
TABLE_MODELS = ("mlp", "linear", "hidden_500", "hidden_1000", "lenet_300_100")
_PRIVATE = Need("mechanism", lambda name: name != NONE)
_RULE = Need("mechanism", lambda name: mechanism_class(name).update_rules != "own")
_BATCH = Need("normalization", ("batch",))
_NOT_PRIVATE = Need("mechanism", (NONE,))
_WEIGHT_NOISE = Need("weight_noise", bool)
_SGD = Need("optimizer", ("sgd",))
_NO_NORMALIZATION = Need("model", lambda name: MODELS[name].normalizations != ("none",))
_SCALED = Need("model", lambda name: MODELS[name].scales)
_WORDS = Need("model", WORD_MODELS)
_LOADED = Need("dataset", lambda name: name != "digits" and not own_data.is_own(name))
_OWN = Need("dataset", own_data.is_own)
_CSV = Need("dataset", lambda name: own_data.place_of(name)[0] == "csv")
_FOLDER = Need("dataset", lambda name: own_data.place_of(name)[0] == "folder")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """The settings of one training. `train.py` has a flag with the name of each setting.

    If `noise_multiplier` is None, the noise is calibrated to `epsilon`. Otherwise `epsilon` is
    ignored, and the epsilon of the run follows from the noise.

    Args:

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

    mechanism: str = common.mechanism.field(group="Privacy")
    epsilon: float | None = common.epsilon.field(
        help="The privacy budget, for which the noise is computed; 2 if neither --epsilon nor "
        "--noise_multiplier is set.",
        needs=(_PRIVATE,),
    )
    delta: float = common.delta.field()
    guarantee: str = common.guarantee.field(needs=(_PRIVATE,))
    adjacency: str = common.adjacency.field()
    noise_multiplier: float | None = common.noise_multiplier.field(needs=(_PRIVATE,))
    noise_decay: float | None = setting(
        "The factor on the noise after every epoch; below 1, later epochs have less noise.",
    )

    dataset: str = setting(
        "The data. digits is included; the others come from tensorflow_datasets: "
        f"{', '.join(sorted(DATASETS.keys() - {'digits'}))}, or any other data set of examples with a "
        "class label and an image or a text, as NAME or tfds:NAME. They are in $TFDS_DATA_DIR. "
        "Your own data are folder:PATH, with a folder of images or of .txt files for each class, or "
        "csv:PATH; both are read into memory.",
        "digits",
        group="Data and model",
    )
    label: str | None = setting("The column of a CSV file with the classes.", needs=(_CSV,))
    columns: str | None = setting(
        "A file that declares the columns of a CSV file, one per line: 'age: number 0 100', 'job: "
        "category teacher, nurse', 'id: ignore'. The declarations have to be public knowledge.",
        needs=(_CSV,),
    )
    test: str | None = setting(
        "A folder or CSV file with the test examples; by default every fifth row of the data.",
        needs=(_OWN,),
    )
    image_size: int = setting(
        "The height and width to which the images of a folder are resized.", 32, needs=(_FOLDER,)
    )
    train_split: str | None = setting(
        "Other training examples, in the notation of tensorflow_datasets: test[:6080].",
        needs=(_LOADED,),
    )
    test_split: str | None = setting(
        "Other test examples, such as test[6080:]; they must not be training examples.",
        needs=(_LOADED,),
    )
    model: str = setting(
        "The network. lenet5 and tutorial_cnn are for images of at least 12 and 13 pixels, "
        "tutorial_lstm for rows of characters, and bilstm, bilstm_dl and transformer for texts.",
        "mlp",
        choices=tuple(MODELS),
    )
    width: float = setting(
        "A factor on the number of channels or hidden units; 1 is the network of the papers.",
        1.0,
        needs=(_SCALED,),
    )
    normalization: str = setting(
        "The normalization after trainable layers. batch takes its statistics from public "
        "examples (without a private mechanism: from the batch, unless --public_data is set); group "
        "is usual for private ResNets; private_batch learns running statistics like weights, with "
        "clipping and noise.",
        "none",
        choices=NORMALIZATIONS,
        needs=(_NO_NORMALIZATION,),
    )
    normalize_output: bool = setting(
        "Also normalizes the output layer.",
        False,
        needs=(Need("normalization", NORMALIZATIONS[1:]),),
    )
    activation: str = setting("The activation of the hidden layers.", "relu", choices=ACTIVATIONS)
    public_data: str | None = setting(
        "The source of public examples; by default kmnist for mnist, cifar100 for cifar10 and strokes "
        "(drawn at random) for digits.",
        choices=("kmnist", "cifar100", "strokes"),
        needs=(_BATCH,),
    )
    public_examples: int = setting(
        "The number of public examples; the papers use 30 and 128.",
        30,
        interval="[2, inf)",
        needs=(_BATCH,),
    )
    statistics: str = setting(
        "The examples behind the statistics of --normalization=batch: example, the public examples "
        "and a single example; batch, the whole lot, as in the papers, which needs 2L-1 times "
        "the noise. The same applies to --normalization=private_batch in training.",
        "example",
        choices=("example", "batch"),
        needs=(Need("normalization", ("batch", PRIVATE_BATCH)),),
    )

    sequence_length: int = setting(
        "The number of words used of each text; shorter texts are padded. The papers use 20 and 64. "
        "Each word has one of 10,000 ids, by a fixed public hash.",
        64,
        group="Words, for texts",
        needs=(_WORDS,),
    )
    embeddings: str = setting(
        "The word vectors, random at the start: trained or frozen.",
        "trained",
        choices=("trained", "frozen"),
        needs=(_WORDS,),
    )

    initial_weights: str | None = setting(
        "A model.keras of the same network, trained on PUBLIC data, to start from; an output layer "
        "with other classes starts at random. By passing a file, you declare that its weights do not "
        "depend on the private data.",
        group="Pre-training and fine-tuning",
    )
    trainable_layers: str | None = setting(
        "The layers to train, by names or patterns (logits,dense_*). All others are frozen."
    )

    batch_size: int = common.lot_size.field(default=256, group="Training")
    epochs: float = common.epochs.field(default=15.0)
    steps: int | None = common.steps.field()
    learning_rate: float = common.learning_rate.field(default=0.15)
    learning_rate_decay: float = common.learning_rate_decay.field()
    optimizer: str = setting(
        "The update rule for the private gradients.",
        "sgd",
        choices=("sgd", "adam", "adamw", "adagrad", "rmsprop", "nadam"),
        needs=(_RULE,),
    )
    momentum: float = common.momentum.field(needs=(_RULE, _SGD))
    weight_noise: float = setting(
        "The standard deviation of constant Gaussian noise on the trainable weights, one draw for each "
        "lot, in training and in testing (SI-DPSGD, section 3).",
        0.0,
        interval="[0, inf)",
        needs=(_NOT_PRIVATE,),
    )
    noisy_weights: str = setting(
        "The weights with --weight_noise; kernels excludes biases, scales and offsets.",
        "all",
        choices=("all", "kernels"),
        needs=(_WEIGHT_NOISE,),
    )
    noise_draws: int = setting(
        "The number of draws of --weight_noise over which the test accuracy is averaged.",
        5,
        needs=(_WEIGHT_NOISE,),
    )
    update_noise: float = setting(
        "The standard deviation of Gaussian noise on every entry of the lot's mean gradient in the "
        "updates of sgd (SI-DPSGD, section 3).",
        0.0,
        interval="[0, inf)",
        needs=(_NOT_PRIVATE, _SGD),
    )
    sampling: str = common.sampling.field(
        default="poisson",
        choices=tuple(
            name for name in sampling_names() if name not in ("unknown", "once_per_epoch")
        ),
    )
    groups: int | None = common.groups.field()
    nominal_examples: int | None = setting(
        "The number of examples that determines the sampling probability, fixed without looking at the "
        "data; --adjacency=add_or_remove_one needs it.",
        needs=(Need("sampling", ("poisson",)),),
    )
    physical_batch_size: int | None = setting(
        "The number of examples in memory at once; by default the whole lot."
    )

    l2_norm_clip: float = setting(
        "The L2 norm to which each example's gradient is clipped.",
        1.0,
        group="Clipping",
        needs=(_PRIVATE,),
    )
    clipping: str = setting(
        "How gradients are bounded: as one vector; layer by layer, each at its share; each layer at "
        "the clip norm; normalized; or at a clip norm that follows a quantile of the norms.",
        "global",
        choices=("global", "per_layer", "each_layer", "automatic", "adaptive"),
        needs=(_PRIVATE,),
    )
    microbatches: int | None = setting(
        "The number of microbatches; by default one per example. Larger ones have sensitivity 2C.",
        needs=(_PRIVATE,),
    )

    learning_rate_exponent: float | None = setting(
        "The gamma of the learning rate eta_0 / t^gamma, for dp_dropout and sgld.",
        group="Settings of some mechanisms",
        interval="[0, inf)",
    )
    composition: str | None = common.composition.field()
    release: str | None = common.release.field()
    noise: str | None = common.noise.field()
    degrees_of_freedom: float | None = common.degrees_of_freedom.field()
    encode: bool | None = setting("Encodes gradients, for discrete_sgd.")
    denoise: bool | None = setting("Denoises the noisy sum, for discrete_sgd.")
    codebook_size: int | None = setting(
        "The number of preselected vectors, for discrete_sgd.",
        needs=(Need("encode", (None, True)),),
    )
    strategy: str | None = common.strategy.field()
    bands: int | None = common.bands.field()
    objective: str | None = common.objective.field()

    test_every: int | None = setting(
        "The number of epochs between two measurements of the test accuracy, for a curve in run.json "
        "and TensorBoard; the proven epsilon covers the weights of every step.",
        group="Execution",
    )
    jit_compile: bool = setting("Compiles the training step with XLA.", False)
    distribute: str | None = setting(
        "Divides each lot among all GPUs of this machine (mirrored), or of the machines in TF_CONFIG, "
        "which run the same command (multi_worker). The weights are as on one device, apart from "
        "rounding.",
        choices=("mirrored", MULTI_WORKER),
        needs=(_PRIVATE, Need("jit_compile", (False,))),
    )
    devices: int | None = setting(
        "The number of GPUs for --distribute; by default all. Without a GPU, the CPU is divided into "
        "so many parts, to try it.",
        needs=(Need("distribute", ("mirrored",)),),
        interval="[2, inf)",
    )
    seed: int | None = setting(
        "The seed of the initial weights and all that is public. Noise and lots stay secret.",
        interval="[0, 4294967296)",
    )
    insecure_seed: int | None = setting(
        "A seed of noise and lots, for debugging: the proven epsilon is infinite. Not recorded.",
        interval="[0, inf)",
        recorded=False,
    )

    @property
    def private(self) -> bool:
        """Whether the training is private: its mechanism is not "none"."""
        return self.mechanism != NONE

    @property
    def takes_public_data(self) -> bool:
        """Whether normalization takes its statistics from public examples."""
        return self.normalization == "batch" and (self.private or self.public_data is not None)

    def recorded(self) -> dict:
        """Returns the settings that run.json records.

        `Experiment(**recorded)` is this experiment, except for the seed of the noise, which is never
        written.
        """
        return {name: getattr(self, name) for name, known in SETTINGS.items() if known.recorded}

    def _changed(self) -> dict:
        """Returns the recorded settings that are not defaults."""
        return {n: v for n, v in self.recorded().items() if v != SETTINGS[n].default}

    def __repr__(self):
        changed = (f"{name}={value!r}" for name, value in self._changed().items())
        return f"Experiment({', '.join(changed)})"

    def __str__(self):
        """Returns the flags of the recorded settings that are not defaults, as one would type them."""
        return shlex.join(flag_of(name, value) for name, value in self._changed().items())

    def __post_init__(self):
        if self.private and self.epsilon is None and self.noise_multiplier is None:
            object.__setattr__(self, "epsilon", common.USUAL_EPSILON)  # the dataclass is frozen
        if isinstance(self.dataset, str):
            object.__setattr__(self, "dataset", self.dataset.removeprefix(TFDS))
        values = vars(self)
        for name, known in SETTINGS.items():
            known.check(values[name])
        own_data.check_settings(self)  # which may mean another data set, on which effects depend
        for name, known in SETTINGS.items():
            if values[name] != known.default:
                known.check_effect(values)
        check_together(self)
        epsilon = 1.0 if self.epsilon is None else self.epsilon
        PrivacyBudget(epsilon, self.delta, self.guarantee, self.adjacency)


def check_together(experiment: Experiment) -> None:
    """Raises ValueError if settings conflict that are valid by themselves.

    It checks conflicts that would not be found elsewhere, or only after a download.
    """
    check_model(experiment, kind_of(experiment.dataset))
    public = experiment.public_data or PUBLIC.get(experiment.dataset)
    if experiment.private and experiment.takes_public_data and experiment.dataset == public:
        raise ValueError(
            f"--dataset={public} cannot be both private and public. Use --public_data=strokes, or "
            "--normalization=layer."
        )
    averages = experiment.optimizer == "sgd" and not experiment.momentum
    if experiment.normalization == PRIVATE_BATCH and not averages:
        raise ValueError(
            f"--normalization={PRIVATE_BATCH} needs --optimizer=sgd --momentum=0: only then are its "
            "running statistics moving averages. Pass them, or use --normalization=layer."
        )


def check_model(experiment: Experiment, kind: str | None) -> None:
    """Raises ValueError if the network does not support a kind of examples. None passes."""
    fitting = {
        "images": IMAGE_MODELS,
        "rows": TEXT_MODELS,
        "texts": WORD_MODELS,
        "tables": TABLE_MODELS,
    }.get(kind or "")
    if fitting is not None and experiment.model not in fitting:
        raise ValueError(
            f"--model={experiment.model} does not fit --dataset={experiment.dataset}, whose examples "
            f"are {kind}. Use --model={' or '.join(fitting)}."
        )


# All settings by name, in the order of the fields.
SETTINGS: dict[str, Setting] = common.settings_of(Experiment)
_TEXTS = (
    textwrap.fill(f"{name}: {known.help}", 100, initial_indent=" " * 8, subsequent_indent=" " * 12)
    for name, known in SETTINGS.items()
)
if Experiment.__doc__:  # none with python -OO
    Experiment.__doc__ = Experiment.__doc__.replace("Args:\n", "\n".join(["Args:", *_TEXTS, ""]))
