"""Where a training starts: public initial weights, and which layers it may change."""

import fnmatch
import os
from collections.abc import Collection

import keras

from tfdp._compat.files import texts_in
from tfdp._compat.keras import is_graph_of_layers
from tfdp.account import LEDGER_KEY
from tfdp.accounting import Ledger
from tfdp.data.datasets import DATASETS
from tfdp.experiments.files import digest, paths
from tfdp.experiments.rules import NONE
from tfdp.experiments.run_folder import read_record
from tfdp.experiments.settings import Experiment
from tfdp.experiments.words import TABLE
from tfdp.layers import PublicExamples

# Stands for trainings of which no record tells.
UNKNOWN = {"dataset": "data that no record names", "mechanism": NONE}
# Builders whose configurations are data sets with records of their own.
_TASKS = ("glue", "super_glue")


def begin(experiment: Experiment, model: keras.Model) -> tuple[tuple[dict, ...], list[str]]:
    """Loads the initial weights into a fresh network and freezes what is not trained.

    Returns:
        (the earlier trainings of the weights that a record shows, each with its data set and its
        mechanism; sentences about the initial weights and the frozen layers).

    Raises:
        ValueError: the file is no public file of such a network, or no layer has one of the names.
    """
    notes, trained_on, files = [], (), paths(experiment)
    if path := files.get("initial_weights"):
        trained_on = earlier_trainings(experiment, path)
        fresh = load(model, path, keeps={TABLE} if "embeddings" in files else ())
        ledgers = map(Ledger.from_json, texts_in(path, LEDGER_KEY))
        if experiment.private and any(ledger.entries for ledger in ledgers):
            raise ValueError(
                f"Expected --initial_weights of public training. Found {path}, which holds a privacy "
                "ledger: private data were spent on it. Go on with that model in Python, where its "
                "ledger composes with the new training: keras.models.load_model."
            )
        note = f"The initial weights are those of {os.path.basename(path)} (SHA-256 "
        note += f"{digest(path)[:16]}), {_words(trained_on)}; they were declared public."
        notes.append(note + (f" New at random: {', '.join(fresh)}." if fresh else ""))
    if experiment.trainable_layers is not None:
        trained = freeze(model, experiment.trainable_layers)
        notes.append(
            f"Only {', '.join(trained)} {'was' if len(trained) == 1 else 'were'} trained; all other "
            "layers are frozen."
        )
    return trained_on, notes


def _words(trained_on) -> str:
    if trained_on == (UNKNOWN,):
        return "of which no record says what they were trained on"
    return "trained on " + " and then ".join(
        each["dataset"]
        + ("" if each["mechanism"] == NONE else f" by {each['mechanism']}")
        + (f" with public examples of {each['public_data']}" if each.get("public_data") else "")
        for each in trained_on
    )


def earlier_trainings(experiment: Experiment, path: str) -> tuple[dict, ...]:
    """Returns the trainings that made a file of weights, as far as the run.json beside it names them.

    Raises:
        ValueError: for a private experiment, the file comes from a private training, whose spending
            a release does not carry, or from a training on the same data without privacy.
    """
    folder = os.path.dirname(os.path.realpath(path))
    known = tuple(read_record(folder).get("trained_on", ()))
    for each in known if experiment.private else ():
        if each["mechanism"] != NONE:
            raise ValueError(
                f"The --initial_weights in {folder} are the release of a private training "
                f"({each['mechanism']} on {each['dataset']}), whose spending would be left out of the "
                "new statement. Start from public weights."
            )
        for dataset in filter(None, (each["dataset"], each.get("public_data"))):
            if may_share_records(dataset, experiment.dataset):
                raise ValueError(
                    f"The --initial_weights in {folder} were trained on {dataset} without privacy, and "
                    f"would reveal what --dataset={experiment.dataset} is to protect. Start from "
                    "weights of other data."
                )
    return known or (UNKNOWN,)


def may_share_records(one: str, other: str) -> bool:
    """Whether two data sets may share records, as far as their names in tensorflow_datasets tell.

    Versions are left out. Configurations of one builder are mostly the same records in another form,
    but for the tasks of GLUE and SuperGLUE. Data sets are often named after those that they are made
    of: `emnist/mnist`, `mnist_corrupted`. Other relations are not known here, so that weights are
    public on the user's word.
    """
    (base, config), (other_base, other_config) = map(_parts, (one, other))
    if base == other_base:
        return base not in _TASKS or not (config and other_config) or config == other_config
    named = base.startswith(f"{other_base}_") or other_base.startswith(f"{base}_")
    return named or config == other_base or other_config == base


def _parts(dataset: str) -> tuple[str, str]:
    """The builder of a data set and its configuration, which may be ""."""
    spec = DATASETS.get(dataset)
    name = (spec.builder if spec else None) or dataset
    base, _, config = name.removeprefix("huggingface:").partition(":")[0].partition("/")
    return base, config


def load(model: keras.Model, path: str, keeps: Collection[str] = ()) -> tuple[str, ...]:
    """Loads weights of the same network; the output layer stays as drawn where it does not fit.

    Public examples stay those of this network.

    Args:
        model: a built network with fresh weights.
        path: a `.keras` file of such a network.
        keeps: names of layers that stay as they are, such as the vectors of words of another file.

    Returns:
        The names of the layers that stay as they were drawn.

    Raises:
        ValueError: the file is of another network, or cannot be read.
    """
    try:
        found = layers_with_weights(keras.models.load_model(path, compile=False))
    except Exception as error:
        # Keras raises many classes for damaged files.
        raise ValueError(
            f"Expected a .keras file in --initial_weights={path}. Found: "
            f"{' '.join(str(error).split())[:300]}"
        ) from error
    there, outputs = {layer.name: layer for layer in found}, output_layers(model)
    fresh = []
    for layer in layers_with_weights(model):
        source = there.pop(layer.name, None)
        if layer.name in keeps:
            continue
        if source is not None and _shapes(layer) == _shapes(source):
            layer.set_weights(source.get_weights())
        elif layer in outputs:
            fresh.append(layer.name)
        else:
            raise ValueError(
                f"Expected weights of the network '{model.name}' in {path}. Found none that fit the "
                f"layer {layer.name}. Use a file of the same --model, --normalization and words; only "
                "the output layer may differ."
            )
    if there:
        raise ValueError(
            f"Expected weights of the network '{model.name}' in {path}. Found more layers: "
            f"{', '.join(there)}. Use a file of the same --model and --normalization."
        )
    return tuple(fresh)


def _shapes(layer) -> list[tuple]:
    return [tuple(variable.shape) for variable in layer.weights]


def layers_with_weights(model: keras.Model) -> list[keras.Layer]:
    """Returns the layers of a network that have weights, in order, and not those that hold layers."""
    found = []
    for layer in model.layers:
        if isinstance(layer, PublicExamples):
            found += layers_with_weights(layer.network)
        elif is_graph_of_layers(layer):
            found += layers_with_weights(layer)
        elif layer.weights:
            found.append(layer)
    return found


def output_layers(model: keras.Model) -> list[keras.Layer]:
    """Returns the last layer with a matrix of weights, and those behind it."""
    layers = layers_with_weights(model)
    matrices = [i for i, layer in enumerate(layers) if any(len(v.shape) > 1 for v in layer.weights)]
    return layers[matrices[-1] :] if matrices else layers


def freeze(model: keras.Model, trainable: str) -> tuple[str, ...]:
    """Freezes all layers of a network but the named ones.

    Args:
        model: a built network.
        trainable: names or patterns of layers, such as "logits,dense_*".

    Returns:
        The names of the layers that can be trained.

    Raises:
        ValueError: no layer with weights has such a name, or a named one is frozen by --embeddings.
    """
    layers, chosen = layers_with_weights(model), []
    for pattern in (part.strip() for part in trainable.split(",")):
        matched = [layer for layer in layers if fnmatch.fnmatchcase(layer.name, pattern)]
        if not matched:
            raise ValueError(
                "Expected --trainable_layers to name layers among "
                f"{', '.join(layer.name for layer in layers)}. Found {pattern!r}."
            )
        chosen += matched
    for layer in chosen:
        if not layer.trainable:
            raise ValueError(
                f"Expected --trainable_layers without {layer.name}, which is frozen by --embeddings. "
                "Leave it out, or pass --embeddings=trained."
            )
    for layer in layers:
        layer.trainable = layer.trainable and layer in chosen
    return tuple(layer.name for layer in layers if layer.trainable)
