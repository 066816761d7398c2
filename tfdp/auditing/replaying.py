"""Replays a recording: was every step what it was accounted as?

    python -m tfdp.auditing replay FOLDER

The replay computes nothing with the noise source, the ledger or the update of the training: it starts
from what was recorded from outside. Sums are computed again with the engine, at the recorded weights
and random state, with and without a row; where it can be, also example by example without the engine.
"""

import dataclasses
import functools
import itertools
import os

import keras
import numpy as np
import tensorflow as tf
from scipy import stats

from tfdp._validate import fraction, whole
from tfdp.accounting.numerics import noise_families
from tfdp.auditing import checks
from tfdp.auditing.checks import Finding
from tfdp.auditing.recording import Recording, Step
from tfdp.gradients.chunks import with_rows
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import bounded_sum, choose_engine
from tfdp.gradients.random_state import seed_states
from tfdp.gradients.targets import weighted, without_none
from tfdp.session import assumed_sensitivity

# Relative error of a sum that is computed again, in other chunks and another order of addition, in
# float32 and with layers in less.
_ROUNDING, _COARSE = 1e-3, 3e-2


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

    def __str__(self):
        head = (
            f"{'pass' if self.passed else 'FAIL'}: {self.steps} steps, {len(self.findings)} checks"
        )
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
        ValueError: the folder holds no recording.

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
    if model is None:
        model = keras.models.load_model(recording.model_file)
    findings, left_out = [], []
    for part in (_counting, _lots, _updates, _noise):
        part(recording, model, findings, left_out)
    chosen = np.unique(np.linspace(0, len(recording) - 1, steps).round().astype(int))
    _sums(recording, model, chosen, rows, findings, left_out)
    return Replay(tuple(findings), tuple(left_out), significance, len(recording))


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
    del model, left_out
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
    findings.append(Finding("ledger", 1.0, "every step is in the ledger"))


# -- lots --------------------------------------------------------------------------------------------


def _lots(recording, model, findings, left_out):
    del model
    for steps in _by_run(recording):
        run = steps[0].run
        found = checks.lot_sizes([int(step.drawn.sum()) for step in steps], run)
        found += checks.repetitions([step.keys for step in steps], run)
        findings += found or [Finding("lots", 1.0, "the sizes are those of the scheme")]
        if not run.sampling.coin_flips:
            left_out.append(f"the order of the lots ({run.sampling.words})")


# -- updates -----------------------------------------------------------------------------------------


def _updates(recording, model, findings, left_out):
    """The weights moved by the update rule, from what it was given, and nothing else moved them."""
    optimizer, before, rule, why = model.optimizer, None, None, None
    for step in _all(recording):
        if before is not None and step.run is before.run:
            for name, was, now in (
                ("weights", before.after, step.before),
                ("state", _numbers(before), _numbers(step)),
            ):
                if not all(np.array_equal(a, b) for a, b in zip(was, now, strict=True)):
                    words = f"the {name} before it are not those of the step before"
                    findings.append(Finding(name, 0.0, words, step.number))
                    return
        if before is None:
            rule, why = _rule(optimizer, step)
        before = step
        wrong = None if rule is None else rule.wrong(step)
        if wrong is not None:
            findings.append(Finding("update", 0.0, wrong, step.number))
            return
    if rule is None:
        left_out.append(f"the update rule ({why})")
    else:
        findings.append(Finding("update", 1.0, "the weights are those that the update rule makes"))


def _numbers(step):
    """The state that training must not change: all but whole numbers, which are counts and seeds."""
    return [value for value in step.state if np.issubdtype(value.dtype, np.floating)]


def _rule(optimizer, step):
    """What repeats the update rule of an optimizer; or (None, why not)."""
    if step.iteration or step.counted != 1:
        return None, "its state is that of steps before the recording"
    if step.means:
        if step.run.optimizer != "sgd":
            return None, "another rule moves the means"
        return _Means(), None
    if not isinstance(optimizer, keras.optimizers.SGD):
        return None, "it is not SGD"
    config = optimizer.get_config()
    names = ("weight_decay", "clipnorm", "global_clipnorm", "clipvalue", "use_ema")
    if any(config.get(name) for name in names):
        return None, "it does more than SGD"
    return _SGD(config), None


class _SGD:
    """SGD with momentum, from its first step."""

    def __init__(self, config):
        self._momentum, self._nesterov = config["momentum"], config["nesterov"]
        self._velocities = None

    def wrong(self, step):
        """What is wrong with a step in a sentence, or None."""
        if self._velocities is None:
            self._velocities = [np.zeros(b.shape) for b in step.before]
        for i, (before, given, after) in enumerate(
            zip(step.before, step.given, step.after, strict=True)
        ):
            move = -step.rate * given.astype(float)
            if self._momentum:
                self._velocities[i] = self._momentum * self._velocities[i] + move
                own = self._velocities[i]
                move = self._momentum * own + move if self._nesterov else own
            expected = before.astype(float) + move
            error = float(np.max(np.abs(expected - after), initial=0.0))
            if error > 1e-5 * (1e-2 + float(np.max(np.abs(after), initial=0.0))):
                return (
                    f"a weight differs by {error:.2g} from what the update rule makes of its input"
                )
        return None


class _Means:
    """The means of SI-DPSGD, from its first step."""

    def __init__(self):
        self._means, self._velocities = None, None

    def wrong(self, step):
        """What is wrong with a step in a sentence, or None."""
        run = step.run
        if self._means is None:
            self._means = [b.astype(float) for b in step.before]
            self._velocities = [np.zeros(b.shape) for b in step.before]
        rate = run.mechanism.schedule("learning_rates", step.counted)[-1]
        for i, (total, penalty, found) in enumerate(
            zip(step.sums, step.penalty, step.means, strict=True)
        ):
            gradient = total.astype(float) / step.divisor + penalty
            self._velocities[i] = run.momentum * self._velocities[i] + gradient
            own = self._velocities[i]
            self._means[i] -= rate * (gradient + run.momentum * own if run.nesterov else own)
            error = float(np.max(np.abs(self._means[i] - found), initial=0.0))
            if error > 1e-6 * (1e-2 + float(np.max(np.abs(found), initial=0.0))):
                return f"a mean differs by {error:.2g} from what the sums make of it"
        return None


# -- noise -------------------------------------------------------------------------------------------


def _noise(recording, model, findings, left_out):
    """The noise that the weights really got has the accounted law, and no two steps share it."""
    everything = []
    for steps in _by_run(recording):
        noise, why = _implied(steps, model.optimizer)
        if noise is None:
            left_out.append(f"the noise ({why})")
            continue
        if not np.all(np.isfinite(noise)):
            step = steps[int(np.argmax(~np.isfinite(noise).all(axis=1)))].number
            findings.append(Finding("noise", 0.0, "is not finite", step))
            continue
        first = steps[0].number
        sizes = [value.size for value in steps[0].before]
        found, normal = checks.noise_law(noise, _law(steps[0].run), sizes)
        findings += [
            f if f.step is None else dataclasses.replace(f, step=first + f.step) for f in found
        ]
        everything.append((normal, np.stack([step.total / step.clip for step in steps])))
    if everything and all(np.all(np.any(noise != 0, axis=1)) for noise, _ in everything):
        noise, sums = (np.concatenate(parts) for parts in zip(*everything, strict=True))
        findings += checks.whiteness(noise, sums)


def _implied(steps, optimizer):
    """The noise of each step over its accounted scale, [steps, weights]; or (None, why not)."""
    run = steps[0].run
    if getattr(optimizer, "denoise", False):
        return None, "the sum is denoised, which cannot be undone"
    table = np.ravel(run.noise_multiplier)
    accounted = np.array([table[step.counted - 1 if len(table) > 1 else 0] for step in steps])
    if np.any(accounted <= 0):
        return None, "none is accounted"
    if steps[0].means:
        rates = run.mechanism.schedule("learning_rates", steps[-1].counted)
        noise = []
        for step in steps:
            drawn = _flat(step.after) - _flat(step.means)
            noise.append(drawn * step.divisor / (rates[step.counted - 1] * step.clip))
    elif any(step.noisy is None for step in steps):
        return None, "the update rule was given more than the noisy sum"
    else:
        noise = [(step.noisy - step.total) / step.clip for step in steps]
    noise = np.stack(noise)
    strategy = getattr(run, "strategy", None)
    if strategy is not None and steps[0].counted != 1:
        return None, "it is correlated with steps before the recording"
    if strategy is not None:
        noise = _white(noise, strategy.first(steps[-1].counted))
    if run.contribution.adaptive_clipping:
        # The multiplier is shared with the noise on the count, so the noise on the sum is larger.
        shared = optimizer.adaptive_clipping
        accounted = np.array(
            [dataclasses.replace(shared, noise_multiplier=float(z)).sum_noise for z in accounted]
        )
    elif run.mechanism.adds_at_least:
        accounted = np.maximum(accounted, [step.scale / step.clip for step in steps])
    return noise / accounted[:, None], None


def _white(noise, coefficients):
    """Undoes the correlation: z_t = sum_j c_j y_{t-j}."""
    white = np.zeros_like(noise)
    for j, c in enumerate(coefficients[: len(noise)]):
        white[j:] += c * noise[: len(noise) - j]
    return white


def _law(run):
    """The distribution function of the accounted noise at scale 1."""
    encoding = getattr(run, "encoding", None)
    name = "gaussian" if encoding is None else encoding.noise
    laws = {
        "gaussian": stats.norm,
        "student_t": lambda: stats.t(encoding.degrees_of_freedom),
        "laplace": stats.laplace,
        "sech": stats.hypsecant,
        "cauchy": stats.cauchy,
    }
    if name in laws:
        return laws[name]().cdf
    grid = np.linspace(-60.0, 60.0, 240_001)
    density = np.exp(noise_families.log_density(name, grid, encoding.degrees_of_freedom))
    mass = np.concatenate(
        [[0.0], np.cumsum((density[1:] + density[:-1]) / 2) * (grid[1] - grid[0])]
    )
    return functools.partial(np.interp, xp=grid, fp=mass / mass[-1])


# -- sums --------------------------------------------------------------------------------------------


def _sums(recording, model, chosen, rows, findings, left_out):
    """Each sum is that of the rows, and moves by no more than is accounted when one is taken out."""
    again = _Again(model, recording)
    worst, independent = 0.0, 0
    for number in chosen:
        step = recording.step(number)
        again.go_to(step)
        whole_sum = again.sum_without(step)
        size = float(np.linalg.norm(step.total))
        error = float(np.linalg.norm(whole_sum - step.total))
        tolerance = again.tolerance
        if error > tolerance * (size + step.clip):
            words = f"differs by {error / step.clip:.2g} C from the sum that is computed again"
            findings.append(Finding("sum", 0.0, words, int(number)))
            return
        allowed = assumed_sensitivity(step.run)
        for row in again.rows_to_take_out(step, rows):
            moved = float(np.linalg.norm(again.sum_without(step, row) - whole_sum)) / step.clip
            worst = max(worst, moved / allowed)
            if moved > allowed * (1 + tolerance):
                words = f"moves by {moved:.4g} C without row {row}, and {allowed:g} C are accounted"
                findings.append(Finding("sensitivity", 0.0, words, int(number)))
                return
        if again.has_reference(step):
            error = float(np.linalg.norm(again.reference(step) - step.total))
            if error > tolerance * (size + step.clip):
                words = f"differs by {error / step.clip:.2g} C from clipping row by row"
                findings.append(Finding("sum, row by row", 0.0, words, int(number)))
                return
            independent += 1
    findings.append(Finding("sensitivity", 1.0, f"sums move by {worst:.3f} of what is accounted"))
    if not independent:
        left_out.append(
            "sums without the engine (the model draws random numbers, or the bound has none)"
        )


class _Again:
    """Computes sums of recorded lots again.

    Args:
        model: the model of the recording.
        recording: the recording.
    """

    def __init__(self, model, recording):
        self._model = model
        found = [[v.name, *v.shape] for v in model.trainable_variables]
        if found != recording.trainable:
            raise ValueError(
                f"Expected a model with the trainable variables {recording.trainable} of the "
                f"recording. Found {found}."
            )
        self._forward = Forward(model)
        self._engine = choose_engine(recording.engine, model)
        self._sum = tf.function(self._bounded, autograph=False, reduce_retracing=True)
        self._one = tf.function(self._gradient_of_one, autograph=False, reduce_retracing=True)

    @functools.cached_property
    def tolerance(self) -> float:
        """Relative error of a sum that is computed again."""
        coarse = any(layer.compute_dtype in ("bfloat16", "float16") for layer in self._model.layers)
        return _COARSE if coarse else _ROUNDING

    def go_to(self, step):
        """Sets the model to the weights and the random state of a step."""
        for variable, value in zip(self._model.trainable_variables, step.before, strict=True):
            variable.assign(value)
        for variable, value in zip(self._model.non_trainable_variables, step.state, strict=True):
            variable.assign(value)
        clip = getattr(self._model.optimizer, "_clip_norm", None)
        if clip is not None:
            clip.assign(step.clip)
        self._run = step.run

    def _lot(self, step, without=None):
        x = tf.nest.map_structure(tf.convert_to_tensor, without_none(step.x))
        y, weight = weighted(step.y, step.weight, tf.shape(tf.nest.flatten(x)[0])[0])
        y = tf.nest.map_structure(tf.convert_to_tensor, y)
        if without is not None:
            weight = tf.tensor_scatter_nd_update(weight, [[without]], [0.0])
        return x, y, weight

    def sum_without(self, step, row=None) -> np.ndarray:
        """The bounded sum of a lot, flat, without one of its rows."""
        return _flat(self._sum(*self._lot(step, row)))

    def _bounded(self, x, y, weight):
        run = self._run
        if run.batch_statistics and run.sampling.largest_lot is not None:
            x, y, weight = with_rows((x, y, weight), run.lot_size)
        bound = self._model.optimizer.bound(self._forward.variables, run.l2_norm_clip)
        return bounded_sum(
            self._engine, self._forward, bound, x, y, weight,
            microbatch_size=run.microbatch_size, expected_rows=run.lot_size,
        ).sums  # fmt: skip

    def rows_to_take_out(self, step, number):
        """The rows among the first 64 whose own gradients are largest, and the first ones."""
        present = np.flatnonzero(step.present)[:64]
        if len(present) <= number or not self._deterministic:
            return present[:number]
        norms = [np.linalg.norm(self._own(step, row)) for row in present]
        return present[np.argsort(norms)[::-1][:number]]

    @functools.cached_property
    def _deterministic(self):
        return not seed_states(self._model)

    def has_reference(self, step) -> bool:
        """Whether the sum can be computed row by row, without the engine."""
        plain = step.run.microbatch_size == 1 and not step.run.batch_statistics
        clipped = getattr(self._model.optimizer, "clipping", None) == "global"
        encoded = getattr(self._model.optimizer, "encode", False)
        return self._deterministic and plain and clipped and not encoded

    def reference(self, step) -> np.ndarray:
        """The sum of the rows' clipped gradients, each computed from a batch of one row."""
        total = np.zeros_like(step.total)
        for row in np.flatnonzero(step.present):
            gradient = self._own(step, row)
            total += gradient * min(1.0, step.clip / max(np.linalg.norm(gradient), 1e-30))
        return total

    def _own(self, step, row):
        x, y, weight = self._lot(step)
        one = tf.nest.map_structure(lambda leaf: leaf[row : row + 1], (x, y, weight))
        return _flat(self._one(*one))

    def _gradient_of_one(self, x, y, weight):
        model = self._model
        with tf.GradientTape() as tape:
            loss = model.compute_loss(
                x=x, y=y, y_pred=model(x, training=True), sample_weight=weight
            )
            loss -= tf.cast(self._forward.penalty(), loss.dtype)
        found = tape.gradient(
            loss, [v.value for v in model.trainable_variables],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )  # fmt: skip
        return [tf.convert_to_tensor(g) for g in found]


def _flat(arrays) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(a)).astype(float) for a in arrays])
