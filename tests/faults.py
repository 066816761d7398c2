"""The faults that `planted_faults.py` plants: what is patched, and the tests that have to notice."""

import dataclasses
import functools
import importlib
import math
import os
import sys
from collections.abc import Callable

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault: `plant` patches tfdp by a `setattr`, and one of `tests` (below tests/) has to fail."""

    plant: Callable[[Callable], None]
    tests: tuple[str, ...]


FAULTS: dict[str, Fault] = {}


def fault(path, *tests):
    """Registers a function as the fault of what is at a path, or at several: see `change`."""
    paths = (path,) if isinstance(path, str) else path

    def register(changed):
        def plant(put):
            for each in paths:
                change(each, changed, put)

        FAULTS[changed.__name__] = Fault(plant, tests)
        return changed

    return register


def found(path):
    """Returns (owner, name, original) of "module:name" or "module:Class.name" below tfdp."""
    module, _, name = path.partition(":")
    owner = importlib.import_module(f"tfdp.{module}")
    *classes, name = name.split(".")
    for each in classes:
        owner = getattr(owner, each)
    return owner, name, vars(owner)[name]


def change(path, changed, put=setattr):
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
    put(owner, name, replacement)
    # Modules that imported a function have it under a name of their own.
    if not isinstance(owner, type):
        for module in [m for n, m in sys.modules.items() if n.startswith("tfdp")]:
            for key in [k for k, v in vars(module).items() if v is original]:
                put(module, key, replacement)


# -- noise ---------------------------------------------------------------------------------------

EVERY_STEP = "optimizers/test_every_mechanism.py"


@fault("noise.gaussian:NoiseSource.gaussians", "noise/test_gaussian.py", EVERY_STEP)
def noise_has_two_thirds_of_its_scale(draw, self, number, stddev, shapes):
    return draw(self, number, stddev * 2 / 3, shapes)


@fault("noise.gaussian:NoiseSource.gaussians", "noise/test_gaussian.py")
def noise_repeats_in_every_step(draw, self, number, stddev, shapes):
    return draw(self, 0, stddev, shapes)


@fault("noise.gaussian:NoiseSource.__init__", "noise/test_gaussian.py")
def noise_of_all_sources_has_one_key(init, self, seed=None, salt=()):
    init(self, 7 if seed is None else seed, salt)
    self.seeded = seed is not None


@fault("optimizers.dp_keras_optimizer:DPKerasOptimizer.begin", EVERY_STEP)
def runs_of_an_optimizer_share_their_noise(begin, self, session):
    return None


@fault("entry:Entry.authorize", "test_entry.py")
def a_forked_process_goes_on_with_the_key(authorize, self, steps):
    self._process = os.getpid()
    return authorize(self, steps)


@fault("noise.gaussian:NoiseSource.gaussians", "noise/test_gaussian.py")
def noise_is_equal_in_all_variables(draw, self, number, stddev, shapes):
    sizes = [tf.TensorShape(shape).num_elements() for shape in shapes]
    (flat,) = draw(self, number, stddev, [(max(sizes),)])
    return [tf.reshape(flat[:n], shape) for n, shape in zip(sizes, shapes, strict=True)]


@fault("noise.families:NoiseFamily.sample", "noise/test_families.py")
def noise_of_families_has_two_thirds_of_its_scale(sample, self, source, number, scale, shapes):
    return sample(self, source, number, scale * 2 / 3, shapes)


@fault("noise.correlated:CorrelatedNoise.correlate", "noise/test_correlated.py")
def correlated_noise_is_independent(correlate, self, fresh, step):
    return fresh


@fault("session:Session.value", "training/test_step.py")
def every_step_has_the_noise_of_the_first(value, self, name):
    values = getattr(self.run.mechanism, name)
    return values[0] if isinstance(values, tuple) else value(self, name)


@fault(
    "optimizers.adaptive_clipping:AdaptiveClipping.sum_noise",
    "optimizers/test_adaptive_clipping.py",
)
def adaptive_clipping_does_not_pay_for_its_count(noise, self):
    return self.noise_multiplier


# -- bounds ----------------------------------------------------------------------------------------


@fault("gradients.bounds:GlobalL2Clip.scales", "gradients/test_bounds.py", EVERY_STEP)
def gradients_are_clipped_at_three_halves(scales, self, norms):
    return scales(self, norms) * 1.5


@fault("gradients.bounds:PerLayerL2Clip.scales", "gradients/test_bounds.py")
def each_layer_is_clipped_at_the_whole_norm(scales, self, norms):
    return scales(self, norms / (max(self.layers) + 1))


@fault("gradients.bounds:AutomaticClip.scales", "gradients/test_bounds.py")
def small_gradients_are_stretched(scales, self, norms):
    return scales(self, norms) * 1.1


@fault("gradients.encoding:EncodedBound.bounded", "optimizers/test_discrete_sgd.py")
def encoded_gradients_are_not_bounded(bounded, self, rows):
    return rows


@fault(
    tuple(
        f"gradients.factors:{k}.square_norms" for k in ("Instantiated", "OuterProducts", "Lookups")
    ),
    "gradients/engines/test_clip_and_sum.py",
    "gradients/engines/test_exact.py",
)
def a_norm_that_is_not_finite_is_called_zero(norms, self):
    found = norms(self)
    return tf.where(tf.math.is_finite(found), found, 0.0)


@fault("gradients.factors:OuterProducts.square_norms", "gradients/test_factors.py")
def norms_of_products_are_too_small(norms, self):
    return norms(self) * 0.8


@fault(
    "gradients.factors:Lookups.square_norms",
    "gradients/test_factors.py",
    "gradients/engines/test_embedding.py",
)
def norms_of_lookups_are_too_small(norms, self):
    return norms(self) * 0.8


# -- sensitivity and divisor ---------------------------------------------------------------------


@fault("gradients.bounds:L2Clip.relative_sensitivity", "gradients/test_bounds.py")
def microbatches_declare_the_sensitivity_of_single_examples(declared, self, microbatch_size=1):
    return declared(self, 1)


@fault(
    "gradients.engines.row_pass:clip_and_sum", "gradients/test_views.py", "gradients/test_lot.py"
)
def views_of_an_example_are_clipped_one_by_one(clip, *given, **rest):
    return clip(*given[:4], 1, 1, **rest)


@fault("gradients.bounds:EachLayerL2Clip.clip_groups", "gradients/test_bounds.py")
def layers_declare_the_sensitivity_of_one_group(groups, self):
    return 1


@fault(
    (
        "accounting.numerics.linear_response:Toeplitz.joint_square",
        "accounting.numerics.linear_response:Dynamics.joint_square",
    ),
    "accounting/mechanisms/test_matrix.py",
)
def columns_of_different_blocks_are_taken_as_orthogonal(square, self, period, length):
    return square(self, period * length * 10_000, 1)


@fault("accounting.gaussian_steps:amplified", "accounting/mechanisms/test_matrix.py")
def a_block_is_drawn_as_rarely_as_a_step(losses, run, noise, adjacency, length=1):
    return losses(run.with_steps(-(-run.steps // length)), noise, adjacency)


@fault("accounting.gaussian_steps:_fixed_size_lots", "accounting/test_contribution.py")
def lots_of_fixed_size_forget_that_weights_are_clipped_in_groups(losses, run, *rest):
    contribution = dataclasses.replace(run.contribution, clip_groups=1)
    return losses(dataclasses.replace(run, contribution=contribution), *rest)


@fault("accounting.contribution:Contribution.sensitivity", "accounting/mechanisms/test_dpsgd.py")
def the_accounting_assumes_half_the_sensitivity(factor, self, *given):
    return max(1.0, factor(self, *given) / 2)


@fault(
    "accounting.numerics.pairs:orders",
    "accounting/mechanisms/test_dpsgd.py",
    "accounting/numerics/test_loss_grid.py",
)
def amplified_steps_are_analysed_with_more_noise(orders, part):
    return orders(dataclasses.replace(part, multiplier=1.1 * part.multiplier))


@fault("accounting.numerics.loss_grid:_relative_sums", "accounting/numerics/test_loss_grid.py")
def large_exponents_are_capped(relative_sums, losses, chances):
    return relative_sums(np.minimum(losses, 700.0), chances)


@fault("accounting.numerics.pairs:orders", "accounting/numerics/test_pairs.py")
def replaced_users_are_only_left_out(orders, part):
    replaced = part.pair == "replace" and len(part.draws) > 1
    return orders(dataclasses.replace(part, pair="add") if replaced else part)


@fault("accounting.numerics.pairs:orders", "accounting/numerics/test_fixed_size.py")
def records_of_a_user_displace_others_one_way_only(orders, part):
    forward, backward = orders(part)
    return ((forward[0], backward[0]) if part.pair == "slot" else forward), backward


@fault("accounting.numerics.allocation:positive_losses", "accounting/numerics/test_allocation.py")
def random_allocation_counts_more_lots_than_there_are(losses, probability, multiplier):
    return losses(1 / (1 + round(1 / probability)), multiplier)


@fault("accounting.numerics.allocation:_added", "accounting/numerics/test_allocation.py")
def sums_of_few_lots_are_rounded_to_the_larger_one(added, one, other, step):
    return added(one, other, step)[round(math.log(2) / step) // 2 :]


@fault(
    "accounting.numerics.replaced_allocation:_divergence", "accounting/numerics/test_allocation.py"
)
def replaced_records_of_random_allocation_are_left_out(divergence, alpha, lots, shift):
    return divergence(alpha, lots, shift / 2)


@fault("accounting.numerics.noise_scores:_growth", "accounting/numerics/test_noise_scores.py")
def noise_of_families_counts_by_its_fisher_information_only(growth, family, nu):
    bounds, _, rate = growth(family, nu)
    return bounds, bounds / rate, rate


@fault("accounting.numerics.pairs:positive_losses", "accounting/numerics/test_shifted_noise.py")
def encoded_gradients_lose_as_much_in_both_orders(losses, part, fineness):
    forward, backward = losses(part, fineness)
    return (backward, backward) if part.shifts else (forward, backward)


@fault("accounting.encoded_steps:square", "accounting/mechanisms/test_discrete_sgd.py")
def entries_of_encoded_gradients_are_taken_as_small(square, encoding):
    return square(dataclasses.replace(encoding, largest_entry=1e-3))


@fault("data.assembly:Assembly.neighbours", "data/test_schemes.py")
def lots_are_drawn_from_single_examples(members, self, units):
    return np.minimum(units, self.available)


@fault("session:Session.check_sensitivity", "training/test_step.py")
def a_declared_sensitivity_is_not_compared(check, self, declared):
    return None


@fault("optimizers.dp_keras_optimizer:DPKerasOptimizer.update", EVERY_STEP)
def the_divisor_is_the_number_of_examples_drawn(update, self, bounded, session, *rest):
    drawn = tf.maximum(tf.math.count_nonzero(bounded.present, dtype=tf.float32), 1.0)
    sums = [total * session.divisor / drawn for total in bounded.sums]
    return update(self, dataclasses.replace(bounded, sums=sums), session, *rest)


# -- lots --------------------------------------------------------------------------------------------


@fault("data.schemes:Poisson.draw", "data/test_schemes.py")
def poisson_lots_are_drawn_too_often(draw, self, words, stream, step, turn=0):
    both = [draw(self, words, stream, number, turn) for number in (step, step + 1)]
    return np.unique(np.concatenate(both))


@fault("data.schemes:Poisson.draw", "data/test_schemes.py")
def poisson_lots_have_a_fixed_order(draw, self, words, stream, step, turn=0):
    size, turns = self.lot_size, self.num_examples // self.lot_size
    return size * (step % turns) + np.arange(size)


@fault("data.schemes:FixedSize.draw", "data/test_schemes.py")
def one_lot_of_fixed_size_comes_again_and_again(draw, self, words, stream, step, turn=0):
    return draw(self, words, stream, 0, turn)


@fault("data.schemes:Shuffle.draw", "data/test_schemes.py")
def shuffled_epochs_draw_with_replacement(draw, self, *given):
    _, _, draws = found("data.schemes:WithReplacement.draw")
    return draws(self, *given)


@fault("data.people:People.examples", "data/test_assembly.py")
def the_first_examples_of_a_person_always_enter(choose, self, people, secret):
    return choose(self, people, bytes(16))


@fault("data.assembly:_seeds", "data/test_assembly.py")
def all_examples_have_the_seed_of_the_first(seeds, hashes):
    return seeds(np.broadcast_to(hashes[:1], hashes.shape))


@fault("data.examples:_type", "data/test_assembly.py")
def functions_get_the_type_of_all_rows_of_a_lot(type_of, value):
    return float


@fault("data.permutation:LotSizes._drawn", "data/test_draws.py")
def half_of_the_units_are_in_each_half_of_the_lots(drawn, self, node, inside, left, both):
    return inside * left // both


@fault("data.lots:Lots.as_dataset", "data/test_lots.py")
def padding_rows_take_part(make, self, *given, **options):
    dataset = make(self, *given, **options).map(lambda x, y, w: (x, y, tf.ones_like(w)))
    dataset.tfdp_lots = self
    return dataset


@fault(
    "accounting.sampling:Sampling.probability",
    "accounting/test_run.py",
    "accounting/mechanisms/test_dpsgd.py",
)
def the_accounting_assumes_a_smaller_probability(chance, self):
    return 0.9 * chance(self)


@fault(
    "training.feed:Feed.insecure_seed",
    "training/test_feed.py::test_a_users_seed_proves_nothing_where_the_proof_needs_secret_lots",
)
def a_users_seed_of_lots_counts_as_secret(seeded, feed):
    return False


AFTER_A_CRASH = (
    "training/test_backup.py::test_examples_and_their_order_matter_where_they_have_places"
)


@fault("training.feed:Feed.needs_order", AFTER_A_CRASH)
def an_epoch_has_another_order_after_a_crash(needs, feed):
    return False


@fault(
    "data.lots:Lots.as_dataset",
    "training/test_backup.py::test_no_example_takes_part_twice_in_an_epoch",
)
def groups_begin_anew_after_a_crash(make, self, turn=0, **options):
    return make(self, 0 if options.get("order") or options.get("start") == 0 else turn, **options)


# -- what was spent ----------------------------------------------------------------------------------


@fault("accounting.composition:proven", "accounting/test_composition.py")
def composition_forgets_the_first_run(compose, runs, *given, **named):
    return compose(runs[-1:] if isinstance(runs, list) else runs, *given, **named)


@fault(
    "accounting.numerics.privacy_loss:epsilon_of",
    "accounting/numerics/test_privacy_loss.py",
    "accounting/mechanisms/test_dpsgd.py",
)
def the_proof_is_given_twice_the_delta(epsilon, losses, delta):
    return epsilon(losses, 2 * delta)


@fault("accounting.numerics.attacks:trade_off", "accounting/numerics/test_attacks.py")
def the_whole_trade_off_leaves_out_half_of_delta(trade_off, curve, epsilon):
    return trade_off(lambda at: curve(at) / 2, epsilon)


@fault("accounting.numerics.group_privacy:log_sum", "accounting/numerics/test_group_privacy.py")
def group_privacy_keeps_the_delta_of_one_change(total, epsilon, changes):
    return 0.0


@fault("accounting.contribution:Contribution.chains", "accounting/test_group_privacy.py")
def users_are_one_change_apart(chains, self, adjacency):
    return tuple((kind, 1) for kind, _ in chains(self, adjacency))


@fault("accounting.contribution:Contribution.sensitivity", "accounting/test_contribution.py")
def users_with_lot_statistics_are_in_one_lot(sensitivity, self, sampling, adjacency, number=1):
    return min(sensitivity(self, sampling, adjacency, number), 2.0 * sampling.lot_size)


@fault(
    "accounting.composition:proven",
    "accounting/test_composition.py",
    "accounting/mechanisms/test_si_dpsgd.py",
)
def a_claim_is_called_proven(compose, *given, **named):
    claimed = found("accounting.composition:claimed")[2]
    return dataclasses.replace(claimed(*given, **named), kind="proven")


@fault("accounting.calibration:noise_for", "accounting/test_calibration.py")
def calibrated_noise_is_too_small(noise, *given, **named):
    return 0.97 * noise(*given, **named)


@fault("accounting.ledger:Ledger.merge", "accounting/test_ledger.py")
def ledgers_that_meet_are_not_merged(merge, self, other):
    return None


@fault("accounting.ledger:Ledger.record", "accounting/test_ledger.py", "test_entry.py")
def a_ledger_counts_every_second_step(record, self, run_id, steps, *given, **named):
    return record(self, run_id, (steps + 1) // 2, *given, **named)


@fault("accounting.ledger:Ledger.from_json", "accounting/test_ledger.py", "training/test_files.py")
def a_ledger_is_lost_in_its_file(read, cls, text):
    return cls()


@fault("_compat.files:write_text", "training/test_files.py")
def a_ledger_is_not_written(write, store, name, text):
    return None


@fault("accounting.calibration:max_steps", "accounting/test_calibration.py", "test_entry.py")
def a_budget_pays_for_ten_percent_more_steps(steps, *given, **named):
    return int(1.1 * steps(*given, **named)) + 1


@fault("entry:Entry.plan", "test_entry.py", "training/test_early_ends.py")
def planned_steps_count_when_they_are_taken(plan, self, steps, declared=0):
    return plan(self, self.taken, declared)


@fault("entry:Entry.plan", "training/test_early_ends.py")
def a_declared_plan_is_forgotten(plan, self, steps, declared=0):
    return plan(self, steps - declared if declared >= steps else steps)


@fault("entry:Entry.is_settled", "test_entry.py", "training/test_early_ends.py")
def steps_hide_among_those_that_were_left_out(settled, self):
    return not self.closed


@fault("entry:Entry.surplus", "test_entry.py", "training/test_early_ends.py")
def steps_beyond_a_declared_plan_take_its_place(surplus, self, steps):
    return 0


@fault("account:known_steps", "test_entry.py")
def planned_steps_account_for_others(known, ledger):
    return sum(run.steps for run in ledger.runs)


@fault("entry:Entry.withdraw_plan", "training/test_early_ends.py")
def an_execution_that_failed_costs_a_training(back, self):
    return None


@fault("training.training:Training._left", "training/test_early_ends.py")
def epochs_of_unknown_length_are_not_planned(left, self):
    found = left(self)
    return 0 if found == float("inf") else found


@fault("accounting.ledger:Ledger.merge", "accounting/test_ledger.py")
def an_open_plan_is_forgotten_in_a_merge(merge, self, other):
    merge(self, other)
    for run_id, run in self.entries.items():
        self.record(run_id, run.steps, run.taken)


@fault(
    "account:Account.close_session",
    "training/test_backup.py::test_the_state_of_a_finished_training_can_be_kept",
)
def a_backup_leaves_its_run_open(close, self):
    return None


@fault(
    "optimizers.si_dpsgd:SIDPSGDOptimizer.resume",
    "training/test_backup.py::test_means_go_on_without_velocity_behind_lost_steps",
)
def velocities_outlive_lost_steps(resume, self, session, state, lost):
    return resume(self, session, state, 0)


@fault("accounting.run:Run.for_users", "training/test_model_privacy.py")
def guarantees_for_users_are_for_examples(for_users, run, examples):
    return run


@fault("training.backup_folder:BackupFolder.read", "training/test_backup.py")
def reserved_steps_are_forgotten(read, self):
    found = read(self)
    return found and (*found[:2], 0)


@fault("training.checks:check_optimizer", "training/test_private_training.py")
def any_optimizer_is_accepted(check, *given, **named):
    return None


@fault("training.checks:refuse_mixing_layers", "training/test_checks.py")
def layers_that_mix_examples_are_accepted(check, *given, **named):
    return None


# -- the sums of each engine -----------------------------------------------------------------------


def larger_sum(run, *given, **named):
    lot = run(*given, **named)
    return dataclasses.replace(lot, sums=[*lot.sums[:-1], lot.sums[-1] * 1.02])


for engine in ("ghost", "exact", "loop", "lotwise"):
    larger_sum.__name__ = f"the_{engine}_engine_sums_wrongly"
    path, test = f"gradients.engines.{engine}:bounded_sum", f"gradients/engines/test_{engine}.py"
    fault(path, test)(larger_sum)


@fault("gradients.chunks:sum_of_chunks", "gradients/test_lot.py")
def chunks_are_left_out(total, run, chunks, *rest):
    return total(run, chunks - 1, *rest)


# -- public statistics, released means ---------------------------------------------------------------


@fault("layers.public:PublicBatchNormalization._moments", "layers/test_public.py")
def public_normalization_uses_statistics_of_the_lot(moments, self, inputs, x):
    moments(self, inputs, x)
    axes = [axis for axis in range(x.shape.rank) if axis != self.axis % x.shape.rank]
    return tf.nn.moments(x, axes, keepdims=True)


@fault(
    "layers.private_statistics:PrivateBatchNormalization.pulls",
    "gradients/engines/test_private_statistics.py",
)
def gradients_of_running_statistics_are_doubled(pulls, self, *given):
    return [2.0 * pull for pull in pulls(self, *given)]


@fault("optimizers.si_dpsgd:SIDPSGDOptimizer.update", "optimizers/test_si_dpsgd.py")
def si_dpsgd_shows_its_means(update, self, bounded, session, variables, *rest):
    scale = update(self, bounded, session, variables, *rest)
    for mean, variable in zip(self._hidden.means, variables, strict=True):
        variable.assign(mean)
    return scale


@fault("optimizers.si_dpsgd:SIDPSGDOptimizer.release_means", "optimizers/test_si_dpsgd.py")
def si_dpsgd_releases_its_means_for_nothing(release, self, variables):
    for mean, variable in zip(self._hidden.means, variables, strict=True):
        variable.assign(mean)


# -- several replicas and machines -------------------------------------------------------------------

REPLICAS = "training/test_replicas.py"


@fault("noise.gaussian:NoiseSource._counters", REPLICAS)
def each_replica_draws_noise_of_its_own(counters, self, draw):
    context = tf.distribute.get_replica_context()
    replica = 0 if context is None else context.replica_id_in_sync_group
    key, high = counters(self, draw)
    return key, high + tf.cast(replica, tf.int64) * 2**40


@fault("data.shares:Shares.units", REPLICAS)
def a_share_is_counted_twice(units, self, drawn, share, rows, unit):
    return units(self, drawn, 0 if share == 1 else share, rows, unit)


@fault("training.replicas:whole_lot", REPLICAS)
def a_mean_stands_for_the_sum_of_the_shares(whole, share, sharded):
    parts = tf.distribute.get_replica_context().num_replicas_in_sync
    lot = whole(share, sharded)
    return dataclasses.replace(lot, sums=[total / parts for total in lot.sums])


@fault("training.replicas:first_place", REPLICAS)
def masks_follow_the_place_in_a_share(first, *given):
    return tf.zeros_like(first(*given))


@fault("training.feed:order_of_shard", "training/test_machines.py")
def two_shards_draw_alike(order, secret, number):
    return order(secret, 0)


@fault("training.machines:_digest", "training/test_machines.py")
def machines_do_not_compare_their_trainings(digest, text):
    return 0
