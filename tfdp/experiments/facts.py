"""The facts about an experiment in words: announced before it is trained, and reported afterwards.

This module imports neither TensorFlow nor Keras.
"""

from tfdp.accounting import delta_warning
from tfdp.data.datasets import DATASETS
from tfdp.experiments.rules import EMBEDDED
from tfdp.experiments.settings import Experiment


def facts(experiment: Experiment) -> dict[str, str]:
    """Returns the settings that matter in words, by headings."""
    clipping = f"clip norm {experiment.l2_norm_clip:g} ({experiment.clipping})"
    found = {
        "Model": _network(experiment),
        "Privacy": _privacy(experiment),
        "Training": f"{_length(experiment)} lots of {experiment.batch_size:,} ({experiment.sampling})",
        "Optimizer": _update_rule(experiment),
        "Clipping": clipping if experiment.private else "",
        "Start": _start(experiment),
        "Split": _split(experiment),
    }
    return {name: said for name, said in found.items() if said}


def announcement(experiment: Experiment) -> str:
    """Returns the facts in one sentence, and a line of warning if delta is too large.

    Only for the embedded data the number of examples is known here; the result warns for all data.
    """
    said = (
        f"{experiment.mechanism} on {experiment.dataset}: {'; '.join(facts(experiment).values())}."
    )
    known = EMBEDDED.get(experiment.dataset) if experiment.private else None
    warning = delta_warning(experiment.delta, known) if known else None
    return f"{said}\nWarning: {warning}" if warning else said


def _update_rule(experiment: Experiment) -> str:
    rule, decay = experiment.optimizer, experiment.learning_rate_decay
    if experiment.momentum:
        rule += f" with momentum {experiment.momentum:g}"
    rule += f" at learning rate {experiment.learning_rate:g}"
    rule += "" if decay == 1 else f", times {decay:g} after every epoch"
    noise = experiment.update_noise
    return rule + (f", noise of {noise:g} on gradients" if noise else "")


def _network(experiment: Experiment) -> str:
    said, normalization = experiment.model, experiment.normalization
    if experiment.width != 1:
        said += f" at {experiment.width:g} times its width"
    if normalization == "none":
        said += " without normalization"
    else:
        said += f" with {normalization.replace('_', ' ')} normalization"
    if experiment.weight_noise:
        which = {"all": "weights", "kernels": "kernels"}[experiment.noisy_weights]
        said += f", with noise of {experiment.weight_noise:g} on its {which}"
    return f"{said}, activation {experiment.activation}"


def _split(experiment: Experiment) -> str:
    """Says that other examples than the usual ones are used; "" for the usual ones."""
    spec = DATASETS.get(experiment.dataset)
    usual = (spec.train_split, spec.test_split or "test") if spec else ("train", "test")
    train, test = experiment.train_split or usual[0], experiment.test_split or usual[1]
    if (train, test) == usual:
        return ""
    used = f"not the usual split: trained on {train} and tested on {test}, not on"
    if train == usual[0]:
        return f"{used} {usual[1]}, with the usual N"
    return f"{used} {usual[0]} and {usual[1]}, so N differs from the papers"


def _start(experiment: Experiment) -> str:
    weights, trained = experiment.initial_weights, experiment.trainable_layers
    parts = [] if weights is None else [f"from the public weights {weights}"]
    if trained is not None:
        parts.append(f"training {trained}")
    return ", ".join(parts)


def _privacy(experiment: Experiment) -> str:
    if not experiment.private:
        return "no privacy"
    decay = experiment.noise_decay
    decays = "" if decay is None else f", noise times {decay:g} after every epoch"
    if experiment.noise_multiplier is not None:
        return f"noise multiplier {experiment.noise_multiplier:g}{decays}"
    budget = f"{experiment.guarantee} epsilon {experiment.epsilon:g} at delta {experiment.delta:g}"
    return budget + decays


def _length(experiment: Experiment) -> str:
    if experiment.steps is None:
        return f"{experiment.epochs:g} epoch{'' if experiment.epochs == 1 else 's'} in"
    return f"{experiment.steps:,} step{'' if experiment.steps == 1 else 's'} with"
