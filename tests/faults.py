"""The faults that `planted_faults.py` plants: what is patched, and the tests that have to notice."""

import dataclasses
import functools
import importlib
import os
import sys
from collections.abc import Callable

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault: `plant` patches tfdp, and one of `tests` (paths below tests/) has to fail then."""

    plant: Callable[[], None]
    tests: tuple[str, ...]


FAULTS: dict[str, Fault] = {}


def noticed_by(*tests):
    """Registers a function that plants a fault."""

    def register(plant):
        FAULTS[plant.__name__] = Fault(plant, tests)
        return plant

    return register


def found(path):
    """Returns (owner, name, original) of "module:name" or "module:Class.name" below tfdp."""
    module, _, name = path.partition(":")
    owner = importlib.import_module(f"tfdp.{module}")
    *classes, name = name.split(".")
    for each in classes:
        owner = getattr(owner, each)
    return owner, name, vars(owner)[name]


def change(path, changed):
    """Replaces a function, method or property by `changed(original, *arguments)`."""
    owner, name, original = found(path)
    inner = original
    if isinstance(original, property):
        inner = original.fget
    elif isinstance(original, classmethod):
        inner = original.__func__

    @functools.wraps(inner)
    def replacement(*args, **kwargs):
        return changed(inner, *args, **kwargs)

    if inner is not original:
        replacement = type(original)(replacement)
    setattr(owner, name, replacement)
    # Modules that imported a function have it under a name of their own.
    if not isinstance(owner, type):
        for module in [m for n, m in sys.modules.items() if n.startswith("tfdp")]:
            for key in [k for k, v in vars(module).items() if v is original]:
                setattr(module, key, replacement)


# -- noise ---------------------------------------------------------------------------------------

EVERY_STEP = "optimizers/test_every_mechanism.py"


@noticed_by("noise/test_gaussian.py", EVERY_STEP)
def noise_has_two_thirds_of_its_scale():
    change(
        "noise.gaussian:NoiseSource.gaussians",
        lambda draw, self, number, stddev, shapes: draw(self, number, stddev * 2 / 3, shapes),
    )


@noticed_by("noise/test_gaussian.py")
def noise_repeats_in_every_step():
    def repeated(draw, self, number, stddev, shapes):
        return draw(self, 0, stddev, shapes)

    change("noise.gaussian:NoiseSource.gaussians", repeated)


@noticed_by("noise/test_gaussian.py")
def noise_of_all_sources_has_one_key():
    def known(init, self, seed=None, salt=()):
        init(self, 7 if seed is None else seed, salt)
        self.seeded = seed is not None

    change("noise.gaussian:NoiseSource.__init__", known)


@noticed_by("test_session.py")
def a_forked_process_goes_on_with_the_key():
    def unaware(authorize, self, steps):
        self._process = os.getpid()
        return authorize(self, steps)

    change("session:Session.authorize", unaware)


@noticed_by("noise/test_gaussian.py")
def noise_is_equal_in_all_variables():
    def equal(draw, self, number, stddev, shapes):
        sizes = [tf.TensorShape(shape).num_elements() for shape in shapes]
        (flat,) = draw(self, number, stddev, [(max(sizes),)])
        return [tf.reshape(flat[:n], shape) for n, shape in zip(sizes, shapes, strict=True)]

    change("noise.gaussian:NoiseSource.gaussians", equal)


@noticed_by("noise/test_families.py")
def noise_of_families_has_two_thirds_of_its_scale():
    change(
        "noise.families:NoiseFamily.sample",
        lambda sample, self, source, number, scale, shapes: sample(
            self, source, number, scale * 2 / 3, shapes
        ),
    )


@noticed_by("noise/test_correlated.py")
def correlated_noise_is_independent():
    change("noise.correlated:CorrelatedNoise.correlate", lambda correlate, self, fresh, step: fresh)


@noticed_by("training/test_step.py")
def every_step_has_the_noise_of_the_first():
    def first(value, self, name):
        values = getattr(self.run.mechanism, name)
        return values[0] if isinstance(values, tuple) else value(self, name)

    change("session:Session.value", first)


@noticed_by("optimizers/test_adaptive_clipping.py")
def adaptive_clipping_does_not_pay_for_its_count():
    change(
        "optimizers.adaptive_clipping:AdaptiveClipping.sum_noise",
        lambda noise, self: self.noise_multiplier,
    )


# -- bounds ----------------------------------------------------------------------------------------


@noticed_by("gradients/test_bounds.py", EVERY_STEP)
def gradients_are_clipped_at_three_halves():
    change(
        "gradients.bounds:GlobalL2Clip.scales",
        lambda scales, self, norms: scales(self, norms) * 1.5,
    )


@noticed_by("gradients/test_bounds.py")
def each_layer_is_clipped_at_the_whole_norm():
    change(
        "gradients.bounds:PerLayerL2Clip.scales",
        lambda scales, self, norms: scales(self, norms / (max(self.layers) + 1)),
    )


@noticed_by("gradients/test_bounds.py")
def small_gradients_are_stretched():
    change(
        "gradients.bounds:AutomaticClip.scales",
        lambda scales, self, norms: scales(self, norms) * 1.1,
    )


@noticed_by("optimizers/test_discrete_sgd.py")
def encoded_gradients_are_not_bounded():
    change("gradients.bounds:EncodedBound.bounded", lambda bounded, self, rows: rows)


@noticed_by("gradients/engines/test_ending.py", "gradients/engines/test_exact.py")
def a_norm_that_is_not_finite_is_called_zero():
    def finite(norms, self):
        found = norms(self)
        return tf.where(tf.math.is_finite(found), found, 0.0)

    for kind in ("Instantiated", "OuterProducts", "Lookups"):
        change(f"gradients.factors:{kind}.square_norms", finite)


@noticed_by("gradients/test_factors.py")
def norms_of_products_are_too_small():
    change(
        "gradients.factors:OuterProducts.square_norms",
        lambda norms, self: norms(self) * 0.8,
    )


@noticed_by("gradients/test_factors.py", "gradients/engines/test_embedding.py")
def norms_of_lookups_are_too_small():
    change(
        "gradients.factors:Lookups.square_norms",
        lambda norms, self: norms(self) * 0.8,
    )


# -- sensitivity and divisor ---------------------------------------------------------------------


@noticed_by("gradients/test_bounds.py")
def microbatches_declare_the_sensitivity_of_single_examples():
    change(
        "gradients.bounds:L2Clip.relative_sensitivity",
        lambda declared, self, microbatch_size=1: declared(self, 1),
    )


@noticed_by("gradients/test_bounds.py")
def layers_declare_the_sensitivity_of_one_group():
    change("gradients.bounds:EachLayerL2Clip.clip_groups", lambda groups, self: 1)


@noticed_by("accounting/mechanisms/test_dpsgd.py")
def the_accounting_assumes_half_the_sensitivity():
    change(
        "accounting.contribution:Contribution.sensitivity",
        lambda factor, self, *given: max(1.0, factor(self, *given) / 2),
    )


@noticed_by("accounting/mechanisms/test_dpsgd.py", "accounting/numerics/test_loss_grid.py")
def amplified_steps_are_analysed_with_more_noise():
    change(
        "accounting.numerics.pairs:orders",
        lambda orders, part: orders(dataclasses.replace(part, multiplier=1.1 * part.multiplier)),
    )


@noticed_by("accounting/numerics/test_allocation.py")
def random_allocation_counts_more_lots_than_there_are():
    change(
        "accounting.numerics.allocation:positive_losses",
        lambda losses, probability, multiplier: losses(
            1 / (1 + round(1 / probability)), multiplier
        ),
    )


@noticed_by("data/test_schemes.py")
def lots_are_drawn_from_single_examples():
    change(
        "data.lots:Lots._members",
        lambda members, self, units: tf.minimum(units, self.available_examples),
    )


@noticed_by("training/test_step.py")
def a_declared_sensitivity_is_not_compared():
    change("session:Session.check_sensitivity", lambda check, self, declared: None)


@noticed_by("optimizers/test_dp_keras_optimizer.py")
def the_divisor_is_the_number_of_examples_drawn():
    def by_drawn(update, self, bounded, session, *rest):
        drawn = tf.maximum(tf.math.count_nonzero(bounded.present, dtype=tf.float32), 1.0)
        sums = [total * session.divisor / drawn for total in bounded.sums]
        return update(self, dataclasses.replace(bounded, sums=sums), session, *rest)

    change("optimizers.dp_keras_optimizer:DPKerasOptimizer.update", by_drawn)


# -- lots --------------------------------------------------------------------------------------------


@noticed_by("data/test_schemes.py")
def poisson_lots_are_drawn_too_often():
    def twice(draw, self, *given):
        both = tf.data.Dataset.zip(draw(self, *given), draw(self, *given).skip(1))
        return both.map(lambda a, b: tf.unique(tf.concat([a, b], 0)).y)

    change("data.schemes:PoissonLots._draw", twice)


@noticed_by("data/test_schemes.py")
def one_lot_of_fixed_size_comes_again_and_again():
    change(
        "data.schemes:FixedSizeLots._draw",
        lambda draw, self, *given: draw(self, *given).take(1).cache().repeat(),
    )


@noticed_by("data/test_schemes.py")
def shuffled_epochs_draw_with_replacement():
    _, _, draws = found("data.schemes:WithReplacementLots._draw")
    change("data.schemes:ShuffledLots._draw", lambda draw, self, *given: draws(self, *given))


@noticed_by("data/test_lots.py")
def padding_rows_take_part():
    def present(make, self, *given, **options):
        dataset = make(self, *given, **options).map(lambda x, y, w: (x, y, tf.ones_like(w)))
        dataset.tfdp_lots = self
        return dataset

    change("data.lots:Lots.as_dataset", present)


@noticed_by("accounting/test_run.py", "accounting/mechanisms/test_dpsgd.py")
def the_accounting_assumes_a_smaller_probability():
    change("accounting.sampling:Sampling.probability", lambda chance, self: 0.9 * chance(self))


# -- what was spent ----------------------------------------------------------------------------------


@noticed_by("accounting/test_composition.py")
def composition_forgets_the_first_run():
    change(
        "accounting.composition:proven_composition",
        lambda compose, runs, *given, **named: compose(list(runs)[-1:], *given, **named),
    )


@noticed_by("accounting/numerics/test_privacy_loss.py", "accounting/mechanisms/test_dpsgd.py")
def the_proof_is_given_twice_the_delta():
    change(
        "accounting.numerics.privacy_loss:epsilon_of",
        lambda epsilon, losses, delta: epsilon(losses, 2 * delta),
    )


@noticed_by("accounting/test_composition.py", "accounting/mechanisms/test_si_dpsgd.py")
def a_claim_is_called_proven():
    from tfdp.accounting import claimed_composition

    change(
        "accounting.composition:proven_composition",
        lambda compose, *given, **named: dataclasses.replace(
            claimed_composition(*given, **named), kind="proven"
        ),
    )


@noticed_by("accounting/test_calibration.py")
def calibrated_noise_is_too_small():
    change(
        "accounting.calibration:noise_for",
        lambda noise, *given, **named: 0.97 * noise(*given, **named),
    )


@noticed_by("accounting/test_ledger.py")
def ledgers_that_meet_are_not_merged():
    change("accounting.ledger:Ledger.merge", lambda merge, self, other: None)


@noticed_by("accounting/test_ledger.py", "test_session.py")
def a_ledger_counts_every_second_step():
    change(
        "accounting.ledger:Ledger.record",
        lambda record, self, run_id, steps: record(self, run_id, (steps + 1) // 2),
    )


@noticed_by("accounting/test_ledger.py", "training/test_files.py")
def a_ledger_is_lost_in_its_file():
    change("accounting.ledger:Ledger.from_json", lambda read, cls, text: cls())


@noticed_by("training/test_files.py")
def a_ledger_is_not_written():
    change("_compat.files:write_text", lambda write, store, name, text: None)


@noticed_by("accounting/test_calibration.py", "test_session.py")
def a_budget_pays_for_ten_percent_more_steps():
    change(
        "accounting.calibration:max_steps",
        lambda steps, *given, **named: int(1.1 * steps(*given, **named)) + 1,
    )


@noticed_by("training/test_early_ends.py")
def planned_steps_are_forgotten_at_an_early_end():
    change("session:Session.end_early", lambda end, self, left_out: self.close())


@noticed_by("training/test_backup.py")
def reserved_steps_are_forgotten():
    def forgotten(read, self):
        found = read(self)
        return found and (*found[:2], 0)

    change("training.backup_folder:BackupFolder.read", forgotten)


@noticed_by("training/test_private_training.py")
def any_optimizer_is_accepted():
    change("training.checks:check_optimizer", lambda check, *given, **named: None)


@noticed_by("training/test_checks.py")
def layers_that_mix_examples_are_accepted():
    change("training.checks:refuse_mixing_layers", lambda check, *given, **named: None)


# -- the sums of each engine -----------------------------------------------------------------------


def wrong_sum(engine):
    def larger(run, *given, **named):
        lot = run(*given, **named)
        return dataclasses.replace(lot, sums=[*lot.sums[:-1], lot.sums[-1] * 1.02])

    return change(f"gradients.engines.{engine}:bounded_sum", larger)


@noticed_by("gradients/engines/test_ghost.py")
def the_ghost_engine_sums_wrongly():
    wrong_sum("ghost")


@noticed_by("gradients/engines/test_exact.py")
def the_vectorized_engine_sums_wrongly():
    wrong_sum("exact")


@noticed_by("gradients/engines/test_loop.py")
def the_loop_engine_sums_wrongly():
    wrong_sum("loop")


@noticed_by("gradients/engines/test_lotwise.py")
def the_lotwise_engine_sums_wrongly():
    wrong_sum("lotwise")


@noticed_by("gradients/test_lot.py")
def chunks_are_left_out():
    change(
        "gradients.chunk_loop:sum_of_chunks",
        lambda total, run, chunks, *rest: total(run, chunks - 1, *rest),
    )


# -- public statistics, released means ---------------------------------------------------------------


@noticed_by("layers/test_public.py")
def public_normalization_uses_statistics_of_the_lot():
    def of_lot(moments, self, inputs, x):
        moments(self, inputs, x)
        axes = [axis for axis in range(x.shape.rank) if axis != self.axis % x.shape.rank]
        return tf.nn.moments(x, axes, keepdims=True)

    change("layers.public:PublicBatchNormalization._moments", of_lot)


@noticed_by("gradients/engines/test_private_statistics.py")
def gradients_of_running_statistics_are_doubled():
    change(
        "layers.private_statistics:PrivateBatchNormalization.pulls",
        lambda pulls, self, *given: [2.0 * pull for pull in pulls(self, *given)],
    )


@noticed_by("optimizers/test_si_dpsgd.py")
def si_dpsgd_shows_its_means():
    def shown(update, self, bounded, session, variables, *rest):
        scale = update(self, bounded, session, variables, *rest)
        for mean, variable in zip(self._hidden.means, variables, strict=True):
            variable.assign(mean)
        return scale

    change("optimizers.si_dpsgd:SIDPSGDOptimizer.update", shown)


@noticed_by("optimizers/test_si_dpsgd.py")
def si_dpsgd_releases_its_means_for_nothing():
    def released(release, self, variables):
        for mean, variable in zip(self._hidden.means, variables, strict=True):
            variable.assign(mean)

    change("optimizers.si_dpsgd:SIDPSGDOptimizer.release_means", released)
