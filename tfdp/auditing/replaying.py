"""Replays a recording: was every step what it was accounted as?

    python -m tfdp.auditing replay FOLDER

The replay computes nothing with the noise source, the ledger or the update of the training: it starts
from what was recorded from outside. Sums are computed again with the engine, at the recorded weights
and random state, with and without a row; where it can be, also example by example without the engine.
"""

import dataclasses
import itertools
import os

import keras
import numpy as np
from scipy import stats

from tfdp._validate import fraction, whole
from tfdp.auditing import checks
from tfdp.auditing.checks import Finding
from tfdp.auditing.implied_noise import accounted_law, implied_noise
from tfdp.auditing.lot_checks import check_lots
from tfdp.auditing.recomputed import Recomputed
from tfdp.auditing.recording import Recording, Step
from tfdp.auditing.update_rules import update_rule
from tfdp.optimizers import DPKerasOptimizer
from tfdp.session import assumed_sensitivity


@dataclasses.dataclass(frozen=True)
class Replay:
    """What a replay found.

    Attributes:
        findings: of all checks.
        left_out: sentences about what could not be checked, and why.
        significance: probability with which a sound training is not passed.
        steps: number of recorded steps.
    """

    findings: tuple[Finding, ...]
    left_out: tuple[str, ...]
    significance: float
    steps: int

    @property
    def p_value(self) -> float:
        """The smallest p-value, times the number of checks."""
        return min(1.0, len(self.findings) * min((f.p_value for f in self.findings), default=1.0))

    @property
    def passed(self) -> bool:
        """Whether a sound training looks like this one."""
        return self.p_value > self.significance

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The findings that fail, the worst first."""
        limit = self.significance / max(1, len(self.findings))
        failed = [f for f in self.findings if f.p_value <= limit]
        return tuple(sorted(failed, key=lambda f: f.p_value))

    @property
    def verdict(self) -> str:
        """ "FAIL", "pass", or "pass, incomplete" if a check could not be made."""
        if not self.passed:
            return "FAIL"
        return "pass, incomplete" if self.left_out else "pass"

    def __str__(self):
        head = f"{self.verdict}: {self.steps} steps, {len(self.findings)} checks"
        lines = [
            f"  {f.name}{_at(f.step)}: {f.detail} (p = {f.p_value:.2g})"
            for f in (self.failures or self.findings)
        ]
        return "\n".join([head, *lines, *(f"  not checked: {words}" for words in self.left_out)])


def _at(step):
    return "" if step is None else f", step {step}"


def replay(
    folder: str | os.PathLike,
    model=None,
    *,
    steps: int = 8,
    rows: int = 6,
    significance: float = 1e-3,
) -> Replay:
    """Checks a recording step by step.

    Args:
        folder: the folder of `record`.
        model: a model of the same architecture, compiled with the same loss and optimizer; None loads
            the one in the recording. Its weights are changed.
        steps: number of steps, spread over the training, whose sums are computed again.
        rows: number of rows of each of them that are taken out; those whose removal moves the sum
            furthest are looked for among the first 64.
        significance: probability, in (0, 1), with which a sound training fails.

    Raises:
        ValueError: the folder holds no recording, or its model cannot be loaded, or `model` is
            another one.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> from tfdp import auditing
        >>> model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
        >>> model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.1), "mse")
        >>> x = np.random.default_rng(0).normal(size=(60, 2)).astype("float32")
        >>> with auditing.record(model, "recording"):
        ...     _ = model.fit(x, x[:, :1], batch_size=20, epochs=2, verbose=0)
        >>> print(auditing.replay("recording", significance=1e-9))
        pass: 6 steps...
    """
    recording = Recording(folder)
    steps, rows = whole("steps", steps, 1), whole("rows", rows, 1)
    significance = fraction("significance", significance)
    if not len(recording):
        raise ValueError(f"Expected at least one recorded step. Found none in {recording.path}.")
    missing = recording.missing_runs
    if missing:
        words = f"{len(missing)} runs that steps were counted in are not in the ledger"
        return Replay((Finding("ledger", 0.0, words),), (), significance, len(recording))
    loaded = model is None
    model = _loaded(recording) if loaded else model
    _check_steps(recording)
    _check_model(model, recording)
    findings, left_out = [], []
    left_out += _around(recording, model if loaded else None)
    if not recording.whole:
        left_out.append("what came after the exception that ended the training")
    for part in (_counting, _lots, _updates, _noise):
        part(recording, model, findings, left_out)
    chosen = np.unique(np.linspace(0, len(recording) - 1, steps).round().astype(int))
    _sums(recording, model, chosen, rows, findings, left_out)
    return Replay(tuple(findings), tuple(left_out), significance, len(recording))


def _loaded(recording):
    try:
        return keras.models.load_model(recording.model_file)
    except Exception as error:  # Keras raises many, whose texts are pages
        raise ValueError(
            f"The recorded model cannot be loaded here ({type(error).__name__}), usually because it "
            "has a layer or a loss of your own. Expected it registered by "
            "keras.saving.register_keras_serializable, or a model of the same architecture: "
            "replay(folder, model)."
        ) from error


def _check_model(model, recording):
    if not isinstance(getattr(model, "optimizer", None), DPKerasOptimizer):
        raise ValueError(
            "Expected a model that is compiled as the recorded one was, with its private optimizer. "
            f"Found {getattr(model, 'optimizer', None)!r}."
        )
    found = [[*v.shape] for v in model.trainable_variables]
    if found != recording.trainable:
        raise ValueError(
            f"Expected a model with trainable variables of the shapes {recording.trainable} of the "
            f"recording. Found {found}."
        )


def _check_steps(recording):
    for step in _all(recording):
        shapes = [[*value.shape] for value in step.before]
        if shapes != recording.trainable:
            raise ValueError(
                f"Expected the same trainable variables in all steps, {recording.trainable}. Found "
                f"{shapes} in step {step.number}. Record each part of such a training by itself."
            )


def _around(recording, model):
    """What was changed before the first step and after the last, in words.

    Args:
        model: the model as it was when the recording began; None if that is not known.
    """
    first, last = recording.step(0), recording.step(len(recording) - 1)
    found = []
    if model is not None and not _equal(
        [v.numpy() for v in model.trainable_variables], first.before
    ):
        found.append("what changed the weights before the first step")
    if not _equal(recording.final, last.after):
        found.append("what changed the weights after the last step")
    return found


def _equal(some, others):
    return len(some) == len(others) and all(map(np.array_equal, some, others))


def _all(recording):
    return (recording.step(number) for number in range(len(recording)))


def _by_run(recording) -> list[list[Step]]:
    runs = {}
    for step in _all(recording):
        runs.setdefault(id(step.run), []).append(step)
    return list(runs.values())


# -- the ledger --------------------------------------------------------------------------------------


def _counting(recording, model, findings, left_out):
    """Each step was counted before the weights changed, and all are in the ledger."""
    del model
    for steps in _by_run(recording):
        for before, after in itertools.pairwise(steps):
            if after.counted != before.counted + 1:
                words = f"{before.counted} steps were counted, then {after.counted}"
                findings.append(Finding("ledger", 0.0, words, after.number))
                return
        taken, known = steps[-1].counted, steps[0].run.steps
        if steps[0].counted < 1 or known < taken or taken < len(steps):
            words = f"{len(steps)} steps were seen and {known} are in the ledger"
            findings.append(Finding("ledger", 0.0, words, steps[-1].number))
            return
        if known > taken:
            left_out.append(f"{known - taken} steps that were counted and have no record")
    findings.append(Finding("ledger", 1.0, "every step is in the ledger"))


# -- lots --------------------------------------------------------------------------------------------


def _lots(recording, model, findings, left_out):
    del model
    for fit, steps in itertools.groupby(_all(recording), key=lambda step: step.fit):
        steps = list(steps)
        run, known = steps[0].run, recording.examples(fit)
        # Examples without features look like padding: where coins decide, the others are checked.
        blank = known is not None and not known[1].all()
        keys, others = None, 0
        if blank:
            others = int((~known[1]).sum())
            left_out.append(f"how {others} examples without features are drawn")
        if known is not None and (not blank or (run.sampling.coin_flips and run.groups == 1)):
            keys = known[0][known[1]].tolist()
        lots = [step.keys(blank) for step in steps]
        places = [step.counted - 1 for step in steps]
        found = check_lots(lots, places, run, keys or None, others)
        first = steps[0].number
        findings += [
            f if f.step is None else dataclasses.replace(f, step=first + f.step) for f in found
        ] or [Finding("lots", 1.0, "they are those of the scheme")]
        if keys is None or run.sampling.name == "shuffle":
            left_out.append(f"how lots are drawn ({run.sampling.words})")


# -- updates -----------------------------------------------------------------------------------------


def _updates(recording, model, findings, left_out):
    """The weights moved by the update rule, from what it was given, and nothing else moved them."""
    before, rule, why = None, None, None
    products, squares = 0.0, 0.0
    for step in _all(recording):
        if before is None:
            rule, why = update_rule(model, step, recording.decayed)
        else:
            changed = _changed(before, step)
            if changed is not None and step.fit == before.fit:
                words = f"the {changed} before it are not those of the step before"
                findings.append(Finding(changed, 0.0, words, step.number))
                return
            if changed is not None:
                left_out.append(
                    f"what changed {changed} before step {step.number}, between two fits"
                )
                if not step.means and rule is not None:
                    rule, why = None, "a fit began with changed weights"
        before = step
        if rule is None:
            continue
        for (error, allowed), total in zip(rule.errors(step), step.sums, strict=True):
            worst = float(np.max(np.abs(error), initial=0.0))
            if not worst <= allowed:
                words = (
                    f"a weight differs by {worst:.2g} from what the update rule makes of its input"
                )
                findings.append(Finding("update", 0.0, words, step.number))
                return
            if step.means:
                continue  # their double precision leaves nothing that could tell of a sum
            product = error * total
            products, squares = products + np.sum(product), squares + np.sum(product**2)
    if rule is None:
        left_out.append(f"the update rule ({why})")
        return
    findings.append(Finding("update", 1.0, "the weights are those that the update rule makes"))
    if squares > 0:
        p = 2.0 * float(stats.norm.sf(abs(products) / np.sqrt(squares)))
        words = "projection on the sums of what rounding leaves of the updates"
        findings.append(Finding("updates and sums", min(1.0, p), words))


def _changed(before, step) -> str | None:
    """What is not as the step before left it: "weights", "state" or None."""
    for name, was, now in (
        ("weights", before.after, step.before),
        ("state", _numbers(before), _numbers(step)),
    ):
        if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(was, now, strict=True)):
            return name
    return None


def _numbers(step):
    """The state that training must not change: all but whole numbers, which are counts and seeds."""
    return [value for value in step.state if np.issubdtype(value.dtype, np.floating)]


# -- noise -------------------------------------------------------------------------------------------


def _noise(recording, model, findings, left_out):
    """The noise that the weights really got has the accounted law, and no two steps share it."""
    everything = []
    for steps in _by_run(recording):
        noise, why = implied_noise(steps, model.optimizer)
        if noise is None:
            left_out.append(f"the noise ({why})")
            continue
        if not np.all(np.isfinite(noise)):
            step = steps[int(np.argmax(~np.isfinite(noise).all(axis=1)))].number
            findings.append(Finding("noise", 0.0, "is not finite", step))
            continue
        first = steps[0].number
        sizes = [value.size for value in steps[0].before]
        found, normal = checks.noise_law(noise, accounted_law(steps[0].run), sizes)
        findings += [
            f if f.step is None else dataclasses.replace(f, step=first + f.step) for f in found
        ]
        if steps[0].run.contribution.adaptive_clipping:
            left_out.append("how the clip norm moved (adaptive clipping)")
        everything.append((normal, np.stack([step.total / step.clip for step in steps])))
    if everything and all(np.all(np.any(noise != 0, axis=1)) for noise, _ in everything):
        noise, sums = (np.concatenate(parts) for parts in zip(*everything, strict=True))
        findings += checks.whiteness(noise, sums)


# -- sums --------------------------------------------------------------------------------------------


def _sums(recording, model, chosen, rows, findings, left_out):
    """Each sum is that of the rows, and moves by no more than is accounted when one is taken out."""
    again = Recomputed(model, recording)
    worst, independent = 0.0, 0
    for number in chosen:
        step = recording.step(number)
        again.go_to(step)
        error = again.penalty_error(step)
        if not error <= 1e-3:
            words = f"gradients of the regularizers differ by {error:.2g} from those at the weights"
            findings.append(Finding("regularizers", 0.0, words, int(number)))
            return
        whole_sum = again.sum_without(step)
        size = float(np.linalg.norm(step.total))
        error = float(np.linalg.norm(whole_sum - step.total))
        tolerance = again.tolerance
        if not error <= tolerance * (size + step.clip):
            words = f"differs by {error / step.clip:.2g} C from the sum that is computed again"
            findings.append(Finding("sum", 0.0, words, int(number)))
            return
        allowed = assumed_sensitivity(step.run)
        for row in again.rows_to_take_out(step, rows):
            moved = float(np.linalg.norm(again.sum_without(step, row) - whole_sum)) / step.clip
            worst = max(worst, moved / allowed)
            if not moved <= allowed * (1 + tolerance):
                words = f"moves by {moved:.4g} C without row {row}, and {allowed:g} C are accounted"
                findings.append(Finding("sensitivity", 0.0, words, int(number)))
                return
        if again.has_reference(step):
            error = float(np.linalg.norm(again.reference(step) - step.total))
            if not error <= tolerance * (size + step.clip):
                words = f"differs by {error / step.clip:.2g} C from clipping row by row"
                findings.append(Finding("sum, row by row", 0.0, words, int(number)))
                return
            independent += 1
    findings.append(Finding("sensitivity", 1.0, f"sums move by {worst:.3f} of what is accounted"))
    if not independent:
        left_out.append(
            "sums without the engine (the model draws random numbers, or the bound has none)"
        )
