"""Where a training starts: public initial weights, and which layers it may change."""

import dataclasses
import fnmatch
import json
import os
import re
import warnings
import zipfile
from collections.abc import Iterable

import keras
import numpy as np

from tfdp._compat.files import texts_in
from tfdp._compat.keras import is_graph_of_layers
from tfdp.account import LEDGER_KEY
from tfdp.accounting import Ledger
from tfdp.data.datasets import DATASETS
from tfdp.experiments.result_files import DIGESTS, MODEL, RECORD, digest, read_record
from tfdp.experiments.rules import DRAWN_EMBEDDINGS, NONE
from tfdp.experiments.settings import Experiment
from tfdp.experiments.words import table_of
from tfdp.layers import PublicExamples

# Stands for trainings of which no record tells.
UNKNOWN = {"dataset": "data that no record names", "mechanism": NONE}


@dataclasses.dataclass(frozen=True)
class Start:
    """What the training of a network starts from.

    Attributes:
        public: whether the user declared that the initial weights owe nothing to the private data.
        trained_on: the earlier trainings of the weights that a record shows: for each the data set and
            the mechanism.
        notes: sentences about the initial weights and the frozen layers.
    """

    public: bool
    trained_on: tuple[dict, ...]
    notes: tuple[str, ...]


def begin(experiment: Experiment, model: keras.Model) -> Start:
    """Loads the initial weights into a fresh network and freezes what is not trained.

    Raises:
        ValueError: the file is no public file of such a network, or no layer has one of the names.
    """
    notes, trained_on = [], ()
    if experiment.initial_weights is not None:
        path = os.path.expanduser(experiment.initial_weights)
        trained_on = earlier_trainings(experiment, path)
        keeps = [] if experiment.embeddings in DRAWN_EMBEDDINGS else [table_of(model)]
        fresh = load(model, path, keeps)
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
    from_file = experiment.embeddings not in DRAWN_EMBEDDINGS
    return Start(experiment.initial_weights is not None or from_file, trained_on, tuple(notes))


def _words(trained_on) -> str:
    if trained_on == (UNKNOWN,):
        return "of which no record says what they were trained on"
    return "trained on " + " and then ".join(
        each["dataset"]
        + ("" if each["mechanism"] == NONE else f" by {each['mechanism']}")
        + (f" with public examples of {each['public_data']}" if each.get("public_data") else "")
        for each in trained_on
    )


# -- what is known of the weights --------------------------------------------------------------------


def earlier_trainings(experiment: Experiment, path: str) -> tuple[dict, ...]:
    """Returns the trainings that made a file, as far as a record beside it shows them.

    Args:
        experiment: the settings of the new training.
        path: the file of the initial weights.

    Raises:
        ValueError: for a private experiment, the file comes from a private training, whose spending
            a release does not carry, or from a training on the same data without privacy; or the file
            is not the one that its record describes.
    """
    folder = os.path.dirname(os.path.realpath(path))
    record = read_record(folder)
    if experiment.private and not record and os.path.lexists(os.path.join(folder, RECORD)):
        raise ValueError(
            f"Expected {os.path.join(folder, RECORD)}, which tells what the --initial_weights beside "
            "it were trained on. Found it damaged. Put it back; weights that owe nothing to private "
            "data can be moved to a folder of their own."
        )
    trained_on = record.get("trained_on") or ()
    if not isinstance(trained_on, list | tuple) or not all(
        isinstance(each, dict) and each.keys() >= {"dataset", "mechanism"} for each in trained_on
    ):
        raise ValueError(
            f"Expected the run.json in {folder} to list the trainings of the --initial_weights beside "
            f"it. Found {str(trained_on)[:60]!r}. Put the record back as it was."
        )
    trained_on = tuple(trained_on)
    if not trained_on and {"dataset", "mechanism"} <= record.keys():
        trained_on = ({"dataset": record["dataset"], "mechanism": record["mechanism"]},)
    known = trained_on or (UNKNOWN,)
    if record.keys() >= DIGESTS.keys():
        named = {file: name for name, file in DIGESTS.items()}[MODEL]
        if digest(path) != record[named]:
            if os.path.basename(os.path.realpath(path)) == MODEL:
                raise ValueError(
                    f"Expected {path} to be the model of the run.json beside it. Found another file, "
                    "of which nothing is known. Use a whole result, or move the file to a folder of "
                    "its own."
                )
            known = (UNKNOWN,)  # the record may still say what it is not to be used for
    if not experiment.private:
        return known
    for each in trained_on:
        if each["mechanism"] != NONE:
            raise ValueError(
                "Expected --initial_weights of public training. Found the release of a private one "
                f"({each['mechanism']} on {each['dataset']}) in {folder}, whose spending would be left "
                "out of the new statement. Start from public weights."
            )
        for dataset in (each["dataset"], each.get("public_data")):
            if dataset and are_of_the_same(dataset, experiment.dataset):
                raise ValueError(
                    f"Expected --initial_weights that owe nothing to --dataset={experiment.dataset}. "
                    f"Found weights in {folder} that were trained on {dataset} without privacy. Start "
                    "from weights of other data."
                )
    return known


# Builders whose configurations are data sets with records of their own.
_TASKS = ("glue", "super_glue")
# Data sets of tensorflow_datasets whose records come from others that their names do not begin with.
_MADE_OF = {
    "binarized_mnist": ("mnist",),
    "moving_mnist": ("mnist",),
    "emnist": ("mnist",),  # the digits of both are those of NIST's Special Database 19
    "emnist/letters": (),
    "imagenette": ("imagenet2012",),
    "imagewang": ("imagenet2012",),
    "imagenet_resized": ("imagenet2012",),
    "imagenet_lt": ("imagenet2012",),
    "imagenet_pi": ("imagenet2012",),
    "downsampled_imagenet": ("imagenet2012",),
    "stanford_dogs": ("imagenet2012",),
    "stl10": ("imagenet2012",),
    "visual_domain_decathlon/imagenet12": ("imagenet2012",),
    "visual_domain_decathlon/svhn": ("svhn_cropped",),
    "visual_domain_decathlon/vgg-flowers": ("oxford_flowers102",),
    "caltech_birds2011": ("caltech_birds2010",),
    "esnli": ("snli",),
    "glue/ax": ("super_glue/axb",),
    "glue/mnli": ("multi_nli",),
    "glue/mnli_matched": ("glue/mnli", "multi_nli"),
    "glue/mnli_mismatched": ("glue/mnli", "multi_nli"),
    "glue/qnli": ("squad",),
    "glue/rte": ("super_glue/rte",),
    "glue/wnli": ("super_glue/wsc",),
    "super_glue/boolq": ("bool_q",),
    "super_glue/multirc": ("eraser_multi_rc",),
    "super_glue/wsc.fixed": ("super_glue/wsc",),
}
# Data sets that others are named after.
_NAMESAKES = {"mnist", "cifar10", "cifar100", "imagenet2012", "svhn_cropped", "ag_news"}


def are_of_the_same(one: str, other: str) -> bool:
    """Whether two data sets may share records, as far as their names in tensorflow_datasets tell.

    They are compared without versions. Configurations of one builder are mostly the same records in
    another form or another choice of them, and count as the same but for those of GLUE and SuperGLUE,
    which are tasks with texts of their own. Data sets are often named after those that they are made
    of, as `emnist/mnist`, `mnist_corrupted` and `cifar10_n` are; some others are listed here. No list
    can be whole, so weights of a data set that is not named here are public on the user's word.
    """
    (base, config), (other_base, other_config) = map(_parts, (one, other))
    if base == other_base and (base not in _TASKS or not (config and other_config)):
        return True
    roots, other_roots = _roots(base, config), _roots(other_base, other_config)
    named = any(a.startswith(f"{b}_") or b.startswith(f"{a}_") for a in roots for b in other_roots)
    return named or bool(roots & {*other_roots, other_config} or other_roots & {*roots, config})


def _roots(base, config) -> set[str]:
    """A data set, and those that it is made of as far as its name and `_MADE_OF` tell."""
    whole = f"{base}/{config}" if config else base
    found = {whole, *_MADE_OF.get(whole, _MADE_OF.get(base, ()))}
    if base not in _TASKS:
        found.add(base)
    return found | {name for name in _NAMESAKES if base.startswith(f"{name}_")}


def _parts(dataset: str) -> tuple[str, str]:
    """The builder of a data set and its configuration, which may be ""."""
    spec = DATASETS.get(dataset)
    name = (spec.builder if spec else None) or dataset
    name = name.removeprefix("huggingface:").partition(":")[0]
    base, _, config = name.partition("/")
    return base, config


# -- loading -----------------------------------------------------------------------------------------


def load(model: keras.Model, path: str, keeps: Iterable[keras.Variable] = ()) -> tuple[str, ...]:
    """Loads weights of the same network; the output layer stays as drawn where it does not fit.

    Args:
        model: a built network with fresh weights.
        path: a `.keras` or a `.weights.h5` file.
        keeps: variables that stay as they are, such as vectors of words from another file.

    Returns:
        The names of the layers that stay as they were drawn.

    Raises:
        ValueError: the file is of another network, or cannot be read.
    """
    if not path.endswith((".keras", ".weights.h5")):
        raise ValueError(
            "Expected --initial_weights to be a .keras or a .weights.h5 file. Found "
            f"{os.path.basename(path)!r}. Save the network with model.save('name.keras'); "
            "the folder of a result has its network in model.keras."
        )
    _check_names(model, path)
    drawn = [(v, v.numpy()) for v in model.weights if keras.backend.is_float_dtype(v.dtype)]
    # Weights that no number of the file takes the place of show as NaN afterwards.
    for variable, values in drawn:
        variable.assign(np.full_like(values, np.nan))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras warns of every layer that does not fit
            model.load_weights(path, skip_mismatch=True)
    except Exception as error:
        # Keras raises many classes for damaged files and other networks.
        raise ValueError(
            f"Expected weights of the network '{model.name}' in {path}. Found: "
            f"{' '.join(str(error).split())[:300]}. Use a file of the same --model."
        ) from error
    left = {id(v) for v, values in drawn if values.size and np.isnan(v.numpy()).any()}
    fresh = [
        layer for layer in layers_with_weights(model) if any(id(v) in left for v in layer.weights)
    ]
    outputs = output_layers(model)
    if wrong := [layer.name for layer in fresh if layer not in outputs]:
        raise ValueError(
            f"Expected weights of the network '{model.name}' in {path}. Found none that fit the layers "
            f"{', '.join(wrong)}. Use a file of the same --model, --normalization and words; only the "
            "output layer may differ."
        )
    # Public examples are those of this training, also where the file holds as many.
    left |= {id(v) for layer in model.layers for v in _public_examples(layer)}
    left |= {id(v) for v in keeps}
    for variable, values in drawn:
        if id(variable) in left:
            variable.assign(values)
    return tuple(layer.name for layer in fresh)


def _public_examples(layer) -> list[keras.Variable]:
    if not isinstance(layer, PublicExamples):
        return []
    inner = {id(variable) for variable in layer.network.weights}
    return [variable for variable in layer.weights if id(variable) not in inner]


def _check_names(model, path) -> None:
    """Refuses a model file whose layers have other names: Keras would match them by their order."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        if "config.json" not in archive.namelist():
            return
        found = _names(json.loads(archive.read("config.json")))
    expected = _names(keras.saving.serialize_keras_object(model))
    if found != expected:
        differ = [name or kind for kind, name in sorted(set(found) ^ set(expected)) or found]
        raise ValueError(
            f"Expected a file of the network '{model.name}'. Found other layers in {path}: "
            f"{', '.join(differ[:6])}. Use the --model and the --normalization of the file."
        )


def _names(config) -> list[tuple[str, str]]:
    """Returns (class, name) of all layers in the configuration of a model, in order.

    The name is "" where Keras gave it.
    """
    inner, kind = config.get("config") or {}, config["class_name"]
    found = []
    if "layers" not in inner and kind != "InputLayer":
        # A name that Keras gave ends in a number that counts all layers of the process.
        given = re.fullmatch(rf"{kind.rpartition('>')[2]}\d*", inner["name"].replace("_", ""), re.I)
        found.append((kind, "" if given else inner["name"]))
    nested = list(inner.get("layers") or ())
    nested += [inner["network"]] if isinstance(inner.get("network"), dict) else []
    return found + [name for each in nested for name in _names(each)]


# -- layers ------------------------------------------------------------------------------------------


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
        trainable: names or patterns of layers ("logits,dense_*"), or how many of the last layers.

    Returns:
        The names of the layers that can be trained.

    Raises:
        ValueError: no layer with weights has such a name, there are fewer layers, or a named layer is
            frozen by another setting.
    """
    layers = layers_with_weights(model)
    names = [layer.name for layer in layers]
    if trainable.isdecimal():
        if not 1 <= int(trainable) <= len(layers):
            raise ValueError(
                f"Expected --trainable_layers to be from 1 to {len(layers)}, the layers with weights. "
                f"Found {trainable}."
            )
        chosen = layers[-int(trainable) :]
    else:
        chosen = []
        for pattern in (part.strip() for part in trainable.split(",")):
            matched = [layer for layer in layers if fnmatch.fnmatchcase(layer.name, pattern)]
            if not matched:
                raise ValueError(
                    f"Expected --trainable_layers to name layers among {', '.join(names)}. Found "
                    f"{pattern!r}."
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
    if not model.trainable_variables:
        raise ValueError(
            f"Expected --trainable_layers to leave weights to train. Found none in {trainable}."
        )
    return tuple(layer.name for layer in layers if layer.trainable)
