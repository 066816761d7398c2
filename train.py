"""Trains a Keras model with differential privacy and says what the privacy is worth.

    python train.py --mechanism=si_dpsgd --epsilon=2
    python train.py --mechanism=dpsgd --dataset=mnist --model=lenet5 --epsilon=3
    python train.py --flagfile=flags/mnist_dpsgd_eps3.cfg

What is not set on the command line or in a --flagfile comes from the recipe
flags/<dataset>_<mechanism>.cfg, where there is one. --epsilon is the PROVEN
epsilon unless --guarantee=claimed.
"""

import dataclasses
import os
import pathlib
import shlex
import sys

from absl import app, flags, logging

FLAGS = flags.FLAGS
_ROOT = pathlib.Path(__file__).resolve().parent

flags.DEFINE_enum(
    "mechanism",
    "si_dpsgd",
    ["none", "dpsgd", "si_dpsgd", "discrete_sgd", "dp_dropout", "sgld", "matrix"],
    "none: no privacy. dpsgd: noise on the gradients. si_dpsgd: noise in the weights. discrete_sgd: "
    "encoded gradients. dp_dropout, sgld: Langevin dynamics. matrix: correlated noise.",
)
flags.DEFINE_string("dataset", "digits", "digits (embedded, no download), mnist or cifar10.")
flags.DEFINE_string(
    "data_dir",
    None,
    "Where tensorflow_datasets keeps its data; default: $TFDS_DATA_DIR, or its own.",
)
flags.DEFINE_string(
    "model", None, "linear, mlp, hidden_500, hidden_1000, lenet_300_100, lenet5 or tutorial_cnn."
)
flags.DEFINE_enum(
    "normalization",
    None,
    ["none", "layer", "layer_affine", "batch"],
    "Normalization after the trainable layers; batch takes its statistics from public examples "
    "(without a private mechanism: from the batch, unless there is --public_data).",
)
flags.DEFINE_enum(
    "public_data",
    None,
    ["kmnist", "cifar100", "strokes"],
    "Where the public examples come from; default: kmnist for mnist, cifar100 for cifar10, strokes "
    "(drawn at random) for digits.",
)
flags.DEFINE_integer("public_examples", 30, "How many public examples; the papers have 30 and 128.")
flags.DEFINE_enum(
    "statistics",
    "example",
    ["example", "batch"],
    "Statistics of --normalization=batch: example takes them over the public examples and one "
    "example at a time; batch over the whole lot, as the papers do, which needs 2L-1 times the noise.",
)
flags.DEFINE_bool("normalize_output", None, "Whether the output layer is normalized too.")
flags.DEFINE_string("activation", None, "Activation of the hidden layers.")

flags.DEFINE_float("epsilon", None, "Privacy budget, default 2; the noise is computed from it.")
flags.DEFINE_float("delta", 1e-5, "Probability parameter of the guarantee, below 1/N.")
flags.DEFINE_enum(
    "guarantee",
    "proven",
    ["proven", "claimed"],
    "Which epsilon --epsilon means: a theorem about the run, or the paper's own accounting.",
)
flags.DEFINE_enum(
    "adjacency",
    "zero_out",
    ["zero_out", "replace_one", "add_or_remove_one"],
    "What neighbouring data sets differ in.",
)
flags.DEFINE_float("noise_multiplier", None, "Noise over clip norm, instead of --epsilon.")
flags.DEFINE_float("l2_norm_clip", None, "L2 norm to which each example's gradient is clipped.")
flags.DEFINE_enum(
    "clipping",
    "global",
    ["global", "per_layer", "each_layer", "automatic", "adaptive"],
    "How gradients are bounded: as one vector; layer by layer, each at its share; each layer at the "
    "clip norm; normalized; or at a clip norm that follows a quantile of the norms.",
)
flags.DEFINE_float(
    "target_quantile", None, "--clipping=adaptive: fraction of gradients to leave unclipped."
)
flags.DEFINE_float("quantile_learning_rate", None, "--clipping=adaptive: of the clip norm.")
flags.DEFINE_float(
    "quantile_noise_multiplier",
    None,
    "--clipping=adaptive: noise on the count of unclipped gradients; default 5 times the noise "
    "multiplier, which sum and count share.",
)

flags.DEFINE_integer("batch_size", None, "Nominal lot size: the logical batch of one step.")
flags.DEFINE_float("epochs", None, "Passes over the data.")
flags.DEFINE_integer("steps", None, "Number of steps, instead of --epochs.")
flags.DEFINE_float("learning_rate", None, "Learning rate.")
flags.DEFINE_float("learning_rate_decay", None, "Factor on the learning rate after every epoch.")
flags.DEFINE_float(
    "learning_rate_exponent",
    None,
    "dp_dropout, sgld: gamma of the learning rate eta_0 / t^gamma.",
)
flags.DEFINE_enum(
    "optimizer",
    None,
    ["sgd", "adam", "adamw", "adagrad", "rmsprop", "nadam"],
    "Update rule that the private gradients are given to.",
)
flags.DEFINE_float("momentum", None, "Momentum of sgd.")
flags.DEFINE_bool("nesterov", None, "Nesterov momentum for sgd.")
flags.DEFINE_integer(
    "microbatches", None, "Microbatches per lot; default: one per example. Larger groups cost 2C."
)
flags.DEFINE_integer("physical_batch_size", None, "Examples in memory at once; default: the lot.")
flags.DEFINE_enum(
    "sampling",
    None,
    ["poisson", "cyclic", "shuffle", "with_replacement", "cyclic_poisson"],
    "How lots are drawn; the accounting follows it.",
)
flags.DEFINE_integer("groups", None, "cyclic_poisson: groups of the data that take turns.")
flags.DEFINE_enum(
    "release",
    None,
    ["theta", "mu"],
    "si_dpsgd: theta releases one noisy draw; mu the un-noised means, as the authors' code does "
    "(proven epsilon: infinite).",
)
flags.DEFINE_enum(
    "noise",
    None,
    ["gaussian", "student_t", "laplace", "sech", "variance_gamma", "cauchy"],
    "discrete_sgd: family of the noise.",
)
flags.DEFINE_float("degrees_of_freedom", None, "discrete_sgd: of student_t noise.")
flags.DEFINE_bool("encode", None, "discrete_sgd: whether gradients are encoded.")
flags.DEFINE_bool("denoise", None, "discrete_sgd: whether the noisy sum is denoised.")
flags.DEFINE_integer("codebook_size", None, "discrete_sgd: number of preselected vectors.")
flags.DEFINE_enum(
    "composition",
    None,
    ["ac", "ac_as_printed", "zcdp", "zcdp_a", "zcdp_c", "zcdp_as_printed"],
    "dp_dropout, sgld: the paper's recipe that the claimed epsilon follows.",
)
flags.DEFINE_enum(
    "strategy",
    None,
    ["identity", "prefix_sum", "sqrt_toeplitz", "banded_toeplitz"],
    "matrix: how the noise of different steps is correlated.",
)
flags.DEFINE_integer("bands", None, "matrix: coefficients of the strategy.")
flags.DEFINE_enum(
    "objective", None, ["mean", "max"], "matrix: error that banded_toeplitz minimizes."
)
flags.DEFINE_enum(
    "engine", "auto", ["auto", "ghost", "vectorized"], "How per-example gradients are computed."
)
flags.DEFINE_bool("jit_compile", False, "Compile the training step with XLA.")
flags.DEFINE_integer(
    "seed",
    None,
    "Decides the initial weights and whatever else is public. Noise and lots stay secret.",
)
flags.DEFINE_integer(
    "insecure_seed",
    None,
    "For debugging: decides noise and lots too, so that nothing finite is proven. It is not recorded.",
)
flags.DEFINE_string(
    "model_dir",
    None,
    "Where run.json, model.keras and TensorBoard's log go; default: a new runs/<name>_<number>.",
)
flags.DEFINE_bool("overwrite", False, "Replace an earlier result in --model_dir.")

_DEFAULTS = {
    "model": "mlp",
    "normalization": "none",
    "batch_size": 256,
    "epochs": 15.0,
    "learning_rate": 0.15,
    "l2_norm_clip": 1.0,
    "sampling": "poisson",
}
_DEFAULT_EPSILON = 2.0
# Flags that stand for each other: setting one on the command line silences the recipe's other.
_RIVALS = ({"epsilon", "noise_multiplier"}, {"epochs", "steps"})


def recipe_path(dataset: str, mechanism: str) -> pathlib.Path:
    """The flag file that fills in what was not set."""
    return _ROOT / "flags" / f"{dataset}_{mechanism}.cfg"


def _fill_from_recipe() -> None:
    path = recipe_path(FLAGS.dataset, FLAGS.mechanism)
    # absl expands --flagfile before it parses, and keeps no record of it.
    own_file = any(argument.lstrip("-").startswith("flagfile") for argument in sys.argv[1:])
    if own_file or not path.exists():
        return
    given = {name for name in FLAGS if FLAGS[name].present}
    silenced = set().union(*(rivals for rivals in _RIVALS if rivals & given))
    for line in path.read_text().splitlines():
        line = line.strip()
        if not line.startswith("--"):
            continue
        name, _, value = line[2:].partition("=")
        if name.startswith("no") and not value:
            name, value = name[2:], "false"
        if name not in given | silenced:
            FLAGS[name].parse(value or "true")


def settings() -> dict:
    """The experiment's fields, from the flags."""
    from tfdp.experiments import Experiment

    values = {}
    for field in dataclasses.fields(Experiment):
        value = FLAGS[field.name].value
        if value is None:
            value = _DEFAULTS.get(field.name)
        if value is not None:
            values[field.name] = value
    if FLAGS.epsilon is None and FLAGS.noise_multiplier is None and FLAGS.mechanism != "none":
        values["epsilon"] = _DEFAULT_EPSILON
    if FLAGS.noise_multiplier is not None and FLAGS.epsilon is not None:
        raise ValueError("Expected one of --epsilon and --noise_multiplier. Found both.")
    return values


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Found: {' '.join(argv[1:])}")
    _fill_from_recipe()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.set_verbosity(logging.WARNING)
    from tfdp.accounting import BudgetExhausted
    from tfdp.data import DataUnavailable
    from tfdp.experiments import Experiment

    try:
        train_one(Experiment(**settings()), FLAGS.model_dir)
    except (
        ValueError,
        NotImplementedError,
        DataUnavailable,
        BudgetExhausted,
        FloatingPointError,
    ) as error:
        print(f"train.py: error: {error}", file=sys.stderr)
        return 2
    return 0


def train_one(experiment, model_dir: str | os.PathLike | None) -> None:
    """Trains, writes the result into `model_dir` or a new folder in runs/, and prints it."""
    from tfdp.experiments import ResultFolder, print_table, run_into

    place = model_dir or _ROOT / "runs" / f"{experiment.dataset}_{experiment.mechanism}"
    with ResultFolder(place, overwrite=FLAGS.overwrite, numbered=not model_dir) as folder:
        # TensorBoard reads the log while it is written; at the end it moves with the result.
        print(f"While it trains: tensorboard --logdir {_shown(folder.log_dir)}", flush=True)
        result = run_into(folder, experiment)
    print()
    print_table(result)
    shown = _shown(folder.path)
    print(
        f"\nIn {shown}: run.json (this table), model.keras (the release), model_card.md, tensorboard/ "
        f"(the log: tensorboard --logdir {shown})."
    )


def _shown(path: str) -> str:
    """A path as one would type it in the current folder."""
    relative = os.path.relpath(path)
    return shlex.quote(path if relative.startswith("..") else relative)


if __name__ == "__main__":
    app.run(main)
