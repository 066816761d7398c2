"""The start of a training: public initial weights, and frozen layers."""

import fnmatch
import os

import keras

from tfdp._compat.files import texts_in
from tfdp._compat.keras import is_graph_of_layers
from tfdp.account import LEDGER_KEY
from tfdp.accounting import Ledger
from tfdp.data.datasets import DATASETS
from tfdp.experiments.own_data import place_of
from tfdp.experiments.run_folder import read_record
from tfdp.experiments.settings import NONE, Experiment
from tfdp.layers import PublicExamples


def begin(experiment: Experiment, model: keras.Model) -> list[str]:
    """Loads the initial weights into a new network and freezes untrained layers.

    Returns:
        Sentences about the initial weights and the frozen layers.

    Raises:
        ValueError: If the file is not a public file of such a network, or a name matches no layer.
    """
    notes = []
    if experiment.initial_weights is not None:
        path = os.path.expanduser(experiment.initial_weights)
        fresh = load(model, path)
        made = check_public(experiment, path)
        notes.append(
            f"The initial weights are those of {os.path.basename(path)}, {made}; they were declared "
            "public." + (f" Drawn at random: {', '.join(fresh)}." if fresh else "")
        )
    if experiment.trainable_layers is not None:
        trained = freeze(model, experiment.trainable_layers)
        notes.append(f"Trained layers: {', '.join(trained)}; all others are frozen.")
    return notes


def check_public(experiment: Experiment, path: str) -> str:
    """Describes the training that produced a file of weights, from the run.json beside it.

    Raises:
        ValueError: If the experiment is private, and the weights come from a private training, whose
            cost the new release would not record, or from a training on the same data.
    """
    before = read_record(os.path.dirname(os.path.realpath(path))).get("settings", {})
    mechanism, dataset = before.get("mechanism", NONE), before.get("dataset", "unknown data")
    made = f"trained on {dataset}" + ("" if mechanism == NONE else f" by {mechanism}")
    ledgers = map(Ledger.from_json, texts_in(path, LEDGER_KEY))
    if experiment.private and (
        mechanism != NONE
        or _source(dataset) == _source(experiment.dataset)
        or any(ledger.entries for ledger in ledgers)
    ):
        raise ValueError(
            f"--initial_weights={path} depends on private data ({made}), which the new statement would "
            "omit. Use weights of public data. In Python, a model that was saved with its ledger "
            "can be trained further: keras.models.load_model."
        )
    return made


def _source(dataset: str) -> str:
    """Returns the name in tensorflow_datasets without a version, or the path of the user's data."""
    kind, path = place_of(dataset)
    if kind is not None:
        return os.path.realpath(path)
    spec = DATASETS.get(dataset)
    return ((spec and spec.builder) or dataset).partition(":")[0]


def load(model: keras.Model, path: str) -> tuple[str, ...]:
    """Loads weights of the same network from a file.

    An output layer that does not fit keeps its initial weights. The network keeps its public examples.

    Args:
        model: A built network with fresh weights.
        path: A `.keras` file of such a network.

    Returns:
        The names of the layers that were not loaded.

    Raises:
        ValueError: If the file belongs to another network, or cannot be read.
    """
    try:
        found = layers_with_weights(keras.models.load_model(path, compile=False))
    except Exception as error:
        # Keras raises many classes of errors for damaged files.
        raise ValueError(
            f"--initial_weights={path} cannot be read as a .keras file: "
            f"{' '.join(str(error).split())[:300]}"
        ) from error
    there, outputs, fresh = {layer.name: layer for layer in found}, output_layers(model), []
    for layer in layers_with_weights(model):
        source = there.pop(layer.name, None)
        if source is not None and _shapes(layer) == _shapes(source):
            layer.set_weights(source.get_weights())
        elif layer in outputs:
            fresh.append(layer.name)
        else:
            there[layer.name] = source
            break
    if there:
        raise ValueError(
            f"{path} does not fit the network '{model.name}': {', '.join(there)} differ. Use a file of "
            "the same --model, --normalization and --embeddings; only the output layer may differ."
        )
    return tuple(fresh)


def _shapes(layer) -> list[tuple]:
    return [tuple(variable.shape) for variable in layer.weights]


def layers_with_weights(model: keras.Model) -> list[keras.Layer]:
    """Returns the layers that own weights, in order, including nested ones."""
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
    """Returns the last layer with a weight matrix, and all later ones."""
    layers = layers_with_weights(model)
    matrices = [i for i, layer in enumerate(layers) if any(len(v.shape) > 1 for v in layer.weights)]
    return layers[matrices[-1] :] if matrices else layers


def freeze(model: keras.Model, trainable: str) -> tuple[str, ...]:
    """Freezes all layers except those that match `trainable`, such as "logits,dense_*".

    Returns:
        The names of the layers that stay trainable.

    Raises:
        ValueError: If a name or pattern matches no layer with trainable weights.
    """
    layers, chosen = [la for la in layers_with_weights(model) if la.trainable], set()
    for pattern in map(str.strip, trainable.split(",")):
        matched = fnmatch.filter([layer.name for layer in layers], pattern)
        if not matched:
            raise ValueError(
                f"--trainable_layers={pattern} matches no layer. The layers are "
                f"{', '.join(layer.name for layer in layers)}."
            )
        chosen |= {*matched}
    for layer in layers:
        layer.trainable = layer.name in chosen
    return tuple(layer.name for layer in layers if layer.trainable)
