"""Planted faults: patches of the real modules, each of which breaks what a training promises.

`FAULTS` maps a name to a `Fault`: how to break the library, and a training that runs into it. The
auditor is given the recording and not the name.
"""

import contextlib
import dataclasses
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tfdp
from tfdp.accounting.contribution import Contribution
from tfdp.accounting.ledger import Ledger
from tfdp.data import schemes
from tfdp.gradients.bounds import GlobalL2Clip, L2Clip
from tfdp.gradients.engines import ghost
from tfdp.noise.gaussian import NoiseSource
from tfdp.optimizers import DPKerasOptimizer, SIDPSGDOptimizer
from tfdp.optimizers.adaptive_clipping import AdaptiveClipping
from tfdp.training import private_training
from tfdp.training import step as step_module

N, L, CLIP, NOISE = 300, 30, 0.1, 1.0
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def examples():
    draw = np.random.default_rng(0)
    return draw.normal(size=(N, 6)).astype("float32"), draw.integers(0, 4, N)


def network(*extra):
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(24, activation="tanh"), *extra, layers.Dense(4)]
    )


def sgd(**options):
    options = {"learning_rate": 0.3, "l2_norm_clip": CLIP, "noise_multiplier": NOISE} | options
    return tfdp.DPKerasSGDOptimizer(**options)


def si_dpsgd():
    return tfdp.SIDPSGDOptimizer(learning_rate=0.3, l2_norm_clip=CLIP, noise_multiplier=NOISE)


def usual(model=None, optimizer=None, epochs=4, **options):
    """A compiled private model, and the function that trains it."""
    made = tfdp.make_private(network() if model is None else model, **options)
    made.compile(sgd() if optimizer is None else optimizer, LOSS)
    x, y = examples()
    return made, lambda: made.fit(x, y, batch_size=L, epochs=epochs, verbose=0)


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        patches: (owner, name, function of the original that returns the broken one).
        training: returns a compiled model and the function that trains it.
    """

    patches: tuple
    training: Callable = usual

    @contextlib.contextmanager
    def planted(self):
        """Context in which the library is broken."""
        originals = [(owner, name, vars(owner)[name]) for owner, name, _ in self.patches]
        try:
            for owner, name, broken in self.patches:
                setattr(owner, name, broken(vars(owner)[name]))
            yield
        finally:
            for owner, name, original in originals:
                setattr(owner, name, original)


def _no_clip(original):
    return lambda self, square_norms: tf.ones_like(original(self, square_norms))


def _two_thirds(original):
    return lambda self, *arguments: 2.0 / 3.0 * original(self, *arguments)


def _noise_per_chunk(original):
    def broken(*arguments, **options):
        lot = original(*arguments, **options)
        sums = [s + CLIP * NOISE * tf.random.normal(tf.shape(s)) for s in lot.sums]
        return dataclasses.replace(lot, sums=sums)

    return broken


def _same_noise_twice(original):
    return lambda self, draw: original(self, (draw + 1) // 2)


def _forgets_draws(original):
    def broken(self, session):
        original(self, session)
        self._secrets.noise.draws.assign(0)

    return broken


def _twice(**options):
    """Two trainings of the same weights, the second in other lots."""
    made, first = usual(epochs=2)
    x, y = examples()

    def train():
        first()
        made.fit(x, y, batch_size=L + 5, epochs=2, verbose=0)

    return made, train


def _releases_means(original):
    def broken(self, bounded, session, variables, regularization):
        scale = original(self, bounded, session, variables, regularization)
        for mean, variable in zip(self._hidden.means, variables, strict=True):
            variable.assign(tf.cast(mean, variable.dtype))
        return scale

    return broken


@keras.saving.register_keras_serializable(package="faults")
class Centred(layers.Layer):
    """Subtracts the mean of the batch: what a batch normalization without its other parts does."""

    def call(self, x):
        return x - tf.reduce_mean(x, axis=0, keepdims=True)

    def compute_output_shape(self, shape):
        return shape


def _fixed_order(original):
    def broken(self, random, turn):
        blocks = self.available_examples // self.lot_size

        def draw(number):
            return self.lot_size * (number % blocks) + tf.range(self.lot_size, dtype=tf.int64)

        return tf.data.Dataset.counter().map(draw)

    return broken


def _truncated(original):
    def broken(self, random, turn):
        return original(self, random, turn).map(lambda members: members[: self.lot_size])

    return broken


def _norms_of_others(original):
    return lambda self, square_norms: original(self, tf.roll(square_norms, 1, axis=0))


def _norms_of_another_mask(original):
    def broken(self, square_norms):
        factor = tf.exp(2.0 * tf.random.normal([tf.shape(square_norms)[0], 1]))
        return original(self, square_norms * factor)

    return broken


def _microbatches_are_examples(original):
    return lambda self, sampling, adjacency: 1.0


def _one_behind(original):
    return lambda self, run_id, steps: original(self, run_id, max(0, steps - 1))


def _drawn_size(original):
    def broken(self, bounded, session):
        sums, scale = original(self, bounded, session)
        drawn = tf.maximum(1.0, tf.reduce_sum(tf.cast(bounded.present, tf.float32)))
        return [s * float(session.divisor) / drawn for s in sums], scale

    return broken


def _twice_the_rate(original):
    def broken(self, bounded, session, variables, regularization):
        class Doubled:
            def __getattr__(self, name):
                return getattr(session, name)

            def value(self, name):
                return session.value(name) * (2.0 if name == "learning_rates" else 1.0)

        return original(self, bounded, Doubled(), variables, regularization)

    return broken


def _cyclic_si():
    made, _ = usual(optimizer=si_dpsgd())
    x, y = examples()
    lots = tfdp.data.make_lots("cyclic", x, y, lot_size=L)
    return made, lambda: made.fit(lots, epochs=4, verbose=0)


def _in_chunks():
    return usual(physical_batch_size=8)


def _dropped():
    return usual(network(layers.Dropout(0.5)))


def _for_longer():
    return usual(epochs=8)


def _in_microbatches():
    return usual(optimizer=sgd(num_microbatches=L // 2))


def _declares_one(original):
    return lambda self, microbatch_size=1: original(self, 1)


def _calls_rows_apart(original):
    return lambda model, rules: True


def _centred():
    return usual(network(Centred()))


def _not_on_the_last(original):
    def broken(self, stddev, shapes):
        *noise, last = original(self, stddev, shapes)
        return [*noise, tf.zeros_like(last)]

    return broken


def _shared_by_weights(original):
    def broken(self, stddev, shapes):
        first, *others = original(self, stddev, shapes)
        flat = tf.reshape(first, [-1])
        return [first, *(tf.reshape(flat[: tf.size(o)], o.shape) for o in others)]

    return broken


def _correlated(original):
    def broken(self, stddev, shapes):
        noise = original(self, stddev, shapes)
        if "kept" not in vars(self):
            with tf.init_scope():
                self.kept = [tf.Variable(tf.zeros(s)) for s in shapes]
        mixed = []
        for new, old in zip(noise, self.kept, strict=True):
            mixed.append(0.3 * old + (1 - 0.3**2) ** 0.5 * new)
            old.assign(mixed[-1])
        return mixed

    return broken


def _larger_sums(original):
    def broken(self, bounded, session, variables, regularization):
        bounded = dataclasses.replace(bounded, sums=[3.0 * s for s in bounded.sums])
        return original(self, bounded, session, variables, regularization)

    return broken


def _no_noise(original):
    return lambda self, stddev, shapes: [tf.zeros(s) for s in shapes]


def _same_lot(original):
    def broken(self, random, turn):
        return original(self, random, turn).map(lambda lot: tf.range(L, dtype=lot.dtype))

    return broken


def _leak(original):
    def broken(self, bounded, session, variables, regularization):
        scale = original(self, bounded, session, variables, regularization)
        for variable, total in zip(variables, bounded.sums, strict=True):
            variable.assign_sub(0.1 * total)
        return scale

    return broken


def _regularized():
    return usual(
        keras.Sequential(
            [keras.Input((6,)), layers.Dense(24, kernel_regularizer="l2"), layers.Dense(4)]
        )
    )


def _adaptive():
    return usual(optimizer=sgd(clipping="adaptive"))


def _heavy_tails():
    optimizer = tfdp.DiscreteSGDOptimizer(
        learning_rate=0.3, l2_norm_clip=CLIP, noise_multiplier=NOISE, encode=False, denoise=False
    )
    return usual(optimizer=optimizer)


def _in_order():
    made, _ = usual()
    x, y = examples()
    lots = tfdp.data.make_lots("cyclic", x, y, lot_size=L)
    return made, lambda: made.fit(lots, epochs=2, verbose=0)


def _from(sampling, epochs=3, **options):
    """A training on lots of a sampling scheme."""

    def training():
        made, _ = usual()
        x, y = examples()
        lots = tfdp.data.make_lots(sampling, x, y, lot_size=options.pop("lot_size", L), **options)
        return made, lambda: made.fit(lots, epochs=epochs, verbose=0)

    return training


def _overlapping(original):
    def broken(self, random, turn):
        numbers = tf.data.Dataset.counter()
        return numbers.map(lambda n: 15 * (n % 10) + tf.range(L, dtype=tf.int64))

    return broken


def _always_the_first(original):
    """The first example is in every lot, in the place of another one."""

    def broken(self, random, turn):
        def change(lot):
            others = tf.boolean_mask(lot, lot != 0)
            return tf.concat([tf.zeros([1], lot.dtype), others[: tf.size(lot) - 1]], axis=0)

        return original(self, random, turn).map(change)

    return broken


def _no_turns(original):
    def broken(self, random, turn):
        return original(self, random, turn).map(lambda lot: lot - lot % self.groups)

    return broken


def _less_noise_beside_a_count(original):
    return property(lambda self: 2.0 / 3.0 * original.fget(self))


def _more_examples(original):
    def broken(model, plan, optimizer, start):
        fields = original(model, plan, optimizer, start)
        return fields | {"num_examples": 2 * fields["num_examples"]}

    return broken


def _sums_as_penalties(original):
    def broken(self, bounded, session, variables, regularization):
        penalties = [0.5 * total / session.divisor for total in bounded.sums]
        return original(self, bounded, session, variables, penalties)

    return broken


def _in_another_place(original):
    """The noise of every second step is that of the step before, four places on."""

    def broken(self, stddev, shapes):
        noise = original(self, stddev, shapes)
        if "kept" not in vars(self):
            with tf.init_scope():
                self.kept = [tf.Variable(tf.zeros(s)) for s in shapes]
        again = self.draws % 2 == 0
        made = []
        for new, old in zip(noise, self.kept, strict=True):
            moved = tf.reshape(tf.roll(tf.reshape(old, [-1]), 4, axis=0), old.shape)
            made.append(tf.where(again, moved, new))
            old.assign(made[-1])
        return made

    return broken


def _cut_tails(original):
    def broken(self, stddev, shapes):
        limit = 2.5 * stddev
        return [tf.clip_by_value(n, -limit, limit) for n in original(self, stddev, shapes)]

    return broken


def _a_little_of_the_sums(original):
    def broken(self, bounded, session, variables, regularization):
        scale = original(self, bounded, session, variables, regularization)
        for variable, total in zip(variables, bounded.sums, strict=True):
            variable.assign_sub(3e-6 * total)
        return scale

    return broken


def _adam():
    adam = tfdp.DPKerasAdamOptimizer(learning_rate=1e-3, l2_norm_clip=CLIP, noise_multiplier=NOISE)
    return usual(optimizer=adam, epochs=6)


FAULTS = {
    "lots that overlap": Fault(((schemes.CyclicLots, "_draw", _overlapping),), _from("cyclic")),
    "one example in every lot of an epoch": Fault(
        ((schemes.ShuffledLots, "_draw", _always_the_first),), _from("shuffle")
    ),
    "one example in every lot of fixed size": Fault(
        ((schemes.FixedSizeLots, "_draw", _always_the_first),), _from("fixed_size")
    ),
    "groups without turns": Fault(
        ((schemes.CyclicPoissonLots, "_draw", _no_turns),), _from("cyclic_poisson", groups=5)
    ),
    "less noise beside the count": Fault(
        ((AdaptiveClipping, "sum_noise", _less_noise_beside_a_count),), _adaptive
    ),
    "twice as many examples accounted": Fault(
        ((private_training, "planned_fields", _more_examples),)
    ),
    "sums as penalties": Fault(((DPKerasOptimizer, "update", _sums_as_penalties),)),
    "noise again in other places": Fault(((NoiseSource, "gaussians", _in_another_place),)),
    "noise without tails": Fault(((NoiseSource, "gaussians", _cut_tails),)),
    "a little of the sums": Fault(((DPKerasOptimizer, "update", _a_little_of_the_sums),), _adam),
    "no clip": Fault(((GlobalL2Clip, "scales", _no_clip),)),
    "two thirds of the noise": Fault(((DPKerasOptimizer, "_stddev", _two_thirds),)),
    "noise for each chunk": Fault(((step_module, "bounded_sum", _noise_per_chunk),), _in_chunks),
    "the same noise twice": Fault(((NoiseSource, "_counter_of", _same_noise_twice),)),
    "noise again after a new start": Fault(((DPKerasOptimizer, "begin", _forgets_draws),), _twice),
    "means released": Fault(((SIDPSGDOptimizer, "update", _releases_means),), _cyclic_si),
    "batch statistics": Fault(((ghost, "rows_are_separate", _calls_rows_apart),), _centred),
    "fixed order as Poisson": Fault(((schemes.PoissonLots, "_draw", _fixed_order),)),
    "lots cut": Fault(((schemes.PoissonLots, "_draw", _truncated),), _for_longer),
    "norms of another pass": Fault(((GlobalL2Clip, "scales", _norms_of_others),)),
    "norms of another mask": Fault(((GlobalL2Clip, "scales", _norms_of_another_mask),), _dropped),
    "microbatches as examples": Fault(
        (
            (Contribution, "sensitivity", _microbatches_are_examples),
            (L2Clip, "relative_sensitivity", _declares_one),
        ),
        _in_microbatches,
    ),
    "ledger one step behind": Fault(((Ledger, "record", _one_behind),)),
    "divided by the drawn size": Fault(((DPKerasOptimizer, "add_noise", _drawn_size),)),
    "rate of SI-DPSGD unaccounted": Fault(
        ((SIDPSGDOptimizer, "update", _twice_the_rate),), _cyclic_si
    ),
    "no noise on one variable": Fault(((NoiseSource, "gaussians", _not_on_the_last),)),
    "noise shared by weights": Fault(((NoiseSource, "gaussians", _shared_by_weights),)),
    "noise correlated in time": Fault(((NoiseSource, "gaussians", _correlated),), _for_longer),
    "larger sums into the means": Fault(((SIDPSGDOptimizer, "update", _larger_sums),), _cyclic_si),
    "no noise beside a regularizer": Fault(((NoiseSource, "gaussians", _no_noise),), _regularized),
    "two thirds with adaptive clipping": Fault(
        ((DPKerasOptimizer, "_stddev", _two_thirds),), _adaptive
    ),
    "the same lot always": Fault(((schemes.CyclicLots, "_draw", _same_lot),), _in_order),
    "sums into the weights": Fault(((DPKerasOptimizer, "update", _leak),)),
    "the same heavy-tailed noise twice": Fault(
        ((NoiseSource, "_counter_of", _same_noise_twice),), _heavy_tails
    ),
}
