"""One sentence about an experiment before it is trained.

This module imports neither TensorFlow nor Keras.
"""

from tfdp.accounting import delta_warning
from tfdp.experiments.conditions import EMBEDDED, split_note
from tfdp.experiments.settings import Experiment


def announcement(experiment: Experiment) -> str:
    """Returns the settings that matter in one sentence, and a line of warning if delta is too large.

    Only for the embedded data the number of examples is known here; the result warns for all data.
    """
    parts = [_what(experiment), _privacy(experiment), _length(experiment), update_rule(experiment)]
    if experiment.private:
        parts.append(f"clip norm {experiment.l2_norm_clip:g} ({experiment.clipping})")
    parts += [_start(experiment)]
    said = "; ".join(part for part in parts if part) + "."
    if note := split_note(experiment):
        said += f"\n{note}"
    if experiment.private and experiment.dataset in EMBEDDED:
        warning = delta_warning(experiment.delta, EMBEDDED[experiment.dataset])
        return f"{said}\nWarning: {warning}" if warning else said
    return said


def update_rule(experiment: Experiment) -> str:
    """Returns the update rule and its learning rate in words."""
    rule = experiment.optimizer
    if experiment.momentum:
        kind = "Nesterov momentum" if experiment.nesterov else "momentum"
        rule += f" with {kind} {experiment.momentum:g}"
    decay = experiment.learning_rate_decay
    decays = "" if decay == 1 else f", times {decay:g} after every epoch"
    noise = (
        f", noise of {experiment.update_noise:g} on gradients" if experiment.update_noise else ""
    )
    return f"{rule} at learning rate {experiment.learning_rate:g}{decays}{noise}"


def network(experiment: Experiment) -> str:
    """Returns the network, its normalization and the noise on its weights in words."""
    said = experiment.model
    if experiment.width != 1:
        said += f" at {experiment.width:g} times its width"
    if experiment.normalization == "none":
        said += " without normalization"
    else:
        said += f" with {experiment.normalization.replace('_', ' ')} normalization"
    if experiment.weight_noise:
        which = {"all": "weights", "kernels": "kernels"}[experiment.noisy_weights]
        said += f", with noise of {experiment.weight_noise:g} on its {which}"
    return said


def _what(experiment):
    return f"{experiment.mechanism} on {experiment.dataset}: {network(experiment)}"


def _start(experiment):
    """Returns the initial weights and the trained layers in words; "" for fresh and for all."""
    parts = []
    if experiment.initial_weights is not None:
        parts.append(f"from the public weights {experiment.initial_weights}")
    if (trained := experiment.trainable_layers) is not None:
        parts.append(
            f"training the last {trained} layers" if trained.isdecimal() else f"training {trained}"
        )
    return ", ".join(parts)


def _privacy(experiment):
    if not experiment.private:
        return "no privacy"
    decay = experiment.noise_decay
    decays = "" if decay is None else f", noise times {decay:g} after every epoch"
    if experiment.noise_multiplier is not None:
        return f"noise multiplier {experiment.noise_multiplier:g}{decays}"
    said = f"{experiment.guarantee} epsilon {experiment.epsilon:g} at delta {experiment.delta:g}"
    return said + decays


def _length(experiment):
    if experiment.steps is None:
        long = f"{experiment.epochs:g} epoch{'' if experiment.epochs == 1 else 's'} in"
    else:
        long = f"{experiment.steps:,} step{'' if experiment.steps == 1 else 's'} with"
    return f"{long} lots of {experiment.batch_size:,} ({experiment.sampling})"
