"""Removes every guard, one at a time, and shows which test fails without it.

A guard is a piece of code that keeps a guarantee true: a refusal, a condition, a lower bound. Each
entry of `GUARDS` has a textual replacement that removes or weakens one guard, and the tests that must
fail then. If two guards catch the same error, one entry removes both (`also`), and says so.

    python tests/guards.py              # all of them, some minutes
    python tests/guards.py NAME...      # guards whose names contain one of the words
    python tests/guards.py --list
    python tests/guards.py --check      # only run all named tests on the unchanged tree

The script works on a copy of the repository. Every run of pytest is a process of its own, forked from
a process that has imported TensorFlow but nothing of tfdp. The exit code is 1 if a guard is GREEN (no
test fails without it) or BROKEN (the tests did not run).
"""

import argparse
import compileall
import dataclasses
import importlib
import multiprocessing
import os
import pathlib
import py_compile
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPIED = ("tfdp", "tests", "flags", "setup.cfg", "train.py")
_SLOW_IMPORTS = (
    "tensorflow",
    "keras",
    "h5py",
    "scipy.stats",
    "dp_accounting.pld.privacy_loss_distribution",
)
# Seconds after which a run of pytest is killed.
_LIMIT = 180


@dataclasses.dataclass(frozen=True)
class Guard:
    """One guard, its removal, and the tests that detect the removal.

    Attributes:
        name: short unique name.
        file: path of the file from the root of the repository.
        before: the text to replace, which occurs once in the file.
        after: the replacement.
        tests: node ids of pytest, at least one of which must fail without the guard.
        protects: what happens without the guard.
        also: further (file, before, after), for guards that catch the same error.
    """

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    protects: str
    also: tuple[tuple[str, str, str], ...] = ()

    @property
    def edits(self) -> tuple[tuple[str, str, str], ...]:
        """All replacements, as (file, before, after)."""
        return ((self.file, self.before, self.after), *self.also)


WEIGHTS = "tfdp/training/accounted_weights.py"
PARTICIPATION = "tfdp/accounting/numerics/participation.py"
SESSION = "tfdp/session.py"
ACCOUNT = "tfdp/account.py"
TRAINING = "tfdp/training/private_training.py"
STEP = "tfdp/training/step.py"
METRICS = "tfdp/training/lot_metrics.py"
FEEDING = "tfdp/training/feeding.py"
START, TEST_START = "tfdp/experiments/start.py", "tests/experiments/test_start.py"
BACKUP_STATE = "tfdp/training/backup_state.py"
BACKUP_FOLDER = "tfdp/training/backup_folder.py"
TEST_HANDS = "tests/training/test_backup_hands.py"
BATCHES = "tfdp/training/batches.py"
TARGETS = "tfdp/gradients/targets.py"
PLANNING = "tfdp/training/planning.py"
LOOP = "tfdp/training/loop.py"
STEERING = "tfdp/training/steering.py"
FUNCTION = "tfdp/training/train_function.py"
LOTS = "tfdp/data/lots.py"
SCHEMES = "tfdp/data/schemes.py"
OPTIMIZER = "tfdp/optimizers/dp_keras_optimizer.py"
ACCOUNTED = "tfdp/optimizers/accounted.py"
SI = "tfdp/optimizers/si_dpsgd.py"
MATRIX = "tfdp/optimizers/matrix.py"
NOISE = "tfdp/noise/gaussian.py"
SECRET = "tfdp/noise/secret_file.py"
WRITES = "tfdp/gradients/state_writes.py"
FORWARD = "tfdp/gradients/forward.py"
VALIDATION = "tfdp/training/checks.py"
BOUNDING = "tfdp/gradients/engines/ending.py"
BOUNDS = "tfdp/gradients/bounds.py"
SAMPLING = "tfdp/accounting/sampling.py"
CONTRIBUTION = "tfdp/accounting/contribution.py"
LEDGER = "tfdp/accounting/ledger.py"
STEPS = "tfdp/accounting/gaussian_steps.py"
TABLES = "tfdp/accounting/noise_tables.py"
FILES = "tfdp/_files.py"
FOLDER = "tfdp/experiments/result_folder.py"
PARTIAL = "tfdp/experiments/partial_folder.py"
PLACES = "tfdp/experiments/places.py"
UNFINISHED = "tfdp/experiments/unfinished.py"
_AT_TRACING = "            refuse_mixing_layers(self, privacy.public_preprocessing)\n"

GUARDS = (
    # -- where training starts, and what words are ------------------------------------------------
    Guard(
        "a start: the release of a private training is refused",
        START,
        '        if each["mechanism"] != NONE:',
        "        if False:",
        (f"{TEST_START}::TestWhereWeightsComeFrom::test_a_private_release_is_refused",),
        "what was spent on the initial weights is left out of the statement",
    ),
    Guard(
        "a start: weights trained on the same data without privacy are refused",
        START,
        "            if dataset and are_of_the_same(dataset, experiment.dataset):",
        "            if False:",
        (
            f"{TEST_START}::TestWhereWeightsComeFrom::"
            "test_training_on_the_same_data_without_privacy_is_refused",
        ),
        "private data that were seen without noise are declared public",
    ),
    Guard(
        "a start: what was trained on goes from result to result",
        START,
        "    trained_on = tuple(trained_on)",
        "    trained_on = ()",
        (f"{TEST_START}::TestWhereWeightsComeFrom::test_so_is_it_where_other_data_came_last",),
        "public data that came last hide private ones that came first",
    ),
    Guard(
        "a start: a damaged record beside the weights is refused",
        START,
        "    if experiment.private and not record and os.path.lexists(os.path.join(folder, RECORD)):",
        "    if False:",
        (
            f"{TEST_START}::TestWhereWeightsComeFrom::test_a_damaged_record_beside_the_weights_is_refused",
        ),
        "weights of the same data are public once their record is cut",
    ),
    Guard(
        "a start: a file with a ledger is refused",
        START,
        "    if ledger_in_file(path) is not None:",
        "    if False:",
        (f"{TEST_START}::TestWhereWeightsComeFrom::test_a_file_with_a_ledger_is_refused",),
        "what the ledger holds is declared public",
    ),
    Guard(
        "features: the statistics of a whole lot are not computed once",
        "tfdp/experiments/features.py",
        '    if examples.statistics != "example" or',
        "    if",
        (
            "tests/experiments/test_features.py::"
            "test_with_the_statistics_of_a_lot_nothing_is_computed_once",
        ),
        "another function is trained than the one that is accounted",
    ),
    Guard(
        "data: splits that share records are refused",
        "tfdp/data/datasets.py",
        "    return one.filename == other.filename and end > max(one.skip, other.skip)",
        "    return False",
        ("tests/data/test_datasets.py::test_positions_that_overlap_are_refused",),
        "the test accuracy is that of private training data",
    ),
    Guard(
        "data: splits that have an example several times are refused",
        "tfdp/data/datasets.py",
        "    if any(_share(one, other) for one, other in itertools.combinations(parts, 2)):",
        "    if False:",
        ("tests/data/test_datasets.py::test_a_split_that_repeats_examples_is_refused",),
        "an example contributes as often as the split has it, and is counted once",
    ),
    # -- trainings that go on after a crash -------------------------------------------------------
    Guard(
        "a crash: steps that were reserved stay counted",
        BACKUP_STATE,
        "    counted = max(kept, reserved, ",
        "    counted = max(kept, ",
        ("tests/training/test_backup.py::test_steps_that_are_lost_stay_counted",),
        "steps after the last state are spent unseen",
    ),
    Guard(
        "a crash: both files are of one moment",
        BACKUP_STATE,
        "    if reserved < kept:\n",
        "    if False:\n",
        ("tests/training/test_backup.py::test_damaged_backups_are_refused[old reservation]",),
        "an older file of reservations hides steps that were begun",
    ),
    Guard(
        "a crash: both copies of a reservation",
        BACKUP_FOLDER,
        "if len(content) != _SIZE or not all(whole):",
        "if len(content) != _SIZE:",
        (
            "tests/training/test_backup.py::"
            "test_damage_to_one_copy_of_a_reservation_changes_nothing[0]",
            "tests/training/test_backup.py::"
            "test_damage_to_one_copy_of_a_reservation_changes_nothing[2]",
        ),
        "the reservation before the last one is taken for the last one",
    ),
    Guard(
        "a crash: files that somebody has removed",
        BACKUP_FOLDER,
        "        if missing and found == _MARKS[1]:\n",
        "        if False:\n",
        ("tests/experiments/test_resume.py::test_removed_files_are_missed_every_time[both]",),
        "a training whose spending is not known begins anew in silence",
    ),
    Guard(
        "a crash: a folder of the state that somebody has emptied",
        "tfdp/experiments/unfinished.py",
        "        if there and not ended and self._mark is None and not self.is_over:\n",
        "        if False:\n",
        ("tests/experiments/test_resume.py::test_removed_files_are_missed_every_time[all]",),
        "a training whose spending is not known begins anew in silence",
    ),
    Guard(
        "a crash: an earlier state",
        BACKUP_FOLDER,
        'if last is not None and writer not in (last[_WRITER], last["after"]):',
        "if False:",
        (f"{TEST_HANDS}::test_an_earlier_state_is_refused[matrix]",),
        "correlated noise of later steps is made again from a key that did not make it",
    ),
    Guard(
        "a crash: the lock is still this process's",
        BACKUP_FOLDER,
        "        if not same:\n",
        "        if False:\n",
        (f"{TEST_HANDS}::test_a_removed_lock_ends_the_training",),
        "two processes train from one state, and each states the epsilon of one",
    ),
    Guard(
        "a crash: weights that a state gives back are known as trained",
        BACKUP_STATE,
        "trained = (*model.trainable_variables, *averages) if counted else ()",
        "trained = ()",
        (f"{TEST_HANDS}::test_restored_weights_bring_their_ledger_to_another_model",),
        "another model gets the weights without what they cost",
    ),
    Guard(
        "a crash: reservations that cannot be read stay",
        "tfdp/experiments/unfinished.py",
        '        if copy.strip(b" ") and (_digest(text) != told or json',
        "        if _digest(text) == told and (json",
        ("tests/experiments/test_resume.py::test_what_cannot_be_read_stays",),
        "a training that had begun begins anew",
    ),
    Guard(
        "moments of the lot beside private averages are accounted",
        "tfdp/layers/private_statistics.py",
        'return self.statistics == "batch"',
        "return False",
        (
            "tests/layers/test_private_statistics_of_lots.py::"
            "test_it_is_accounted_as_statistics_over_the_lot",
        ),
        "an example moves the gradients of all others, and is accounted for its own",
    ),
    Guard(
        "a crash: shuffled lots keep their places in all epochs",
        FEEDING,
        "left_out = start if kind.fixed_order else place.taken",
        "left_out = start",
        ("tests/training/test_backup.py::test_no_example_takes_part_twice_in_an_epoch[shuffle]",),
        "an example takes part twice in an epoch, and is counted once",
    ),
    Guard(
        "a crash: the noise of lost steps",
        MATRIX,
        "for step in range(saved.steps - lost, saved.steps):",
        "for step in range(0):",
        ("tests/training/test_backup.py::test_correlated_noise_goes_on_behind_lost_steps",),
        "noise does not take back the noise of the steps before",
    ),
    Guard(
        "a crash: velocities",
        SI,
        " * (lost == 0)",
        "",
        ("tests/training/test_backup.py::test_means_go_on_without_velocity_behind_lost_steps",),
        "with increasing learning rates an early gradient moves later means more than accounted",
    ),
    Guard(
        "a crash: the place behind lost steps, where a training has several fits",
        BACKUP_STATE,
        'return _later(place, lost, about["length"])',
        "return _later(place, lost, feed.steps)",
        (
            "tests/experiments/test_resume.py::"
            "test_a_crash_in_any_part_of_a_training_changes_no_statement[crashes2-dpsgd]",
        ),
        "a training ends after fewer steps than it states",
    ),
    Guard(
        "a crash: a training goes on with its own settings",
        UNFINISHED,
        "            _check_same(about, json.loads(json.dumps(settings)), self.path)\n",
        "",
        (
            "tests/experiments/test_unfinished.py::test_other_settings_are_refused_by_name_and_lose_nothing",
        ),
        "the result names settings that some of its steps did not have",
    ),
    Guard(
        "a crash: a training that has a result is over",
        UNFINISHED,
        "        if self._has_begun and not self.is_over:\n",
        "        if self._has_begun:\n",
        (
            "tests/experiments/test_unfinished.py::test_a_finished_training_is_not_gone_on_with_when_it_is_overwritten",
        ),
        "a second result is made from the state of the first, and states no more than the first",
    ),
    Guard(
        "a crash: settings have a digest",
        UNFINISHED,
        "        if _digest(text) != digest:\n",
        "        if False:\n",
        ("tests/experiments/test_unfinished.py::test_damaged_settings_are_refused[edited]",),
        "edited settings are taken for those of the training",
    ),
    # -- the session: every step is counted, and within its limit --------------------------------
    Guard(
        "the device counts up to the limit",
        SESSION,
        "allowed = (self._spent < self._limit) & admitted",
        "allowed = admitted",
        ("tests/test_session.py::test_a_traced_step_of_a_closed_session_changes_nothing",),
        "a step that the host did not refuse (a traced function that was kept) goes on without end",
    ),
    Guard(
        "a closed session allows nothing",
        SESSION,
        "        self.record()\n        self._set_limit(self.spent)",
        "        self.record()",
        ("tests/test_session.py::test_a_traced_step_of_a_closed_session_changes_nothing",),
        "steps of a function that was traced for a closed entry are counted nowhere",
    ),
    Guard(
        "the host refuses beyond the limit",
        SESSION,
        "if self.authorized + steps > self.limit:",
        "if False:",
        ("tests/test_session.py::test_the_budget_holds_within_an_execution_of_several_steps",),
        "an execution of several steps begins, although the budget does not pay for all of them "
        "(the device ends it in the middle, with an error of TensorFlow)",
    ),
    Guard(
        "a lot with too many examples is not counted",
        SESSION,
        "allowed = (self._spent < self._limit) & admitted",
        "allowed = self._spent < self._limit",
        (
            "tests/training/test_frozen_run.py::"
            "test_lots_of_more_rows_than_the_run_knows_change_nothing[compiled2]",
        ),
        "under XLA, which drops assertions, the weights move by a lot that the proof does not cover",
    ),
    Guard(
        "the largest lot",
        SESSION,
        "return tf.math.count_nonzero(sample_weight, dtype=tf.int64) <= largest",
        "return tf.constant(True)",
        (
            "tests/training/test_frozen_run.py::"
            "test_lots_of_more_rows_than_the_run_knows_change_nothing[compiled0]",
        ),
        "more examples are mixed in one lot than the sensitivity of batch statistics assumes",
    ),
    Guard(
        "another optimizer in the middle",
        SESSION,
        "if optimizer is not self.optimizer or [",
        "if [",
        (
            "tests/training/test_frozen_run.py::test_another_optimizer_in_the_middle_of_a_fit_is_refused",
        ),
        "steps of an optimizer with other noise are accounted as those of the first",
    ),
    Guard(
        "other weights in the middle",
        SESSION,
        """if optimizer is not self.optimizer or [id(v) for v in variables] != [
            id(v) for v in self.variables
        ]:""",
        "if optimizer is not self.optimizer:",
        (
            "tests/training/test_frozen_run.py::"
            "test_other_trainable_weights_in_the_middle_of_a_fit_are_refused",
        ),
        "a strategy or means of other weights go on with these",
    ),
    Guard(
        "the sensitivity that the accounting assumes",
        SESSION,
        "if not declared <= assumed * (1 + 1e-9):",
        "if False:",
        (
            "tests/training/test_frozen_run.py::"
            "test_an_engine_that_bounds_less_than_is_assumed_is_refused[compiled1]",
        ),
        "an engine that bounds less than the proof assumes trains all the same",
    ),
    Guard(
        "the engine's word is compared",
        STEP,
        "    session.check_sensitivity(lot.relative_sensitivity)\n",
        "",
        (
            "tests/training/test_frozen_run.py::"
            "test_an_engine_that_bounds_less_than_is_assumed_is_refused[compiled0]",
        ),
        "nobody asks an engine what it bounds",
    ),
    Guard(
        "a fork in the middle",
        SESSION,
        "if os.getpid() != self._process:",
        "if False:",
        ("tests/training/test_frozen_run.py::test_a_fork_in_the_middle_of_a_fit_is_refused",),
        "parent and child draw the same noise",
    ),
    Guard(
        "an entry goes on with equal fields only",
        SESSION,
        "fields == self._fields",
        "True",
        ("tests/test_session.py::test_other_settings_open_another_entry",),
        "steps with other settings are accounted under the description of earlier ones",
    ),
    Guard(
        "an entry goes on with its physical batches only",
        SESSION,
        "and plan.physical_batch_size == self.plan.physical_batch_size",
        "and True",
        ("tests/test_session.py::test_other_settings_open_another_entry",),
        "what is traced for one size of physical batches is used for another",
    ),
    Guard(
        "an entry goes on with its optimizer only",
        SESSION,
        "and optimizer is self.optimizer\n",
        "and True\n",
        ("tests/test_session.py::test_an_equal_optimizer_opens_another_entry",),
        "another optimizer goes on in an entry whose noise stream it does not have",
    ),
    Guard(
        "an entry goes on with its weights only",
        SESSION,
        "            and [id(v) for v in variables] == [id(v) for v in self.variables]\n",
        "",
        ("tests/test_session.py::test_other_trainable_weights_open_another_entry",),
        "frozen weights are trained by the function that was traced before",
    ),
    Guard(
        "an entry goes on at its iteration only",
        SESSION,
        "self.first_iteration == int(optimizer.iterations.numpy()) - self.spent",
        "True",
        ("tests/test_session.py::test_iterations_that_were_moved_open_another_entry",),
        "a restored iteration makes a schedule give other rates than the table of the run",
    ),
    Guard(
        "an entry goes on in its process only",
        SESSION,
        "and os.getpid() == self._process\n",
        "and True\n",
        ("tests/test_session.py::test_another_process_opens_another_entry",),
        "a child goes on with the noise that its parent draws, too (where the session is asked "
        "again, it refuses)",
    ),
    Guard(
        "groups go on taking turns",
        SESSION,
        "return plan.lots is self.plan.lots and plan.turn == self.next_turn % plan.groups",
        "return True",
        ("tests/training/test_feeding.py::test_groups_take_turns_through_epochs_and_fits",),
        "other lots deal examples into other groups, so that one comes back too soon",
    ),
    Guard(
        "epochs are whole",
        SESSION,
        "return plan.lots is self.plan.lots and plan.start == at",
        "return True",
        (
            "tests/test_session.py::"
            "test_whole_fits_go_on_in_one_entry_and_interrupted_epochs_open_another",
        ),
        "an epoch that was broken off begins anew, and its examples count once instead of twice",
    ),
    Guard(
        "a table ends its run",
        SESSION,
        "limit = _UNLIMITED if described is None else described",
        "limit = _UNLIMITED",
        ("tests/test_session.py::test_no_step_runs_beyond_its_table",),
        "steps beyond a table of noise take a value that nobody accounts for",
    ),
    Guard(
        "the budget limits steps",
        SESSION,
        "if affordable < limit:",
        "if False:",
        ("tests/test_session.py::test_fit_stops_at_the_budget_and_says_so",),
        "training goes on beyond the budget",
    ),
    Guard(
        "the budget pays for earlier runs first",
        SESSION,
        "earlier=wanted[2],",
        "earlier=(),",
        ("tests/test_session.py::test_a_budget_that_is_given_later_counts_what_was_spent",),
        "what was spent before does not count against the budget",
    ),
    # -- the account: what was spent stays with the weights --------------------------------------
    Guard(
        "weights that were trained here are known",
        ACCOUNT,
        "known = _TRAINED_HERE.get(digest)",
        "known = None",
        (
            "tests/test_account.py::"
            "test_numbers_that_were_trained_here_bring_their_ledger[get and set-private]",
        ),
        "copied numbers begin with an empty ledger",
    ),
    Guard(
        "weights that changed are not accounted",
        ACCOUNT,
        "if changed and not explained:",
        "if False:",
        (
            "tests/test_account.py::"
            "test_unaccounted_training_is_seen_by_the_statement[apply_a_tape]",
        ),
        "training by a plain tape between private fits is proven as if it had not been",
    ),
    Guard(
        "accounts that meet become one",
        ACCOUNT,
        "        self._ledger.merge(other.ledger)\n        self._runs |= other",
        "        self._runs |= other",
        ("tests/test_account.py::test_a_step_of_an_account_that_was_absorbed_is_refused",),
        "a model of layers of two trained models knows what was spent on one of them",
    ),
    Guard(
        "the session of an absorbed account is closed",
        ACCOUNT,
        "        other.close_session()\n",
        "",
        ("tests/test_account.py::test_a_step_of_an_account_that_was_absorbed_is_refused",),
        "a fit that runs meanwhile counts its steps in a ledger that nobody looks at",
    ),
    Guard(
        "a file brings its ledger without an optimizer",
        WEIGHTS,
        "        if ledger is not None:\n            self._account.bring(ledger)\n",
        "",
        ("tests/test_account.py::test_a_file_brings_what_was_spent[weights before compile]",),
        "load_weights before compile loses what was spent",
    ),
    Guard(
        "numbers that are set are looked at",
        WEIGHTS,
        "variable._tfdp_seen = None\n        account.examine(self.weights)",
        "variable._tfdp_seen = None",
        ("tests/test_account.py::test_numbers_that_are_set_bring_their_ledger_into_files",),
        "weights that are set and saved at once are saved with an empty ledger",
    ),
    Guard(
        "numbers that are taken out in the middle are remembered",
        WEIGHTS,
        "        self._look()\n        return super().get_weights()",
        "        return super().get_weights()",
        ("tests/test_account.py::test_numbers_of_the_middle_of_an_epoch_bring_their_ledger",),
        "weights that a callback takes out after a step begin elsewhere with an empty ledger",
    ),
    Guard(
        "weights are looked at before training",
        TRAINING,
        "        optimizer.check_ledger(account.ledger)\n        account.look(self.weights)",
        "        optimizer.check_ledger(account.ledger)",
        (
            "tests/test_account.py::"
            "test_unaccounted_training_between_two_private_ones_is_seen[<lambda>-apply_a_tape]",
        ),
        "the next private fit covers up what a plain one did",
    ),
    Guard(
        "weights are looked at before a statement",
        WEIGHTS,
        "        self._look()\n        optimizer, ledger",
        "        optimizer, ledger",
        (
            "tests/test_account.py::"
            "test_unaccounted_training_is_seen_by_the_statement[retrain_layers]",
        ),
        "privacy_spent states an epsilon of weights that were changed since",
    ),
    Guard(
        "callbacks are watched",
        WEIGHTS,
        "given = [first, *given, last]",
        "given = [first, *given]",
        ("tests/test_account.py::test_unaccounted_training_between_epochs_is_seen",),
        "what a callback trains between two epochs is taken for private steps",
    ),
    Guard(
        "the weights that steps left are remembered first",
        WEIGHTS,
        "given = [first, *given, last]",
        "given = [*given, last]",
        ("tests/test_account.py::test_unaccounted_training_by_a_callback_is_seen[sgd]",),
        "private steps and what a callback did cannot be told apart",
    ),
    Guard(
        "a fit that broke off is remembered",
        TRAINING,
        "if not whole:  # else",
        "if False:  # else",
        ("tests/test_account.py::test_an_interrupted_fit_is_accounted_for",),
        "weights of a fit that broke off are not known to be trained",
    ),
    Guard(
        "an optimizer that took more steps, in training",
        TRAINING,
        "        optimizer.check_ledger(account.ledger)\n        account.look(self.weights)",
        "        account.look(self.weights)",
        ("tests/test_session.py::test_a_checkpoint_without_its_ledger_is_refused",),
        "a restored tf.train.Checkpoint goes on without what it spent",
    ),
    Guard(
        "an optimizer that took more steps, in statements",
        WEIGHTS,
        "            optimizer.check_ledger(ledger)\n        return self._account.stated.runs",
        "            pass\n        return self._account.stated.runs",
        (
            "tests/test_account.py::"
            "test_a_ledger_that_knows_less_than_the_optimizer_is_never_stated",
        ),
        "an epsilon is stated for fewer steps than were taken",
    ),
    Guard(
        "an optimizer that took more steps, in loading",
        OPTIMIZER,
        "        self.check_ledger(self.ledger)\n",
        "",
        ("tests/training/test_serialization.py::test_a_ledger_that_knows_less_is_not_loaded",),
        "slots come with a ledger of another moment",
    ),
    Guard(
        "no ledger in the file",
        OPTIMIZER,
        "        if LEDGER_KEY not in names:\n",
        "        if LEDGER_KEY not in names:\n            return\n        if False:\n",
        ("tests/training/test_serialization.py::test_a_file_without_a_ledger_is_refused",),
        "an optimizer is restored whose spending nobody knows",
    ),
    Guard(
        "a plain fit before",
        TRAINING,
        "        self._enter_unknown_steps()\n",
        "",
        (
            "tests/test_account.py::"
            "test_a_plain_fit_before_leaves_nothing_proven[make private first]",
        ),
        "weights that a plain optimizer trained on the private data are proven private",
    ),
    Guard(
        "a budget stays",
        TRAINING,
        "        if budget is not None:\n",
        "        if True:\n",
        ("tests/test_account.py::test_a_second_make_private_keeps_the_budget",),
        "a second make_private lifts the budget",
    ),
    Guard(
        "copies know what was spent",
        TRAINING,
        '        self._account.ledger.merge(Ledger.from_json(portrait["ledger"]))\n',
        "",
        ("tests/test_account.py::test_copies_bring_ledger_budget_and_settings",),
        "a deep copy begins with an empty ledger",
    ),
    Guard(
        "looking never blesses",
        ACCOUNT,
        "            self.examine(variables)\n            if for_good:",
        "            self.remember(variables)\n            if for_good:",
        ("tests/test_account.py::test_looking_at_weights_does_not_account_for_them[get_weights]",),
        "get_weights or save takes what a plain tape did for private steps",
    ),
    Guard(
        "callbacks between steps are watched",
        WEIGHTS,
        "return not rooms <=",
        "return False and not rooms <=",
        (
            "tests/test_account.py::test_unaccounted_training_between_steps_is_seen[on_train_batch_end]",
        ),
        "what a callback trains between two steps of an epoch is taken for private steps",
    ),
    Guard(
        "a file says what its weights look like",
        OPTIMIZER,
        "            expect_digests(trained_variables(self), digests)",
        "            pass",
        ("tests/test_account.py::test_plain_training_of_a_loaded_model_is_seen[layers]",),
        "a model that was loaded, trained plainly and made private is proven as it was saved",
    ),
    Guard(
        "a model without an optimizer saves no ledger",
        WEIGHTS,
        "        elif ledger.runs or ledger.budgets:\n",
        "        elif False:\n",
        ("tests/test_account.py::test_a_model_without_an_optimizer_does_not_save_half_of_it",),
        "a file without the ledger of its weights",
    ),
    Guard(
        "a budget is not raised by the way",
        TRAINING,
        "            _refuse_larger(budget, account.ledger.budgets)\n",
        "",
        ("tests/test_account.py::test_all_budgets_hold_and_none_is_raised_by_the_way",),
        "a second make_private lifts the budget of shared weights without a word",
    ),
    Guard(
        "the train function counts its steps",
        TRAINING,
        "if not (function is None or privacy.making or function is privacy.guarded):",
        "if False:",
        ("tests/test_session.py::test_the_train_function_cannot_be_exchanged",),
        "a callback puts a plain step in place of the private one",
    ),
    Guard(
        "trainings do not nest",
        TRAINING,
        "if self._privacy.feed is not None or self._privacy.feeding:",
        "if False:",
        ("tests/test_session.py::test_trainings_do_not_nest[train_on_batch]",),
        "the rest of an epoch runs under the description of the inner training",
    ),
    Guard(
        "metrics do not write into weights",
        METRICS,
        "        with metrics_keep_to_themselves(self._model):\n",
        "        if True:\n",
        ("tests/test_session.py::test_metrics_do_not_write_into_weights[compiled0]",),
        "compute_metrics keeps a private record in a weight that is released",
    ),
    Guard(
        "lots are what they were made",
        LOTS,
        'if self.__dict__.get("_closed"):',
        "if False:",
        ("tests/test_session.py::test_lots_are_what_they_were_made[sampling]",),
        "lots are drawn in one way and described in another",
    ),
    Guard(
        "version 1 is no way around the checksum",
        LEDGER,
        'elif sorted(content) != ["runs"]:',
        "elif False:",
        ("tests/test_account.py::test_version_1_is_no_way_around_the_checksum",),
        "a ledger of today is read without its checksum and its budgets",
        also=((LEDGER, 'if ("version" in fields) != (version == _VERSION):', "if False:"),),
    ),
    Guard(
        "laws keep their mass",
        PARTICIPATION,
        "missing if missing > overflow + 1e-10 else overflow",
        "overflow",
        (
            "tests/accounting/numerics/test_participation.py::test_a_law_that_loses_mass_counts_it_as_a_loss",
        ),
        "participations that fell off a table cost nothing",
    ),
    Guard(
        "formats without a ledger",
        WEIGHTS,
        'if name.endswith((".h5", ".hdf5")) and not name.endswith(".weights.h5"):',
        "if False:",
        ("tests/test_account.py::test_formats_without_a_ledger_are_refused",),
        "the old HDF5 format drops the ledger",
    ),
    # -- training: who may step, on what ----------------------------------------------------------
    Guard(
        "a plain optimizer",
        VALIDATION,
        "    if not isinstance(optimizer, DPKerasOptimizer):\n        raise",
        "    if False:\n        raise",
        (
            "tests/training/test_private_training.py::"
            "test_a_private_model_does_not_train_with_a_plain_optimizer",
        ),
        "a private model trains without noise",
    ),
    Guard(
        "float16",
        VALIDATION,
        'if policy is not None and policy.compute_dtype == "float16":',
        "if False:",
        ("tests/training/test_private_training.py::test_float16_is_refused",),
        "gradients are scaled before they are clipped (Keras puts a LossScaleOptimizer around "
        "the private one, which is refused as a plain one)",
    ),
    Guard(
        "a fit begins again where a callback restored weights",
        TRAINING,
        "if privacy.plan is not None:",
        "if False:",
        (
            "tests/optimizers/test_si_dpsgd_optimizer.py::"
            "test_backup_and_restore_goes_on_from_what_was_saved",
        ),
        "the means of SI-DPSGD start at weights that the model no longer has",
    ),
    Guard(
        "a ledger that a callback restored counts",
        TRAINING,
        "if privacy.plan is not None:",
        "if False:",
        (
            "tests/test_session.py::"
            "test_a_restored_ledger_counts_against_the_budget_of_the_fit_that_restores_it",
        ),
        "BackupAndRestore brings a ledger that the budget of the same fit does not count (a fit begins "
        "again at its first step, and looks at its limit where the ledger changed: either would do)",
        also=((SESSION, "if self._ledger.changes != self._seen_changes:", "if False:"),),
    ),
    Guard(
        "only batches that fit drew",
        TRAINING,
        "            self._check_feed(iterator)\n",
        "",
        ("tests/test_session.py::test_only_fit_and_train_on_batch_feed_a_step",),
        "train_function takes batches of which nothing is known",
    ),
    Guard(
        "the iterator is of the very dataset",
        FUNCTION,
        "return dataset_of(iterator) is dataset",
        "return True",
        ("tests/test_session.py::test_callbacks_feed_no_step_either",),
        "a callback feeds batches of its own while fit runs",
    ),
    Guard(
        "the iterator is of the very dataset, with a strategy",
        FUNCTION,
        "return bool(inner) and all(_is_around(part, dataset) for part in inner)",
        "return True",
        ("tests/training/test_train_function.py::test_under_a_strategy_callbacks_feed_no_step",),
        "the same under a tf.distribute strategy",
    ),
    Guard(
        "train_on_batch permits one step",
        TRAINING,
        "privacy.batch = False  # for one call",
        "pass",
        ("tests/test_session.py::test_train_on_batch_permits_one_step",),
        "what runs inside of a step takes further steps on batches of its own (TensorFlow "
        "refuses one step inside of another, for reasons of its own)",
    ),
    Guard(
        "train_step is called by fit only",
        TRAINING,
        "if session is None or not privacy.feeding:",
        "if session is None:",
        ("tests/test_session.py::test_only_fit_and_train_on_batch_feed_a_step",),
        "a loop of one's own calls train_step without anybody knowing how lots are drawn",
    ),
    Guard(
        "a train_step of its own",
        TRAINING,
        "        refuse_own_train_step(self, PrivateTraining)\n",
        "",
        ("tests/training/test_private_training.py::test_a_train_step_of_its_own_is_refused",),
        "a subclass trains without bound and noise",
    ),
    Guard(
        "what counts as a train_step of its own",
        VALIDATION,
        "    if where is not None:\n",
        "    if False:\n",
        ("tests/training/test_checks.py::test_a_train_step_of_its_own_is_refused",),
        "the same, where a model is made private",
    ),
    Guard(
        "a train function of its own",
        VALIDATION,
        '_REPLACED = ("train_step", "make_train_function")',
        '_REPLACED = ("train_step",)',
        (
            "tests/training/test_checks.py::"
            "test_methods_that_would_be_ignored_are_refused_by_make_private",
        ),
        "a model makes a function that trains without bound and noise",
    ),
    Guard(
        "weights without a rule inside of a loop",
        "tfdp/gradients/rules/recording.py",
        "        if self._follows and _place() == self._place:\n",
        "        if self._follows:\n",
        (
            "tests/gradients/engines/test_ghost.py::"
            "test_unknown_layers_with_weights_in_a_loop_are_refused",
        ),
        "what is read there is only a pattern; its part of the gradient would be missing in the norm",
    ),
    Guard(
        "indices in the loop engine",
        "tfdp/gradients/engines/loop.py",
        "with checked(vectorized=False), tf.GradientTape(",
        "with tf.GradientTape(",
        (
            "tests/_compat/test_checked_indices.py::"
            "test_labels_that_are_no_class_in_the_loop_engine",
        ),
        "one example ends the training of all on a CPU, and changes nothing on a GPU",
    ),
    Guard(
        "indices that do not exist make gradients that are not finite",
        "tfdp/_compat/checked_indices.py",
        'factor = tf.where(tf.reduce_all(good), 1.0, float("nan"))',
        "factor = tf.ones([])",
        ("tests/_compat/test_checked_indices.py::test_a_row_with_a_bad_index_counts_zero",),
        "a row with a bad index is trained on as if the index were zero",
    ),
    Guard(
        "indices beyond a table that no rule covers",
        "tfdp/gradients/rules/outside.py",
        "        return tf.where(exist, indices, -1)\n",
        "        return indices\n",
        ("tests/gradients/rules/test_outside.py::test_indices_that_wrap_around",),
        "an index of 64 bits counts as another row of the table",
    ),
    Guard(
        "gradients do not see metrics",
        FORWARD,
        "        mapping += without_metrics(self.model)\n",
        "",
        (
            "tests/training/test_lot_metrics.py::"
            "test_what_metrics_have_seen_does_not_reach_the_gradients",
        ),
        "a loss scales gradients by sums of earlier private examples that have no noise",
        also=(
            (
                "tfdp/gradients/rules/recording.py",
                "        mapping += without_metrics(self.model)\n",
                "",
            ),
        ),
    ),
    Guard(
        "terms of a tied table that nearly cancel",
        "tfdp/gradients/rules/sums.py",
        "square = strict(square, tf.square(largest), left.shape[2] + right.shape[2], None)",
        "square = tf.maximum(square, 0.0)",
        (
            "tests/gradients/rules/test_sums.py::test_terms_that_cancel_between_uses_are_bounded_as_they_are_added",
        ),
        "huge look-ups and products of one example cancel in its norm, and not in the sum",
    ),
    Guard(
        "the rows of one call stay together",
        "tfdp/gradients/engines/ghost.py",
        "shape = tf.concat([[rows * width], tf.shape(leaf)[2:]], axis=0)",
        "shape = tf.concat([[-1], tf.shape(leaf)[2:]], axis=0)",
        ("tests/gradients/engines/test_ghost.py::test_tensors_of_another_width_fail",),
        "a rule's tensors of several widths would be taken for gradients of other rows",
    ),
    Guard(
        "layers that mix examples, in training",
        TRAINING,
        "        refuse_mixing_layers(self, self._privacy.public_preprocessing)\n",
        "",
        (
            "tests/training/test_private_training.py::test_batch_normalization_is_refused_by_name[False]",
        ),
        "a model that was built after make_private trains with batch normalization (what it "
        "writes is refused while the step is traced)",
        also=((TRAINING, _AT_TRACING, "            pass\n"),),
    ),
    Guard(
        "layers that mix examples, at each trace of a step",
        TRAINING,
        _AT_TRACING,
        "            pass\n",
        (
            "tests/training/test_frozen_normalization.py::"
            "test_unfreezing_between_two_steps_is_noticed_where_the_step_is_traced_anew",
        ),
        "a callback unfreezes a layer without weights that train, and a later trace mixes examples",
    ),
    Guard(
        "a frozen batch normalization with a call of its own",
        "tfdp/_compat/keras.py",
        "    return layer.trainable or not stock\n",
        "    return layer.trainable\n",
        (
            "tests/training/test_frozen_normalization.py::"
            "test_a_class_with_a_call_of_its_own_is_refused_though_frozen",
        ),
        "a user's call may take statistics of the batch, whatever `trainable` says",
    ),
    Guard(
        "a file of an optimizer that was not built brings its ledger",
        OPTIMIZER,
        "        self._account.bring(saved)\n",
        "",
        (
            "tests/training/test_serialization.py::"
            "test_slots_of_another_optimizer_are_left_out_and_its_ledger_is_not",
        ),
        "what was spent is lost where the slots do not fit",
    ),
    Guard(
        "several replicas",
        STEP,
        "if strategy.num_replicas_in_sync > 1:",
        "if False:",
        ("tests/training/test_private_training.py::test_several_replicas_are_refused_quickly",),
        "noise and sums count once for each replica",
    ),
    Guard(
        "planned steps are counted where a callback ends training",
        TRAINING,
        "                if left := progress.left_out():\n",
        "                if left := 0:\n",
        (
            "tests/training/test_chosen_ends.py::test_early_stopping_counts_the_plan",
            "tests/training/test_chosen_ends.py::test_the_next_training_comes_on_top",
        ),
        "an epsilon at a time that the weights chose is not proven",
    ),
    Guard(
        "planned steps are counted as soon as the end is decided",
        "tfdp/account.py",
        "        if session is None or not left_out:\n",
        "        if True:\n",
        (
            "tests/training/test_chosen_ends.py::"
            "test_files_that_are_written_between_the_decision_and_the_end_count_the_plan",
        ),
        "a file states too little of weights that are kept because of what the others showed",
    ),
    Guard(
        "an end in an epoch of unknown length proves nothing",
        "tfdp/account.py",
        "    return left_out == math.inf and not session.is_limited\n",
        "    return False\n",
        (
            "tests/training/test_chosen_ends.py::"
            "test_an_end_in_the_first_epoch_of_an_unknown_length_proves_nothing",
        ),
        "steps that were planned are not counted, because nobody knows how many they are",
    ),
    Guard(
        "the file of the best weights counts all planned steps",
        "tfdp/account.py",
        "        if not self.chosen_among or session is None:\n",
        "        if True:\n",
        ("tests/training/test_chosen_ends.py::test_the_best_file_counts_the_plan",),
        "the choice among weights tells of all of them",
    ),
    Guard(
        "what was left out stays counted after a crash",
        "tfdp/training/backup_state.py",
        "max(kept, reserved, ledger.steps(run_id), 0 if known is None else known.steps)",
        "max(kept, reserved, 0 if known is None else known.steps)",
        (
            "tests/training/test_chosen_ends.py::"
            "test_a_backup_of_a_training_that_was_left_counts_all",
        ),
        "the steps that the plan counts would be forgotten",
    ),
    Guard(
        "TensorFloat-32",
        TRAINING,
        "            keep_float32_products()\n",
        "",
        (
            "tests/gradients/test_precision.py::test_training_turns_it_off",
            "tests/gradients/test_precision.py::test_it_is_off_at_every_step",
        ),
        "norms are off by 1e-3 on a GPU, and so is the bound",
    ),
    Guard(
        "hidden state",
        STEP,
        "    traced = refuse_hidden_state(forward, x, y)\n    session",
        '    traced = __import__("types").SimpleNamespace(\n'
        "        updates_metrics=False, loss_updates_metrics=False, adds_losses=False\n"
        "    )\n    session",
        (
            "tests/training/test_private_training.py::test_a_layer_that_keeps_what_it_sees_does_not_train",
        ),
        "a layer keeps sums of private examples in a variable of its own",
    ),
    Guard(
        "a step is counted after its data",
        STEP,
        "with tf.control_dependencies(tf.nest.flatten(x)):",
        "with tf.control_dependencies([]):",
        ("tests/training/test_train_function.py::test_data_that_ends_early_ends_training",),
        "steps that never had data are counted, so that the entry is of another run than the weights",
    ),
    Guard(
        "the update waits for the count",
        STEP,
        "noise_scale = tf.cond(allowed, update, lambda: tf.zeros([]))",
        "noise_scale = update()",
        (
            "tests/training/test_frozen_run.py::"
            "test_lots_of_more_rows_than_the_run_knows_change_nothing[compiled2]",
        ),
        "under XLA a step that is not allowed moves the weights",
    ),
    Guard(
        "lots of a known size",
        STEP,
        "    if session.fixes_rows:\n",
        "    if False:\n",
        ("tests/gradients/engines/test_public_normalization.py::test_training[batch-plain]",),
        "with batch statistics the engine bounds another number of rows than the proof has (the "
        "sensitivity check refuses all training then)",
    ),
    Guard(
        "a seed of the lots is told",
        PLANNING,
        '    fields["insecure_seed"] |= plan.insecure_seed\n',
        "",
        ("tests/training/test_steering.py::test_a_seed_of_fit_is_one_of_the_lots",),
        "amplification by lots that somebody can draw again",
    ),
    Guard(
        "a loop examines what it does to the weights",
        LOOP,
        "                    account.examine(model.weights)  # what the loop did since the last step\n",
        "",
        ("tests/training/test_loop.py::test_weights_that_the_loop_changes_leave_nothing_proven",),
        "a loop trains without noise between two private steps",
    ),
    Guard(
        "a loop refuses other trainings when it begins",
        LOOP,
        "    model._refuse_nested()  # another training may have begun meanwhile\n",
        "",
        (
            "tests/training/test_loop.py::"
            "test_a_loop_that_was_made_during_another_is_refused_when_it_begins",
        ),
        "two loops draw lots in turns under one entry of the ledger",
    ),
    Guard(
        "spent weights get no whole budget",
        "tfdp/training/calibrated.py",
        "    if model.privacy.ledger.runs:\n",
        "    if False:\n",
        ("tests/training/test_calibrated.py::test_weights_that_have_spent_something_are_refused",),
        "noise for the whole budget although a part is spent (the budget then refuses the last steps)",
    ),
    Guard(
        "batch statistics are told",
        PLANNING,
        "batch_statistics=uses_batch_statistics(model),",
        "batch_statistics=False,",
        (
            "tests/gradients/engines/test_public_normalization.py::test_batch_statistics_are_accounted",
        ),
        "one example moves all others, and the accounting takes it for one (the engine declares "
        "more than that, which is refused)",
    ),
    # -- callbacks and data ---------------------------------------------------------------------
    Guard(
        "callbacks are asked",
        WEIGHTS,
        "    refuse_steering(given, training_metrics)\n",
        "",
        (
            "tests/training/test_steering.py::"
            "test_callbacks_that_follow_training_metrics_are_refused[EarlyStopping-list]",
        ),
        "the number of steps follows the training loss",
    ),
    Guard(
        "stopping at a NaN",
        STEERING,
        "if isinstance(callback, keras.callbacks.TerminateOnNaN):",
        "if False:",
        (
            "tests/training/test_steering.py::"
            "test_callbacks_that_follow_training_metrics_are_refused[TerminateOnNaN-list]",
        ),
        "the number of steps tells of an example with a NaN",
    ),
    Guard(
        "the best checkpoint",
        STEERING,
        "            monitors = callback.save_best_only\n",
        "            monitors = False\n",
        (
            "tests/training/test_steering.py::"
            "test_callbacks_that_follow_training_metrics_are_refused[ModelCheckpoint-list]",
        ),
        "the checkpoint that is kept was chosen by the training loss",
    ),
    Guard(
        "monitors that only look like validation",
        STEERING,
        "    if monitor in training_metrics:\n        return False\n",
        "",
        (
            "tests/training/test_steering.py::"
            "test_a_training_metric_that_is_called_like_a_validation_metric_is_refused",
        ),
        "a training metric called val_accuracy steers",
    ),
    Guard(
        "no batch above the first",
        BATCHES,
        "check = tf.debugging.assert_less_equal(rows, size, _LARGER.format(size))",
        "check = tf.no_op()",
        (
            "tests/training/test_feeding.py::"
            "test_a_larger_batch_than_the_first_is_refused_before_its_step",
        ),
        "a larger batch is divided by the size of the first one (padding to a negative number of rows "
        "ends it with an error that does not help)",
    ),
    Guard(
        "padding of a user's batches is absent",
        BATCHES,
        "        weights = _filled(weights, rows)\n",
        "",
        (
            "tests/training/test_feeding.py::"
            "test_batches_of_a_user_are_padded_and_accounted_without_amplification[dataset-1]",
        ),
        "rows of padding count as examples of zeros",
    ),
    Guard(
        "no execution beyond its epoch",
        FUNCTION,
        "return most if left is None else min(most, left)",
        "return most",
        (
            "tests/training/test_train_function.py::test_no_execution_goes_beyond_its_epoch[graph-32]",
        ),
        "steps_per_execution, which is for speed, spends steps that nobody asked for",
    ),
    Guard(
        "a row without any weight is absent",
        TARGETS,
        "tf.reduce_any(present, axis=0)",
        "tf.ones([rows], tf.bool)",
        (
            "tests/gradients/test_targets.py::"
            "test_a_row_without_any_weight_is_absent_whatever_it_holds",
        ),
        "padding of lots with weights for tokens or outputs is present, and its add_loss counts",
    ),
    Guard(
        "a seed of lots matters",
        FEEDING,
        "insecure_seed=lots.seeded and _relies_on_secret_lots(lots),",
        "insecure_seed=False,",
        (
            "tests/training/test_steering.py::"
            "test_a_seed_of_the_lots_matters_where_their_secrecy_does[poisson-False]",
        ),
        "amplification by lots that somebody can draw again",
    ),
    Guard(
        "every fit draws other lots",
        FEEDING,
        "        self._fed += 1\n",
        "",
        (
            "tests/training/test_feeding.py::test_a_users_seed_reproduces_lots_and_other_fits_draw_others",
        ),
        "a second fit draws the lots of the first again, which are accounted as independent",
    ),
    Guard(
        "labels out of range",
        FEEDING,
        "    check_labels(y, classes)\n",
        "",
        ("tests/training/test_private_training.py::test_bad_arguments",),
        "a label that no output has makes a gradient NaN",
    ),
    Guard(
        "public examples are not private ones",
        FEEDING,
        "        check_disjoint(model, lots.inputs)\n",
        "",
        (
            "tests/gradients/engines/test_public_normalization.py::"
            "test_a_private_example_among_the_public_ones_is_refused[arrays]",
        ),
        "a private example takes part in every step without noise",
    ),
    Guard(
        "lots of another process",
        LOTS,
        "if os.getpid() != self.process_id:",
        "if False:",
        ("tests/data/test_lots.py::TestForks::test_another_process_may_not_draw[poisson]",),
        "two forks draw the same secret lots",
    ),
    Guard(
        "the probability is of the nominal number",
        SCHEMES,
        "return _coins(self._random, random, step, members, self.lot_size, out_of=out_of)",
        "return _coins(self._random, random, step, members, self.lot_size)",
        (
            "tests/data/test_lots.py::TestNominalExamples::"
            "test_the_probability_is_that_of_the_nominal_number",
        ),
        "one record more changes how often all others are drawn",
    ),
    Guard(
        "nominal numbers belong to Poisson lots",
        SCHEMES,
        'if nominal_examples is not None and sampling != "poisson":',
        "if False:",
        ("tests/data/test_lots.py::TestNominalExamples::test_it_belongs_to_one_scheme[cyclic]",),
        "lots that depend on the number of examples pass for nominal ones (their classes do not "
        "take the argument)",
    ),
    Guard(
        "no lot is cut",
        LOTS,
        "        size = tf.shape(indices)[0]\n",
        "        indices = indices[: self.padded_size]\n        size = tf.shape(indices)[0]\n",
        ("tests/data/test_lots.py::TestPoisson::test_overflow_keeps_every_drawn_example",),
        "cutting a lot breaks the independence that amplification needs",
    ),
    # -- optimizers -----------------------------------------------------------------------------
    Guard(
        "noise that float32 can hold",
        OPTIMIZER,
        "        _check_scales(l2_norm_clip, self.noise_multiplier)\n",
        "",
        (
            "tests/optimizers/test_dp_keras_optimizer.py::"
            "test_noise_below_the_normal_numbers_of_float32_is_refused",
        ),
        "noise is flushed to zero while a finite epsilon is stated",
    ),
    Guard(
        "what is accounted is set once",
        ACCOUNTED,
        "        if self._slot in optimizer.__dict__:\n",
        "        if False:\n",
        ("tests/training/test_frozen_run.py::test_the_message_says_how_to_begin_another_run",),
        "an assignment changes what a later run is said to be",
    ),
    Guard(
        "gradients from elsewhere",
        OPTIMIZER,
        '        raise RuntimeError(\n            f"{type(self).__name__} received gradients',
        "        return super().apply(grads, trainable_variables)\n"
        "        raise RuntimeError(\n"
        '            f"{type(self).__name__} received gradients',
        ("tests/optimizers/test_dp_keras_optimizer.py::test_gradients_from_elsewhere_are_refused",),
        "a model that was not made private trains without noise, by an optimizer that says it has it",
    ),
    Guard(
        "accumulated gradients",
        OPTIMIZER,
        'if kwargs.get("gradient_accumulation_steps") not in (None, 1):',
        "if False:",
        ("tests/optimizers/test_dp_keras_optimizer.py::test_bad_arguments",),
        "sums without noise lie in slots that checkpoints save",
    ),
    Guard(
        "scaled losses",
        OPTIMIZER,
        'if kwargs.get("loss_scale_factor") is not None:',
        "if False:",
        ("tests/optimizers/test_dp_keras_optimizer.py::test_bad_arguments",),
        "a scaled loss is clipped at the wrong norm",
    ),
    Guard(
        "the noise is that of the run",
        OPTIMIZER,
        'noise_multiplier = session.value("noise_multiplier")',
        "noise_multiplier = self.noise_multiplier",
        (
            "tests/training/test_frozen_run.py::"
            "test_noise_comes_from_the_run_even_where_private_attributes_are_changed[compiled0]",
        ),
        "noise follows an attribute that was changed since",
    ),
    Guard(
        "the clip norm is that of the run",
        STEP,
        "optimizer.bound(forward.variables, run.l2_norm_clip)",
        "optimizer.bound(forward.variables)",
        (
            "tests/training/test_frozen_run.py::"
            "test_noise_comes_from_the_run_even_where_private_attributes_are_changed[compiled0]",
        ),
        "the bound follows an attribute that was changed since",
    ),
    Guard(
        "a seeded run that goes on",
        OPTIMIZER,
        "repeat its earlier draws.\n"
        "        self._secrets.noise.advance_to(int(self.iterations.numpy()))\n",
        "repeat its earlier draws.\n",
        ("tests/training/test_serialization.py::test_a_restored_run_never_repeats_noise",),
        "a resumed seeded run draws its noise again",
    ),
    Guard(
        "a new key after a fork",
        OPTIMIZER,
        "        self._secrets.noise.renew_after_fork()\n\n    def continues",
        "\n    def continues",
        (
            "tests/training/test_frozen_run.py::test_a_forked_process_draws_other_noise_in_a_run_of_its_own",
        ),
        "parent and child draw the same noise",
    ),
    Guard(
        "adaptive clipping needs private steps",
        OPTIMIZER,
        "if not self.mechanism.adaptive_clipping:",
        "if False:",
        ("tests/optimizers/test_adaptive_clipping.py::test_other_mechanisms_refuse_it",),
        "the clip norm moves under noise that several steps share",
    ),
    Guard(
        "adaptive clipping needs private steps, in the accounting",
        "tfdp/accounting/mechanisms/base.py",
        "if run.contribution.adaptive_clipping and not self.adaptive_clipping:",
        "if False:",
        ("tests/optimizers/test_adaptive_clipping.py::test_si_dpsgd_and_its_accounting_refuse_it",),
        "such a run is described, and a finite epsilon proven for it",
    ),
    Guard(
        "SI-DPSGD: the rates of the run",
        SI,
        'rate = tf.cast(session.value("learning_rates"), tf.float64)',
        "rate = tf.cast(self.learning_rate, tf.float64)",
        ("tests/training/test_frozen_run.py::test_rates_that_a_callback_moves_change_nothing",),
        "a schedule that was changed scales the noise away",
    ),
    Guard(
        "SI-DPSGD: float64 means",
        SI,
        "mean.assign(tf.convert_to_tensor(mean) - rate * direction)",
        "moved = tf.cast(tf.convert_to_tensor(mean) - rate * direction, tf.float32)\n"
        "            mean.assign(tf.cast(moved, tf.float64))",
        (
            "tests/training/test_frozen_run.py::"
            "test_means_are_float64_and_one_example_moves_them_by_its_share[0.0]",
        ),
        "rounding moves every coordinate that crosses a boundary, without noise",
    ),
    Guard(
        "SI-DPSGD: coarse weights",
        SI,
        "        if coarse:\n",
        "        if False:\n",
        ("tests/training/test_frozen_run.py::test_coarse_weights_are_refused[bfloat16]",),
        "a new segment starts at weights of which little is left",
    ),
    Guard(
        "SI-DPSGD: constraints",
        SI,
        "        if constrained:\n",
        "        if False:\n",
        ("tests/optimizers/test_si_dpsgd_optimizer.py::test_constraints_are_refused",),
        "a constraint would have to hold for secret means",
    ),
    Guard(
        "SI-DPSGD: the rate is not assigned",
        SI,
        '        raise ValueError(\n            "The learning rate of SIDPSGDOptimizer scales',
        "        return\n        raise ValueError(\n"
        '            "The learning rate of SIDPSGDOptimizer scales',
        ("tests/optimizers/test_si_dpsgd_optimizer.py::test_the_learning_rate_cannot_be_assigned",),
        "an assignment passes in silence and does nothing",
    ),
    Guard(
        "SI-DPSGD: the means stay secret",
        SI,
        '        if self.release != "mu":\n',
        "        if False:\n",
        (
            "tests/optimizers/test_si_dpsgd_optimizer.py::"
            "test_means_are_released_only_by_an_optimizer_that_accounts_for_it",
        ),
        "un-noised means are released beside a finite epsilon",
    ),
    Guard(
        "SI-DPSGD: rules with a state of their own",
        SI,
        '            if guarantee != "claimed":\n',
        "            if False:\n",
        (
            "tests/optimizers/test_si_dpsgd_optimizer.py::"
            "test_update_rules_with_hidden_state_are_claimed_only",
        ),
        "Adam on the means without a word that nothing is proven",
    ),
    Guard(
        "SI-DPSGD: rules by any name",
        SI,
        '"sgd" if rule is None else f"{type(rule).__name__} on the means"',
        '"sgd" if rule is None else type(rule).__name__',
        (
            "tests/optimizers/test_si_dpsgd_optimizer.py::"
            "test_update_rules_with_hidden_state_are_claimed_only",
        ),
        "an update rule that is called SGD counts as linear, whatever it does",
    ),
    Guard(
        "SI-DPSGD: what changes the means",
        SI,
        "refused = [k for k in _REFUSED if kwargs.get(k)]",
        "refused = []",
        ("tests/optimizers/test_si_dpsgd_optimizer.py::test_bad_arguments",),
        "weight decay or averages change the means past the accounting",
    ),
    Guard(
        "SI-DPSGD: weights that were changed",
        SI,
        "        return same\n",
        "        return True\n",
        (
            "tests/optimizers/test_si_dpsgd_optimizer.py::"
            "test_means_never_go_on_from_other_weights_than_were_shown",
        ),
        "means go on that have nothing to do with the weights that were given",
    ),
    Guard(
        "correlated noise: a step that broke off",
        MATRIX,
        "return self._loaded is None and noise is not None and noise.steps == session.spent",
        "return self._loaded is None and noise is not None",
        (
            "tests/optimizers/test_matrix_optimizer.py::"
            "test_a_step_that_was_counted_and_not_finished_ends_the_run",
        ),
        "noise and steps are out of step, so that the covariance is another one",
    ),
    Guard(
        "correlated noise: a state that was used",
        MATRIX,
        "        self._check(loaded)\n        run = loaded.saved.run",
        "        run = loaded.saved.run",
        ("tests/optimizers/test_matrix_optimizer.py::test_the_state_moves_and_is_used_once",),
        "two futures of one run share their past noise",
        also=((MATRIX, "            self._check(loaded)\n            mine", "            mine"),),
    ),
    Guard(
        "correlated noise: a state is moved",
        MATRIX,
        "        self._correlated = None\n        account.close_session()",
        "        pass",
        ("tests/optimizers/test_matrix_optimizer.py::test_the_state_moves_and_is_used_once",),
        "the run goes on here and elsewhere",
    ),
    Guard(
        "correlated noise: other settings",
        ACCOUNTED,
        "    if other:\n",
        "    if False:\n",
        ("tests/optimizers/test_matrix_optimizer.py::test_another_run_does_not_take_it_up[lot]",),
        "a run goes on with other lots than its entry says (Ledger.extend refuses that, in words "
        "that do not help)",
    ),
    Guard(
        "correlated noise: other data",
        MATRIX,
        "            or plan.lots.fingerprint() != loaded.fingerprint\n",
        "",
        ("tests/optimizers/test_matrix_optimizer.py::test_another_run_does_not_take_it_up[data]",),
        "an example comes back at another place than the proof has it",
    ),
    Guard(
        "correlated noise: another optimizer",
        MATRIX,
        "            if mine != _named(loaded.saved.run, _OWN_FIELDS):\n",
        "            if False:\n",
        (
            "tests/optimizers/test_matrix_optimizer.py::"
            "test_an_optimizer_with_other_noise_does_not_load_it",
        ),
        "a state is used up by an optimizer that cannot go on with it",
    ),
    Guard(
        "correlated noise: an epoch is whole",
        MATRIX,
        "        if not whole:\n",
        "        if False:\n",
        ("tests/optimizers/test_matrix_optimizer.py::test_what_cannot_go_on_is_not_saved",),
        "a run goes on in the middle of an epoch, whose lots begin anew",
    ),
    Guard(
        "a secret file is read once",
        SECRET,
        "    os.unlink(claimed)\n",
        "    os.rename(claimed, path)\n",
        ("tests/noise/test_secret_file.py::test_it_is_read_once",),
        "one state of the noise has two futures",
    ),
    Guard(
        "no draw is repeated",
        NOISE,
        "        high = self._counter_of(draw)\n",
        "        high = self._counter_of(draw * 0)\n",
        (
            "tests/noise/test_gaussian.py::"
            "test_steps_variables_and_sources_never_share_a_draw[False]",
        ),
        "two steps have the same noise, and their difference has none",
    ),
    Guard(
        "the key comes from the operating system",
        NOISE,
        "            material = os.urandom(16)\n",
        "            material = bytes(16)\n",
        ("tests/noise/test_gaussian.py::test_global_seeds_do_not_reach_the_noise",),
        "whoever knows the program knows the noise",
    ),
    Guard(
        "draws never go back",
        NOISE,
        "self.draws.assign(max(draws, int(self.draws.numpy())))",
        "self.draws.assign(draws)",
        ("tests/noise/test_gaussian.py::test_a_resumed_source_skips_what_was_drawn",),
        "a restored iteration makes noise come again",
    ),
    # -- gradients ------------------------------------------------------------------------------
    Guard(
        "ops that write",
        WRITES,
        "        if effect is Effect.WRITES:\n",
        "        if False:\n",
        (
            "tests/gradients/test_state_writes.py::"
            "test_a_layer_that_writes_is_refused_with_its_name_and_place[assign]",
        ),
        "a variable keeps private sums",
    ),
    Guard(
        "ops that nobody has heard of",
        "tfdp/gradients/op_effects.py",
        "if (definition.is_stateful or references) and op not in _ALLOWED:",
        "if references and op not in _ALLOWED:",
        ("tests/gradients/test_state_writes.py::test_ops_that_nobody_has_heard_of_are_refused",),
        "a list of what is forbidden lets through what is not in it",
    ),
    Guard(
        "functions within functions",
        WRITES,
        "                    self._waiting.append((function.name, where))\n",
        "                    pass\n",
        (
            "tests/gradients/test_state_writes.py::"
            "test_a_layer_that_writes_is_refused_with_its_name_and_place[nested functions]",
        ),
        "an assignment hides in a branch",
    ),
    Guard(
        "functions that a node is named for",
        WRITES,
        "            self._waiting.append((op, where))\n",
        "            pass\n",
        (
            "tests/gradients/test_state_writes.py::"
            "test_a_layer_that_writes_is_refused_with_its_name_and_place[function of TensorFlow 1]",
        ),
        "an assignment hides in a function of TensorFlow 1",
    ),
    Guard(
        "memory that was not cleared",
        WRITES,
        '        if node.op == EMPTY and not node.attr["init"].b:\n',
        "        if False:\n",
        (
            "tests/gradients/test_state_writes.py::"
            "test_a_layer_that_writes_is_refused_with_its_name_and_place[memory of earlier steps]",
        ),
        "a row reads what other rows left behind",
    ),
    Guard(
        "Python code",
        WRITES,
        "        if effect is Effect.PYTHON:\n",
        "        if False:\n",
        (
            "tests/gradients/test_state_writes.py::"
            "test_a_layer_that_writes_is_refused_with_its_name_and_place[numpy]",
        ),
        "a Python function keeps what it is given",
    ),
    Guard(
        "printing to files",
        WRITES,
        """if node.op == "PrintV2" and node""",
        """if False and node""",
        (
            "tests/gradients/test_state_writes.py::"
            "test_a_layer_that_writes_is_refused_with_its_name_and_place[print to a file]",
        ),
        "private numbers are written to a file",
    ),
    Guard(
        "random counters that data moves",
        WRITES,
        "        if moves:\n",
        "        if False:\n",
        (
            "tests/gradients/test_state_writes.py::"
            "test_a_layer_that_writes_is_refused_with_its_name_and_place[generator]",
        ),
        "the counter of a generator, which is saved, tells of the data",
    ),
    Guard(
        "random state that gets data",
        WRITES,
        "        if trace.depends_on_data(value):\n",
        "        if False:\n",
        (
            "tests/gradients/test_state_writes.py::test_a_seed_that_is_assigned_data_is_refused[of_data]",
        ),
        "a seed keeps private sums",
    ),
    Guard(
        "what comes after the noise",
        WRITES,
        "        if value is not None and trace.depends_on_data(value):\n",
        "        if False:\n",
        (
            "tests/gradients/test_state_writes.py::test_what_is_added_after_the_noise_must_not_depend_on_data",
        ),
        "a regularizer adds private numbers after the noise",
    ),
    Guard(
        "state that the loss writes",
        WRITES,
        "if scope.get_current_value(variable) is not value and not forward.is_random(variable):",
        "if False:",
        (
            "tests/gradients/test_state_writes.py::test_a_keras_variable_that_the_loss_assigns_is_refused",
        ),
        "a loss keeps private sums in a Keras variable",
    ),
    Guard(
        "a model that was changed is checked again",
        WRITES,
        "if checked is None or not checked.is_for(parts):",
        "if checked is None:",
        (
            "tests/gradients/test_state_writes.py::test_a_model_is_traced_once_until_something_changes",
        ),
        "a layer that was put in later is not looked at",
    ),
    Guard(
        "state that a layer writes",
        FORWARD,
        "            if not self.may_assign(variable):\n",
        "            if False:\n",
        (
            "tests/gradients/test_forward.py::test_a_layer_that_stores_what_it_saw_is_refused_by_name",
        ),
        "running statistics of private examples",
    ),
    Guard(
        "a counter has a formula",
        WRITES,
        "        if how is None or how != again.get(id(variable)):\n",
        "        if how is not None and how != again.get(id(variable)):\n",
        (
            "tests/gradients/test_counters.py::test_whatever_may_keep_something_of_the_data_is_refused[data]",
        ),
        "sums of private examples in a variable that looks like a counter",
    ),
    Guard(
        "a counter does not depend on the number of rows",
        WRITES,
        "        if how is None or how != again.get(id(variable)):\n",
        "        if how is None:\n",
        (
            "tests/gradients/test_counters.py::"
            "test_whatever_may_keep_something_of_the_data_is_refused[static shape]",
        ),
        "the sizes of the lots in a variable that looks like a counter",
    ),
    Guard(
        "what the inspection permitted ends with it",
        WRITES,
        "            forward.permit(())\n",
        "",
        ("tests/gradients/test_counters.py::test_a_trace_permits_nothing_afterwards",),
        "a layer that was refused is executed",
    ),
    Guard(
        "engine: a seed that is data",
        "tfdp/_compat/pfor_random.py",
        "        if tensor.ref() in own:\n            found = True\n",
        "        if tensor.ref() in own or not own:\n            return True\n",
        (
            "tests/_compat/test_pfor_random.py::test_a_seed_that_is_data_gives_a_row_what_it_draws_alone[normal]",
        ),
        "the seed of one example is that of all others",
    ),
    Guard(
        "engine: an index beyond the table",
        "tfdp/_compat/pfor_indices.py",
        "        segments = tf.where(segments < number, segments, -tf.ones([], segments.dtype))\n",
        "",
        (
            "tests/_compat/test_pfor_ops.py::test_a_segment_that_does_not_exist_is_none_of_the_next_row[True]",
        ),
        "the gradient of one example is added to that of the next",
    ),
    Guard(
        "engine: lookups are added once",
        "tfdp/gradients/rules/per_example_gradient.py",
        "        return self._added().weighted_sum(weights, self.size)\n",
        "        vectors = self.vectors * weights[:, tf.newaxis, tf.newaxis]\n"
        "        flat = tf.reshape(vectors, [-1, self.vectors.shape[2]])\n"
        "        indices = tf.reshape(self.indices, [-1])\n"
        "        return tf.math.unsorted_segment_sum(flat, indices, self.size)\n",
        (
            "tests/gradients/engines/test_adversarial.py::test_no_example_moves_the_sum_by_more_than_the_clip_norm[embedding-ghost-False]",
        ),
        "huge gradients that cancel round all other examples away",
    ),
    Guard(
        "engine: rows of single numbers",
        "tfdp/gradients/rules/separate_rows.py",
        "    if min(_ranks_if_used(model), default=2) < 2 and not _keeps_single_numbers_apart(model):\n"
        "        return False\n",
        "",
        (
            "tests/gradients/rules/test_separate_rows.py::test_models_whose_last_axis_is_the_batch_are_not_trusted[softmax]",
        ),
        "a softmax over the batch runs as one over features",
    ),
    Guard(
        "engine: activations by name",
        "tfdp/gradients/rules/separate_rows.py",
        "        elif function is not None and id(function) not in _ACTIVATIONS:\n"
        "            return False\n",
        "",
        (
            "tests/gradients/rules/test_separate_rows.py::test_layers_that_mix_rows_of_two_axes_are_not_trusted[flip]",
        ),
        "an activation of one's own runs over the whole batch",
    ),
    Guard(
        "engine: a mask of attention without rows",
        "tfdp/gradients/rules/separate_rows.py",
        "    return {*ranks} == {3} or",
        "    return True or",
        (
            "tests/gradients/rules/test_separate_rows.py::test_models_whose_last_axis_is_the_batch_are_not_trusted[attention]",
        ),
        "the mask of one example hides positions of all others",
    ),
    Guard(
        "engine: room for rounding",
        "tfdp/gradients/lot.py",
        "sums=[part * (1.0 - room) for part in lot.sums]",
        "sums=[*lot.sums]",
        (
            "tests/gradients/test_rounding.py::test_one_row_less_moves_a_large_sum_by_less_than_the_clip_norm[2048-None-False-ghost]",
        ),
        "rounding makes the sensitivity larger than the clip norm",
    ),
    Guard(
        "random state is known by its owner",
        "tfdp/gradients/random_state.py",
        "    return _once(g.state for g in generators if isinstance(g, keras.random.SeedGenerator))",
        "    del generators\n"
        '    return [v for v in model.non_trainable_variables if "seed_generator" in v.path]',
        (
            "tests/gradients/test_state_writes.py::test_a_weight_that_is_named_like_random_state_is_refused[seed_generator_state]",
        ),
        "a running statistic under the name of a seed passes for random state",
    ),
    Guard(
        "batch normalization",
        VALIDATION,
        "    _batch_norm,\n",
        "",
        (
            "tests/training/test_checks.py::test_a_frozen_batch_normalization_is_allowed_until_it_trains",
        ),
        "examples are normalized by each other",
    ),
    Guard(
        "stateful recurrence",
        VALIDATION,
        "    _stateful_rnn,\n",
        "",
        ("tests/training/test_checks.py::test_stateful_recurrence_is_refused",),
        "state goes from one example to the next",
    ),
    Guard(
        "adapted layers",
        VALIDATION,
        "    for layer, why in _adapted_layers(model, public):\n",
        "    for layer, why in ():\n",
        (
            "tests/training/test_checks.py::test_adapted_layers_are_refused_unless_they_are_declared_public",
        ),
        "means or vocabularies of private data are part of the model",
    ),
    Guard(
        "clipping",
        BOUNDS,
        "scale = self.l2_norm_clip * tf.math.rsqrt(tf.maximum(total, 1e-30))",
        "scale = tf.ones_like(total)",
        ("tests/gradients/test_lot.py::test_the_sum_moves_by_at_most_the_sensitivity",),
        "one example moves the sum without bound",
    ),
    Guard(
        "gradients that are not finite",
        BOUNDING,
        "keep = finite & present",
        "keep = present",
        ("tests/gradients/engines/test_ending.py::test_a_bad_row_changes_no_bit_of_the_others",),
        "one example makes the sum NaN",
    ),
    Guard(
        "microbatches whose squares overflow",
        BOUNDING,
        "any_present &= exists",
        "pass",
        (
            "tests/gradients/engines/test_ending.py::test_a_microbatch_whose_squares_overflow_counts_zero",
        ),
        "a microbatch with a norm of 0 instead of infinity is not clipped",
    ),
    Guard(
        "hooks between steps that a callback gets late",
        "tfdp/training/accounted_weights.py",
        "if _acts_between_steps(callback):  # a hook that it got after `fit` began",
        "if False:",
        (
            "tests/test_account.py::test_a_callback_that_gets_a_hook_between_steps_during_fit_is_refused",
        ),
        "nothing looks for the changes that a callback makes between steps",
    ),
    Guard(
        "absent rows",
        BOUNDING,
        "scales = tf.where(present[:, tf.newaxis], scales, 0.0)",
        "scales = 1.0 * scales",
        (
            "tests/gradients/engines/test_ending.py::test_absent_rows_count_zero_whatever_their_gradients_are",
        ),
        "padding adds to the sum",
    ),
    Guard(
        "physical batches and batch statistics",
        "tfdp/gradients/lot.py",
        "    if needs_whole_lots(engine):\n        raise",
        "    if False:\n        raise",
        (
            "tests/gradients/engines/test_public_normalization.py::test_batch_statistics_refuse_physical_batches",
        ),
        "parts of a lot have statistics of their own, for which nothing is proven",
    ),
    # -- accounting -----------------------------------------------------------------------------
    Guard(
        "nothing is proven with a seed",
        "tfdp/accounting/analysis.py",
        "    if reason is None and run.insecure_seed:\n",
        "    if False:\n",
        ("tests/training/test_steering.py::test_a_seed_of_the_noise_leaves_nothing_proven",),
        "noise that somebody can draw again counts as noise",
    ),
    Guard(
        "microbatches, by TensorFlow Privacy's name",
        "tfdp/accounting/tensorflow_privacy.py",
        "told.runs(_SOME_EXAMPLES if microbatching else 1)",
        "told.runs(1)",
        (
            "tests/accounting/test_tensorflow_privacy.py::"
            "test_microbatches_are_not_amplified_and_cost_twice",
        ),
        "microbatches of several examples are accounted as if every example was clipped by itself",
    ),
    Guard(
        "all examples of a user, by mu",
        "tfdp/accounting/tensorflow_privacy.py",
        "gaussian.epsilon_of_mu(size * found.mu, delta)",
        "gaussian.epsilon_of_mu(found.mu, delta)",
        ("tests/accounting/test_tensorflow_privacy.py::test_all_examples_of_a_user_in_epochs",),
        "all examples of a user cost what one of them costs",
    ),
    Guard(
        "all examples of a user, by delta",
        "tfdp/accounting/tensorflow_privacy.py",
        "        if excess <= 0:\n",
        "        if True:\n",
        (
            "tests/accounting/test_tensorflow_privacy.py::"
            "test_all_examples_of_a_user_in_poisson_lots",
        ),
        "the delta of a group of examples exceeds the stated one",
    ),
    Guard(
        "a run without noise spoils the rest",
        "tfdp/accounting/composition.py",
        "    if reasons:\n        return Guarantee(epsilon=math.inf",
        "    if False:\n        return Guarantee(epsilon=math.inf",
        ("tests/accounting/test_composition.py::test_unaccounted_training_spoils_everything",),
        "a segment that nobody accounted for costs nothing",
    ),
    Guard(
        "no noise",
        TABLES,
        "        return None if table > 0 or not steps else 0\n"
        "    return table.index(0.0) if 0.0 in table else None",
        "        return None\n    return None",
        ("tests/accounting/mechanisms/test_dpsgd.py::test_no_noise_is_infinite",),
        "training without noise (the bounds are infinite by themselves; here is the reason)",
    ),
    Guard(
        "one record more, without a nominal number",
        SAMPLING,
        'if adjacency == "add_or_remove_one" and not self.nominal:',
        "if False:",
        (
            "tests/accounting/test_composition.py::"
            "test_adding_a_record_needs_a_probability_that_was_fixed_before",
        ),
        "one record more changes how often all others are drawn, which the proof does not cover",
    ),
    Guard(
        "one record more, in epochs",
        SAMPLING,
        '        if adjacency == "add_or_remove_one":\n',
        "        if False:\n",
        (
            "tests/accounting/mechanisms/test_dpsgd.py::"
            "test_add_or_remove_one_is_refused_without_poisson_lots[cyclic]",
        ),
        "one record more shifts all others to other lots",
    ),
    Guard(
        "one record more, in microbatches",
        CONTRIBUTION,
        'if adjacency == "add_or_remove_one" and self.microbatch_size > 1:',
        "if False:",
        (
            "tests/accounting/test_composition.py::test_adding_a_record_needs_a_probability_that_was_fixed_before",
        ),
        "one record more regroups all others",
    ),
    Guard(
        "a record that is replaced moves twice as far",
        CONTRIBUTION,
        'if self.microbatch_size > 1 or adjacency == "replace_one" or displaces:',
        "if self.microbatch_size > 1 or displaces:",
        ("tests/accounting/mechanisms/test_dpsgd.py::test_epochs_are_not_amplified",),
        "replace_one costs as much as zero_out",
    ),
    Guard(
        "a record that is replaced, in Poisson lots",
        STEPS,
        'pair = "replace" if adjacency == "replace_one" else "add"',
        'pair = "add"',
        ("tests/accounting/mechanisms/test_dpsgd.py::test_golden_poisson_replace_one",),
        "replace_one costs as much as zero_out",
    ),
    Guard(
        "means of microbatches move twice as far",
        CONTRIBUTION,
        'if self.microbatch_size > 1 or adjacency == "replace_one" or displaces:',
        'if adjacency == "replace_one" or displaces:',
        ("tests/accounting/mechanisms/test_si_dpsgd.py::test_microbatches_double_zero_out",),
        "a clipped mean moves from one point of the ball to another",
    ),
    Guard(
        "batch statistics move everything",
        CONTRIBUTION,
        'return 2.0 * lot if adjacency == "replace_one" or displaces else 2.0 * lot - 1.0',
        "return 1.0",
        ("tests/accounting/mechanisms/test_dpsgd.py::test_batch_statistics_sensitivity",),
        "one record moves 2L - 1 clip norms, not one",
    ),
    Guard(
        "batch statistics of lots without a largest one",
        CONTRIBUTION,
        "        if sampling.largest_lot is None:\n",
        "        if sampling.largest_lot is None:\n            return sampling.lot_size\n"
        "        if False:\n",
        (
            "tests/accounting/mechanisms/test_dpsgd.py::"
            "test_batch_statistics_of_poisson_lots_need_a_largest_lot",
        ),
        "Poisson lots are larger than the nominal size half the time",
    ),
    Guard(
        "microbatches reveal the sample",
        STEPS,
        "if sampling.coin_flips and alone and sampling.probability < 1:",
        "if sampling.coin_flips and sampling.probability < 1:",
        ("tests/accounting/mechanisms/test_dpsgd.py::test_microbatches_reveal_the_sample",),
        "amplification where a record shifts all later ones to other groups",
    ),
    Guard(
        "lots that are cut",
        STEPS,
        "cut = sampling.chance_of_cut()",
        "cut = 0.0",
        ("tests/accounting/mechanisms/test_dpsgd.py::test_cut_lots_cost_a_little_and_then_a_lot",),
        "in a full lot a record displaces another one",
    ),
    Guard(
        "a full lot, record by record",
        STEPS,
        '"zero_out": Component(cut, q, z, "slot"),',
        '"zero_out": Component(cut, q, z, "add"),',
        ("tests/accounting/mechanisms/test_dpsgd.py::test_full_lots_have_the_pair_of_fixed_sizes",),
        "the add pair does not dominate a lot in which another example takes the place",
    ),
    Guard(
        "lots of fixed size",
        "tfdp/accounting/numerics/fixed_size.py",
        'pair, unit = ("slot", 1.0) if adjacency == "zero_out" else ("triangle", 2.0)',
        'pair, unit = "add", 1.0',
        (
            "tests/accounting/mechanisms/test_dpsgd.py::"
            "test_fixed_size_lots_cover_the_adversarial_lot[1.5-0.3-zero_out]",
        ),
        "where a record is not drawn another one is, which costs more than a Poisson lot",
    ),
    Guard(
        "lots of fixed size, with replacement",
        "tfdp/accounting/numerics/fixed_size.py",
        "(weight, probability, noise_multiplier / (unit * k), pair) for k, weight in draws",
        "(weight, probability, noise_multiplier / unit, pair) for k, weight in draws",
        ("tests/accounting/numerics/test_fixed_size.py::test_parts",),
        "a record that is drawn several times counts once",
    ),
    Guard(
        "the worst place in a table of noise",
        STEPS,
        "found.append(max(running[row, : column + 1].max(), before[column + 1 :].max(initial=0)))",
        "found.append(running[row, 0])",
        ("tests/accounting/test_noise_tables.py::test_the_worst_pattern_may_begin_late",),
        "a record in the steps of the least noise costs more than one in the first steps",
    ),
    Guard(
        "the least noise of a turn",
        SAMPLING,
        "return np.minimum.reduceat(noise, np.arange(0, len(noise), self.groups))",
        "return noise[:: self.groups]",
        ("tests/accounting/test_noise_tables.py::test_turns_take_their_least_noise",),
        "a record of another group has the noise of the first",
    ),
    Guard(
        "long tables are rounded down",
        TABLES,
        "    return values[firsts], np.add.reduceat",
        "    return values[[*firsts[1:] - 1, -1]], np.add.reduceat",
        ("tests/accounting/test_noise_tables.py::test_long_tables_are_rounded_down",),
        "steps count with more noise than they had",
    ),
    Guard(
        "amplification needs few bands",
        "tfdp/accounting/mechanisms/matrix.py",
        "            and len(self.strategy.first(run.steps)) <= sampling.groups\n",
        "",
        ("tests/accounting/mechanisms/test_matrix.py::test_amplification_needs_few_bands",),
        "traces of two draws of a record meet in one row",
    ),
    Guard(
        "correlated noise has one multiplier",
        "tfdp/accounting/mechanisms/matrix.py",
        "        if isinstance(self.noise_multiplier, tuple):\n",
        "        if False:\n",
        ("tests/accounting/mechanisms/test_matrix.py::test_bad_fields_are_refused[change2]",),
        "with a table the strategy is another matrix",
    ),
    Guard(
        "discrete SGD: a codebook of private gradients",
        "tfdp/accounting/mechanisms/discrete_sgd.py",
        "        if self.encoding.private_codebook:\n",
        "        if False:\n",
        (
            "tests/accounting/mechanisms/test_discrete_sgd.py::"
            "test_a_codebook_fitted_to_private_gradients[gaussian]",
        ),
        "the codebook releases private gradients without noise",
    ),
    Guard(
        "discrete SGD: other lots",
        "tfdp/accounting/mechanisms/discrete_sgd.py",
        "        if not isinstance(run.sampling, Poisson):\n",
        "        if False:\n",
        ("tests/accounting/mechanisms/test_discrete_sgd.py::test_what_is_not_proven_is_infinite",),
        "the theorem is for Poisson lots",
    ),
    Guard(
        "discrete SGD: replaced records",
        "tfdp/accounting/mechanisms/discrete_sgd.py",
        '        if adjacency == "replace_one":\n',
        "        if False:\n",
        ("tests/accounting/mechanisms/test_discrete_sgd.py::test_what_is_not_proven_is_infinite",),
        "no dominating pair is proven there",
    ),
    Guard(
        "SI-DPSGD: released means",
        "tfdp/accounting/mechanisms/si_dpsgd.py",
        '        if self.release == "mu":\n',
        "        if False:\n",
        ("tests/accounting/mechanisms/test_si_dpsgd.py::test_nothing_finite_with_a_reason",),
        "un-noised means have a finite epsilon",
    ),
    Guard(
        "SI-DPSGD: rules that are not linear",
        "tfdp/accounting/mechanisms/si_dpsgd.py",
        "        if self.optimizer not in LINEAR_OPTIMIZERS:\n",
        "        if False:\n",
        ("tests/accounting/mechanisms/test_si_dpsgd.py::test_nothing_finite_with_a_reason",),
        "the theorem is about linear updates",
    ),
    Guard(
        "SI-DPSGD: a step whose rate is zero",
        "tfdp/accounting/mechanisms/si_dpsgd.py",
        "        if dynamics.bare_step is not None:\n",
        "        if False:\n",
        ("tests/accounting/mechanisms/test_si_dpsgd.py::test_nothing_finite_with_a_reason",),
        "weights of a step are released without noise",
    ),
    Guard(
        "SI-DPSGD: rounding that is too much",
        "tfdp/accounting/mechanisms/si_dpsgd.py",
        "        if not share <= _MOST_ROUNDING:\n",
        "        if False:\n",
        (
            "tests/training/test_frozen_run.py::test_rounding_is_counted_and_a_tiny_rate_is_not_proven",
        ),
        "means that hardly move between representable numbers",
    ),
    Guard(
        "SI-DPSGD: rounding is counted",
        "tfdp/accounting/mechanisms/si_dpsgd.py",
        "(linear_releases.moved_further(loss, added),)",
        "(loss,)",
        (
            "tests/training/test_frozen_run.py::test_rounding_is_counted_and_a_tiny_rate_is_not_proven",
        ),
        "rounding moves the means without being accounted",
    ),
    Guard(
        "mass outside of a composition",
        "tfdp/accounting/numerics/loss_grid.py",
        "_TRUNCATED - math.expm1(finite)",
        "0.0",
        (
            "tests/accounting/numerics/test_loss_grid.py::"
            "test_mass_outside_of_the_range_counts_as_an_infinite_loss",
        ),
        "losses beyond the range of the transform count as no loss",
    ),
    Guard(
        "the next point of the progress",
        "tfdp/callbacks.py",
        "self._counts[bisect.bisect_left(self._counts, step)]",
        "self._counts[bisect.bisect_right(self._counts, min(step, self._run.steps)) - 1]",
        ("tests/test_callbacks.py::test_a_coarse_curve_is_an_upper_bound",),
        "the progress bar shows the epsilon of fewer steps than were taken",
    ),
    Guard(
        "divergences that are none",
        "tfdp/accounting/numerics/subsampled.py",
        "good = (rdp > 0) & np.isfinite(rdp) & (alpha > 1.01)",
        "good = np.isfinite(rdp) & (alpha > 1.01)",
        ("tests/accounting/numerics/test_privacy_loss.py::test_useless_orders_are_dropped",),
        "a numerical failure reports perfect privacy",
    ),
    Guard(
        "a ledger never goes back",
        LEDGER,
        "        if not (counted and steps >= entry.steps):\n",
        "        if False:\n",
        ("tests/accounting/test_ledger.py::test_record_is_monotone",),
        "steps are forgotten",
    ),
    Guard(
        "the larger count stands",
        LEDGER,
        "(run, mine) if run.steps > mine.steps else (mine, run)",
        "(mine, run) if run.steps > mine.steps else (run, mine)",
        ("tests/accounting/test_ledger.py::test_merge_keeps_the_larger_count",),
        "an old checkpoint takes a ledger back",
    ),
    Guard(
        "one description of one run",
        LEDGER,
        "            if longer.with_(steps=shorter.steps).past() != shorter.past():\n",
        "            if False:\n",
        ("tests/accounting/test_ledger.py::test_merge_refuses_two_descriptions_of_one_run",),
        "a forged entry takes the place of the true one",
    ),
    Guard(
        "a run is extended, not changed",
        LEDGER,
        "        if longer.past() != entry.past():\n",
        "        if False:\n",
        ("tests/accounting/test_ledger.py::test_extend_refuses_another_run",),
        "what was spent is described anew",
    ),
    Guard(
        "a ledger that was edited",
        LEDGER,
        "    if found != expected:\n",
        "    if False:\n",
        ("tests/accounting/test_ledger.py::test_an_edited_ledger_is_refused",),
        "a careless edit or damage is taken for what was spent",
    ),
    Guard(
        "the stricter budget stays",
        LEDGER,
        "budget = min(known, budget, key=lambda each: each.epsilon)",
        "budget = known",
        ("tests/accounting/test_ledger.py::test_merge_keeps_the_stricter_budget",),
        "merging lifts a budget",
    ),
    Guard(
        "a delta that allows anything",
        "tfdp/accounting/guarantee.py",
        "    if check_delta(delta) < 1.0 / num_examples:\n",
        "    if check_delta(delta):\n",
        ("tests/accounting/test_wording.py::test_delta_is_compared_with_the_number_of_examples",),
        "nobody is told that publishing one whole record would do",
    ),
    Guard(
        "a seed is not written beside a release",
        "tfdp/experiments/report.py",
        '"insecure_seed": experiment.insecure_seed is not None,',
        '"insecure_seed": experiment.insecure_seed,',
        ("tests/experiments/test_report.py::test_no_record_holds_the_seed_of_the_noise",),
        "whoever reads run.json can draw the noise again",
    ),
    Guard(
        "a seed is no recorded setting",
        "tfdp/experiments/settings.py",
        '"recorded.",\n        group=EXECUTION,\n        recorded=False,',
        '"recorded.",\n        group=EXECUTION,',
        ("tests/experiments/test_report.py::test_no_record_holds_the_seed_of_the_noise",),
        "whoever reads the settings in run.json can draw the noise again",
    ),
    Guard(
        "a seed is no part of the command in a model card",
        "tfdp/experiments/command_line.py",
        "if n in values and SETTINGS[n].recorded}",
        "if n in values}",
        ("tests/experiments/test_command_line.py::test_a_command_holds_no_seed_of_the_noise",),
        "whoever reads the model card can draw the noise again",
    ),
    Guard(
        "an epsilon without a private mechanism",
        "tfdp/experiments/conditions.py",
        "    if known.private and mechanism == NONE:\n",
        "    if False:\n",
        ("tests/experiments/test_settings.py::test_a_value_that_cannot_be_is_refused",),
        "somebody asks for --epsilon=2, and the training has no noise at all",
    ),
    Guard(
        "every warning is in the final table",
        "tfdp/experiments/report.py",
        "    for sentence in said.warnings:\n",
        "    for sentence in said.warnings[:1]:\n",
        ("tests/experiments/test_report.py::test_no_warning_and_no_reason_is_dropped",),
        "the terminal shows an epsilon, and not that its delta allows anything",
    ),
    Guard(
        "no folder is called by a seed",
        "tfdp/experiments/command_line.py",
        "    if known is None or not known.recorded:\n",
        "    if known is None:\n",
        (
            "tests/experiments/test_command_line.py"
            "::test_a_sweep_that_cannot_be_is_refused_in_one_sentence",
        ),
        "whoever reads the name of a sweep's folder can draw the noise again",
    ),
    # -- results: whole or not there, and nobody else's files ------------------------------------
    Guard(
        "a finished result needs --overwrite",
        FOLDER,
        'if state == "result" and not self._overwrite:',
        "if False:",
        ("tests/experiments/test_result_folder.py::test_a_finished_result_needs_overwrite",),
        "a second run replaces the release of the first without a word",
    ),
    Guard(
        "foreign files are never replaced",
        PLACES,
        "if foreign := _foreign(path):",
        "if foreign := None:",
        (
            "tests/experiments/test_result_folder.py::test_a_folder_with_foreign_files_is_refused_even_with_overwrite",
        ),
        "--overwrite deletes files that are no result",
    ),
    Guard(
        "what was swapped out is looked at",
        FOLDER,
        "            try:\n                look(partial.result)\n",
        "            try:\n                pass\n",
        (
            "tests/experiments/test_result_folder.py::test_files_that_appear_at_the_swap_are_put_back",
        ),
        "files that appear in the folder during the training are deleted with the earlier result",
    ),
    Guard(
        "what was moved aside is looked at",
        FOLDER,
        "        look(partial.previous)\n",
        "",
        (
            "tests/experiments/test_result_folder.py::test_files_that_appear_at_the_swap_are_put_back",
        ),
        "the same, where names cannot be swapped",
    ),
    Guard(
        "an earlier result stays until the new one is there",
        FOLDER,
        "elif exchange(partial.result, partial.target):",
        "elif False:",
        (
            "tests/experiments/test_result_folder.py::test_a_kill_at_any_operation_leaves_the_old_or_the_new_result",
        ),
        "a process that is killed between two renamings leaves no result at its place",
    ),
    Guard(
        "a result that was moved aside is put back",
        FOLDER,
        "        os.rename(partial.previous, partial.target)\n",
        "        pass\n",
        (
            "tests/experiments/test_result_folder.py::test_a_failure_at_any_operation_is_one_sentence_and_leaves_the_old_or_the_new",
        ),
        "a renaming that fails leaves no result at its place",
    ),
    Guard(
        "a result is on the disk before it is renamed",
        FOLDER,
        "    sync_tree(work)\n",
        "",
        (
            "tests/experiments/test_result_folder.py::test_everything_is_on_the_disk_before_the_renaming",
        ),
        "after a power failure the final place holds empty files",
    ),
    Guard(
        "the digest is compared",
        FOLDER,
        "if found != record.get(key):",
        "if False:",
        ("tests/experiments/test_result_folder.py::test_digests_find_a_mixture",),
        "the model of one run stands beside the epsilon of another, and the check says whole",
    ),
    Guard(
        "too little space is refused",
        FOLDER,
        "if not free >= needed:",
        "if False:",
        (
            "tests/experiments/test_result_folder.py::test_too_little_space_is_refused_before_and_left",
        ),
        "a training ends on a full disk, and its model is lost",
    ),
    Guard(
        "a run without a result keeps its number",
        FOLDER,
        '(\\.partial|\\.secret)?")',
        '(\\.partial)?")',
        (
            "tests/experiments/test_partial_folder.py::test_numbers_go_on_after_the_largest_that_is_taken",
        ),
        "a run takes another run's secrets for its own",
    ),
    Guard(
        "permissions of the folder stay",
        FOLDER,
        "os.chmod(partial.result, stat.S_IMODE(os.stat(target).st_mode))",
        "pass",
        ("tests/experiments/test_result_folder.py::test_a_folder_keeps_its_permissions",),
        "a folder that was closed to others is opened to them",
    ),
    Guard(
        "one process makes a result",
        "tfdp/_files.py",
        "fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        (
            "tests/experiments/test_partial_folder.py::test_a_second_process_is_refused_until_the_first_is_gone",
        ),
        "two runs write into one folder, and the result is a mixture",
    ),
    Guard(
        "the lock is on the file that is there",
        PARTIAL,
        "if _same_file(handle, self._lock_path):",
        "if True:",
        (
            "tests/experiments/test_partial_folder.py::test_a_lock_on_a_file_that_is_gone_is_no_lock",
        ),
        "two processes hold a lock each, of two files of one name",
    ),
    Guard(
        "a folder that was taken away is not written",
        FOLDER,
        "            self._partial.check_held()\n            if self._training_id",
        "            if self._training_id",
        (
            "tests/experiments/test_partial_folder.py::test_a_folder_that_was_taken_away_is_not_committed_or_cleared",
        ),
        "a run writes its model among the files of another run",
    ),
    Guard(
        "a card is written beside the model of its run",
        FOLDER,
        "    check_held()\n    with open(os.path.join(work, CARD)",
        "    with open(os.path.join(work, CARD)",
        (
            "tests/experiments/test_partial_folder.py::test_a_folder_that_was_taken_away_is_not_committed_or_cleared",
        ),
        "a run writes its card among the files of another run",
    ),
    Guard(
        "the digests are of files of this run",
        FOLDER,
        "    check_held()\n    with open(os.path.join(work, RECORD)",
        "    with open(os.path.join(work, RECORD)",
        (
            "tests/experiments/test_partial_folder.py::test_a_folder_that_was_taken_away_is_not_committed_or_cleared",
        ),
        "the record of one run gets the digest of another run's model, and the check says whole",
    ),
    Guard(
        "a folder that was taken away is not renamed",
        FOLDER,
        "        partial.check_held()\n",
        "",
        (
            "tests/experiments/test_partial_folder.py::test_a_folder_that_was_taken_away_is_not_committed_or_cleared",
        ),
        "a run puts the unfinished result of another run in place",
    ),
    Guard(
        "a folder that was taken away is not cleared",
        PARTIAL,
        "                self._clear_if_held(made_one)\n",
        "                self._clear(made_one)\n",
        (
            "tests/experiments/test_partial_folder.py::test_a_folder_that_was_taken_away_is_not_committed_or_cleared",
        ),
        "a run deletes what another run is making",
    ),
    Guard(
        "a forked process leaves the folder of its parent",
        PARTIAL,
        "mine = os.getpid() == self._pid",
        "mine = True",
        (
            "tests/experiments/test_partial_folder.py::test_a_forked_child_leaves_the_folder_and_the_lock_to_its_parent",
        ),
        "a child that ends deletes what its parent is making",
    ),
    Guard(
        "no result is made inside another one",
        FOLDER,
        "        check_outside(target)\n",
        "",
        ("tests/experiments/test_result_folder.py::test_a_place_inside_another_result_is_refused",),
        "a result is made in the folder of another, which can never be replaced after that",
    ),
    Guard(
        "a partial folder of others is left",
        PARTIAL,
        "        if names and _LOCK not in names:\n",
        "        if False:\n",
        (
            "tests/experiments/test_partial_folder.py::test_what_is_not_certainly_ours_is_not_cleared",
        ),
        "a lock is put into a folder that is not ours",
    ),
    Guard(
        "a partial folder with other files is left",
        PARTIAL,
        "if foreign := names - {_LOCK, _RESULT, _PREVIOUS}:",
        "if foreign := set():",
        (
            "tests/experiments/test_partial_folder.py::test_what_is_not_certainly_ours_is_not_cleared",
        ),
        "a folder with files of somebody else is taken for a leftover",
    ),
    Guard(
        "a lock file of another program is left",
        PARTIAL,
        'if not untouched and _content(self._lock).get("program") != _PROGRAM:',
        "if False:",
        (
            "tests/experiments/test_partial_folder.py::test_what_is_not_certainly_ours_is_not_cleared",
        ),
        "what another program keeps beside its lock is deleted",
    ),
    Guard(
        "files of others among the files of a result are left",
        PARTIAL,
        "        if strange := self._strange_file():\n            raise",
        "        if strange := None:\n            raise",
        (
            "tests/experiments/test_partial_folder.py::test_what_is_not_certainly_ours_is_not_cleared",
        ),
        "what somebody put into an unfinished result is deleted by the next run",
    ),
    Guard(
        "files of others that appear during a run are left",
        PARTIAL,
        "            if strange := self._strange_file():\n                logging",
        "            if strange := None:\n                logging",
        (
            "tests/experiments/test_partial_folder.py::test_files_that_appear_during_a_run_stay_and_are_named",
        ),
        "what somebody put into an unfinished result is deleted at the end of the run",
    ),
    Guard(
        "a partial folder of another user is left",
        PARTIAL,
        "if os.geteuid() not in (0, found.st_uid):",
        "if False:",
        (
            "tests/experiments/test_partial_folder.py::test_a_leftover_of_another_user_is_not_cleared",
        ),
        "what another user is making is taken for a leftover",
    ),
    Guard(
        "an earlier result that is aside is not deleted for another",
        PARTIAL,
        "if os.path.lexists(self.target) and not self._is_replaced():",
        "if False:",
        (
            "tests/experiments/test_partial_folder.py::test_an_earlier_result_that_is_aside_is_not_lost_to_somebody_elses_folder",
        ),
        "the only copy of an earlier result is deleted",
    ),
    Guard(
        "an earlier result is cleared only for its replacement",
        PARTIAL,
        "digest(os.path.join(self.target, RECORD)) == self._replacement",
        "bool(digest(os.path.join(self.target, RECORD)))",
        (
            "tests/experiments/test_partial_folder.py::test_an_earlier_result_stays_aside_if_it_cannot_be_moved_back",
        ),
        "any result that appears deletes the earlier one that could not be moved back",
    ),
    Guard(
        "an earlier result comes back",
        PARTIAL,
        "            os.rename(self.previous, self.target)\n",
        "            pass\n",
        (
            "tests/experiments/test_partial_folder.py::test_an_earlier_result_that_was_aside_comes_back_with_a_word",
        ),
        "a run that was killed has deleted the result that it was to replace",
    ),
    Guard(
        "secrets are closed from the start",
        FILES,
        "os.mkdir(path, 0o700)",
        "os.mkdir(path)",
        ("tests/test_files.py::test_secrets_are_closed_from_the_first_moment",),
        "others can open the folder of secrets before it is closed to them",
    ),
    Guard(
        "secrets do not follow a link",
        FILES,
        "found = os.lstat(path)",
        "found = os.stat(path)",
        ("tests/test_files.py::test_secrets_do_not_go_where_others_may_look",),
        "whoever puts a link there chooses where secrets go",
    ),
    Guard(
        "secrets are their owner's",
        FILES,
        "if found.st_uid != os.geteuid():",
        "if False:",
        ("tests/test_files.py::test_secrets_do_not_go_where_others_may_look",),
        "secrets are written into a folder of another user",
    ),
    Guard(
        "secrets are closed to others",
        FILES,
        "if stat.S_IMODE(found.st_mode) & 0o077:",
        "if False:",
        ("tests/test_files.py::test_secrets_do_not_go_where_others_may_look",),
        "secrets are written where others may read them",
    ),
    Guard(
        "a release appears whole",
        "tfdp/training/export.py",
        "        copy.save(partial)\n",
        "        copy.save(path)\n        copy.save(partial)\n",
        ("tests/training/test_export.py::test_a_release_appears_whole_or_not_at_all",),
        "a process that is killed while it saves leaves half a release in the place of an earlier one",
    ),
)


def named(words: Iterable[str]) -> list[Guard]:
    """Returns the guards whose names contain one of `words`; all guards if `words` is empty."""
    words = [word.lower() for word in words]
    return [g for g in GUARDS if not words or any(word in g.name.lower() for word in words)]


def tests_of(guards: Iterable[Guard]) -> list[str]:
    """Returns all tests that the guards name, each once."""
    return list(dict.fromkeys(test for guard in guards for test in guard.tests))


class Tree:
    """A copy of the repository, in which one guard at a time is missing."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        leave = shutil.ignore_patterns("__pycache__")
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=leave)
            else:
                shutil.copy(source, folder / name)
        # Bytecode is checked by the source's hash, since edits may share a time stamp and a size.
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(folder / "tfdp", quiet=2, invalidation_mode=mode)

    def without(self, guard: Guard, run):
        """Returns what `run()` returns while `guard` is missing."""
        original = {}
        try:
            for file, before, after in guard.edits:
                path = self.folder / file
                text = path.read_text()
                original.setdefault(path, text)
                if text.count(before) != 1:
                    raise ValueError(f"{guard.name!r} is not found once in {file}")
                text = text.replace(before, after)
                compile(text, file, "exec")
                path.write_text(text)
            return run()
        finally:
            for path, text in original.items():
                path.write_text(text)

    def run(self, tests: list[str], *options: str) -> tuple[int | None, str]:
        """Returns pytest's exit code, or None if it took too long, and its output."""
        log = self.folder / "log.txt"
        process = multiprocessing.get_context("fork").Process(
            target=_pytest, args=(self.folder, [*options, *tests], log)
        )
        process.start()
        process.join(max(_LIMIT, 20 * len(tests)))
        if process.is_alive():
            process.kill()
            process.join()
            return None, log.read_text()
        return process.exitcode, log.read_text()


def _pytest(folder, arguments, log):
    """Runs pytest in a process of its own that has not imported tfdp."""
    with open(log, "w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.chdir(folder)
    sys.path[:] = [str(folder), *(p for p in sys.path if p != str(ROOT / "tests"))]
    sys.dont_write_bytecode = True
    os.environ["COLUMNS"] = "250"  # so that pytest does not cut the last lines
    import pytest

    # Random examples are the same in every run, so that a result is repeatable.
    code = pytest.main(
        ["-n", "0", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", *arguments]
    )
    sys.stdout.flush()
    os._exit(int(code))


def _warm_up():
    """Imports slow packages, which are the same for every guard."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for name in _SLOW_IMPORTS:
        importlib.import_module(name)

    assert not any(name.partition(".")[0] == "tfdp" for name in sys.modules)


def _failure(output: str) -> str:
    """Returns the text of pytest's first failure."""
    found = re.search(r"^(?:FAILED|ERROR) \S+?::(.*)$", output, re.MULTILINE)
    return found[1] if found else output.strip()[-300:]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="words of the names of guards; all without")
    parser.add_argument("--list", action="store_true", help="only say which guards there are")
    parser.add_argument("--check", action="store_true", help="only run the tests on the whole tree")
    parser.add_argument("--no-check", action="store_true", help="take it that they pass there")
    parser.add_argument("--why", action="store_true", help="say what failed")
    options = parser.parse_args(arguments)
    guards = named(options.names)
    if options.list or not guards:
        for guard in guards:
            print(f"{guard.name} ({guard.file}): {guard.protects}")
        print(f"{len(guards)} guards")
        return 0 if guards else 2
    _warm_up()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(pathlib.Path(folder))
        if not options.no_check:
            tests = tests_of(guards)
            print(f"{len(tests)} tests on the tree as it is ...", flush=True)
            code, output = tree.run(tests)
            if code != 0:
                print(output[-5000:])
                print("RED without any change: nothing can be said of the guards.")
                return 1
            print(f"green, {time.monotonic() - started:.0f} s", flush=True)
        if options.check:
            return 0
        bad = _take_out(tree, guards, options.why)
    print(f"\n{len(guards)} guards, {time.monotonic() - started:.0f} s.", end=" ")
    print("Not noticed: " + "; ".join(bad) if bad else "Every one is noticed.")
    return 1 if bad else 0


def _take_out(tree, guards, why) -> list[str]:
    """Prints the table; returns the names of the guards whose removal no test detects."""
    bad = []
    for number, guard in enumerate(guards, 1):
        started = time.monotonic()
        code, output = tree.without(guard, lambda tests=guard.tests: tree.run(list(tests), "-x"))
        # Exit code 1 means that a test failed. Other codes say nothing about the guard.
        said = {1: "red", 0: "GREEN"}.get(code, "BROKEN")
        if said != "red":
            bad.append(guard.name)
        tests = ", ".join(re.sub(r"^tests/", "", test) for test in guard.tests)
        seconds = time.monotonic() - started
        print(f"{number:3}/{len(guards)}  {said:6}  {guard.name} ({seconds:.1f} s)", flush=True)
        print(f"{'':16} without it: {guard.protects}")
        print(f"{'':16} {tests}", flush=True)
        if why or said == "BROKEN":
            print(f"{'':16} {_failure(output)}", flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
