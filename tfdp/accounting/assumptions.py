"""Assumptions of proven guarantees, and the cases in which nothing finite is proven.

The tables are dicts, so that the module of a new mechanism can add rows.
"""

from tfdp.accounting.analysis import Analysis
from tfdp.accounting.mechanisms import SIDPSGD, DiscreteSGD, DPDropout, Matrix, NoMechanism
from tfdp.accounting.numerics.noise_families import GAUSSIAN
from tfdp.accounting.numerics.noise_scores import are_covered
from tfdp.accounting.run import Run
from tfdp.accounting.sampling import (
    Cyclic,
    CyclicPoisson,
    FixedSize,
    OncePerEpoch,
    Poisson,
    RandomAllocation,
    Shuffle,
    Unknown,
    WithReplacement,
)
from tfdp.accounting.sentences import (
    Declared,
    Table,
    all_of,
    always,
    first_of,
    mechanism_is,
    said,
    sampling_is,
)

# Update rules that are linear in the gradients. Theorem A requires that the means are a linear
# function of the gradients.
LINEAR_OPTIMIZERS = ("sgd", "momentum", "nesterov")

_BETWEEN = (
    "Nothing else trained them in between: no plain model on the same layers, no GradientTape."
)
# The origin of the initial weights, by `Run.start`.
START = {
    "assumed": Declared(
        "The weights at the start (with the statistics in frozen layers), and any that were set or "
        "loaded later without their ledger, do not depend on these data: they are fresh, or come "
        "from public data. Weights averaged from models that were trained on these data, or "
        "trained on outputs of such models (distillation), do depend on them, unless Ledger.merge "
        f"added those models' ledgers. {_BETWEEN} tfdp did not check this.",
        "initial weights independent of these data",
    ),
    "public": Declared(
        f"The user declared that the weights at the start do not depend on these data. {_BETWEEN}",
        "initial weights declared public",
    ),
}


def _encoded(run: Run) -> bool:
    return isinstance(run.mechanism, DiscreteSGD)


def _other_family(run: Run) -> bool:
    """Whether the noise is not Gaussian."""
    return isinstance(run.mechanism, DiscreteSGD) and run.mechanism.encoding.noise != GAUSSIAN


# Assumptions that only the user can confirm, by short names. A condition is called with the run and its
# `Analysis`.
DECLARED: Table = {
    START["assumed"].name: (lambda run, _: run.start == "assumed", START["assumed"]),
    START["public"].name: (lambda run, _: run.start == "public", START["public"]),
    "each row a record of its own": (
        lambda run, _: run.contribution.examples_per_person is None,
        "A record is one row of the training data, computed (also by functions passed to map) from "
        "that record alone, with constants that do not depend on the others. None "
        "is held inside the model, as a graph, a table or another constant of a layer. Scalers, "
        "vocabularies, windows or class weights that were made from all rows break this. A person "
        "with more records than stated is protected less (max_examples_per_user).",
    ),
    "all rows of a person under one id": (
        lambda run, _: run.contribution.examples_per_person is not None,
        "A person is all rows with one privacy id, computed (also by functions passed to map) from "
        "that person's data alone, with constants that do not depend on the others. None "
        "is held inside the model, as a graph, a table or another constant of a layer. Scalers, "
        "vocabularies or class weights that were made from all rows break this.",
    ),
    "steps planned in advance": (
        always,
        "The number of steps, over all calls of fit, was fixed beforehand or declared by "
        "privacy.plan. Stopping earlier, or choosing among the weights, by released values or by "
        "held-out data is covered. No held-out record may also be in the training data; tfdp did not "
        "check this.",
    ),
    "sizes that may be public": (
        lambda run, _: not (run.sampling.nominal or isinstance(run.sampling, Unknown)),
        "The number of {run.contribution.units} ({run.sampling.num_examples}) and the lot size "
        "({run.sampling.lot_size}) are public.",
    ),
    "sizes fixed without the data": (
        lambda run, _: run.sampling.nominal,
        "The nominal number of {run.contribution.units} ({run.sampling.num_examples}), the lot size "
        "({run.sampling.lot_size}), the number of steps and every schedule were fixed without "
        "looking at the data.",
    ),
    "lots independent of their contents": (
        sampling_is(Unknown),
        "The lot size ({run.sampling.lot_size}) is public, and no lot had more examples. Which "
        "examples were together, and in which order, does not depend on their contents.",
    ),
    "no example twice in a lot": (
        lambda run, _: isinstance(run.sampling, Unknown) and not run.sampling.whole_epochs,
        "No example was in the same lot twice; it may have been in every lot.",
    ),
    "each example once in an epoch": (
        sampling_is(OncePerEpoch),
        "You declared (tfdp.data.OncePerEpoch) that each example was at most once in every epoch of "
        "{run.sampling.steps_per_epoch} lots.",
    ),
    "the choice of examples kept secret": (
        lambda _, found: found.secret_sample,
        "Which examples were in a lot stays secret.",
    ),
    "an order indistinguishable from random": (
        lambda run, _: isinstance(run.sampling, RandomAllocation) and run.sampling.keyed_order,
        "The permutation (SipHash, six rounds of a Feistel network) is indistinguishable from a random "
        "order of the {run.sampling.num_examples} {run.contribution.units}.",
    ),
    "public examples independent of private ones": (
        lambda run, _: run.contribution.public_examples > 0,
        "The {run.contribution.public_examples} public examples that normalization used "
        "were chosen and prepared without looking at the private ones, and none is a private one "
        "(only arrays in memory were compared).",
    ),
    "a network that nobody reads": (
        lambda run, _: run.machines > 1,
        "{run.machines} machines trained together. Their network carried the secret of noise and lots, "
        "and sums of clipped gradients without noise, and TensorFlow does not encrypt them: nobody "
        "read it who may not read the data.",
    ),
    "no record in two shards": (
        lambda run, _: run.shards > 1,
        "The data were in {run.shards} shards, each on a machine that drew lots from it independently "
        "of the others; the numbers are those of all shards together. No record and no person is in "
        "two of them.",
    ),
    "no more records of a user": (
        lambda run, _: run.contribution.max_examples_per_user > 1,
        "No user has more than {run.contribution.max_examples_per_user} examples, and no "
        "example of one user was computed from those of another.",
    ),
    "schedules fixed in advance": (
        mechanism_is(SIDPSGD),
        "Learning rates and momentum were fixed in advance.",
    ),
    "a codebook independent of the data": (
        mechanism_is(DiscreteSGD),
        "The codebook does not depend on the private data: {run.mechanism.encoding.codebook}.",
    ),
}

# Assumptions that tfdp enforces where it trains. A condition is called with the run and its `Analysis`.
ENFORCED: Table = {
    "counted steps": (always, "No more steps were taken than are counted."),
    "divisor": (always, "Every sum was divided by the lot size, a constant."),
    "Poisson lots": (
        sampling_is(Poisson),
        "Every lot was drawn by independent coin flips of probability {run.sampling.lot_size}/"
        "{run.sampling.num_examples}, empty lots included.",
    ),
    "lots of groups": (
        sampling_is(CyclicPoisson),
        "{run.sampling.groups} equal groups of {run.contribution.units}, formed independently of their "
        "contents, took turns, and each {run.contribution.unit} of a step's group was drawn by a coin "
        "flip of probability {run.sampling.probability:.6g}, independently, empty lots included.",
    ),
    "fixed order": (
        sampling_is(Cyclic),
        "Epochs went through the data in one fixed order that does not depend on it.",
    ),
    "shuffled order": (
        sampling_is(Shuffle),
        "Every epoch took each {run.contribution.unit} at most once, in an order that does not "
        "depend on their contents.",
    ),
    "allocated lots": (
        sampling_is(RandomAllocation),
        "In every epoch of {run.sampling.steps_per_epoch} lots, each {run.contribution.unit} was put "
        "into one of them, uniformly and independently of the others, empty lots included.",
    ),
    "lots with replacement": (
        sampling_is(WithReplacement),
        "Every lot was {run.sampling.lot_size} independent uniform draws.",
    ),
    "lots of fixed size": (
        sampling_is(FixedSize),
        "Every lot was {run.sampling.lot_size} different {run.contribution.units}, drawn uniformly "
        "and independently in every step.",
    ),
    "clipping": (
        lambda run, _: run.contribution.microbatch_size == 1,
        "The gradient of each {run.contribution.unit} was clipped to the clip norm before it was "
        "added.",
    ),
    "clipping of microbatches": (
        lambda run, _: run.contribution.microbatch_size > 1,
        "The mean gradient of {run.contribution.microbatch_size} examples at a time was clipped to "
        "the clip norm before it was added. Microbatches are fixed groups of adjacent rows of the "
        "data, independent of their contents; random lots were drawn from whole groups, as if a "
        "group were one example. A record that contributes nothing keeps its place in its group.",
    ),
    "views": (
        lambda run, _: run.contribution.augmentations > 1,
        "The gradients of the {run.contribution.augmentations} views of each example were averaged "
        "before they were clipped, and all views of an example were in the same lots.",
    ),
    "examples of a person": (
        lambda run, _: run.contribution.examples_per_person is not None,
        "The gradients of at most {run.contribution.examples_per_person} examples of a person, chosen "
        "at random in each lot, were averaged before they were clipped.",
    ),
    "clipping in groups": (
        lambda run, _: run.contribution.clip_groups > 1,
        "The weights form {run.contribution.clip_groups} groups; the gradient of each group was "
        "clipped to the clip norm by itself.",
    ),
    "adaptive clipping": (
        lambda run, _: run.contribution.adaptive_clipping,
        "The clip norm followed a noisy count of unclipped gradients (Andrew et al. 2021); the "
        "noise multiplier covers the sum and the count together.",
    ),
    "Gaussian noise": (
        lambda run, _: not _other_family(run),
        "The noise is Gaussian, independent and secret.",
    ),
    "noise of another family": (
        lambda run, _: _other_family(run),
        "The noise is {run.mechanism.encoding.family}, independent in every weight and secret.",
    ),
    "noise of dropout": (
        mechanism_is(DPDropout),
        "The noise on the clipped sum has the same standard deviation in every weight, whatever "
        "the weights are; the dropout rates follow from the noise, and not the noise from the rates.",
    ),
    "means": (
        mechanism_is(SIDPSGD),
        "The means started from public values, and each step's noise was drawn once around its "
        "mean.",
    ),
    "correlated noise": (
        lambda run, _: isinstance(run.mechanism, Matrix) and run.mechanism.strategy.bands != 1,
        "The strategy was fixed in advance, and its noise is one stream over all steps, which was "
        "never restarted or reused.",
    ),
    "encoding": (
        mechanism_is(DiscreteSGD),
        "Every clipped gradient was encoded separately, and denoising saw only the noisy sum.",
    ),
}

# Assumptions about several runs together. A condition is called with all runs of a composition.
OF_SEVERAL_RUNS: Table = {
    "segments of means": (
        lambda runs: sum(isinstance(run.mechanism, SIDPSGD) for run in runs) > 1,
        "Every SI-DPSGD segment started from released weights, not from earlier means.",
    ),
}


def _bare_step(run: Run) -> int | None:
    """The first step of a table whose noise multiplier is 0, or None."""
    noise = getattr(run.mechanism, "noise_multiplier", None)
    table = noise[: run.steps] if isinstance(noise, tuple) else ()
    return table.index(0.0) if 0.0 in table else None


# Reasons why nothing finite is proven about a run of at least one step. The first that applies is
# reported. A condition is called with the run and the adjacency. A theorem may have further reasons.
UNPROVEN: Table = {
    "no mechanism": (mechanism_is(NoMechanism), "{run.mechanism.reason}"),
    "released means": (
        lambda run, _: isinstance(run.mechanism, SIDPSGD) and run.mechanism.release == "mu",
        "The un-noised means were released (or evaluated): a record that was drawn changes them "
        "with certainty, so no finite epsilon exists.",
    ),
    "no noise": (
        lambda run, _: getattr(run.mechanism, "noise_multiplier", None) == 0,
        "No noise was added (noise_multiplier is 0).",
    ),
    "a step without noise": (
        lambda run, _: _bare_step(run) is not None,
        "No noise was added in step {bare_step} (noise_multiplier is 0 there).",
    ),
    "update rule": (
        lambda run, _: (
            isinstance(run.mechanism, SIDPSGD) and run.mechanism.optimizer not in LINEAR_OPTIMIZERS
        ),
        "The update rule {run.mechanism.optimizer!r} is not linear in the gradients, and its "
        "un-noised state is private. Use SGD, momentum or Nesterov momentum.",
    ),
    "private codebook": (
        lambda run, _: _encoded(run) and run.mechanism.encoding.private_codebook,
        "The codebook was fitted to private gradients, which releases them without noise. Use a "
        "codebook drawn at random or fitted to public data.",
    ),
    "codes and lot statistics": (
        lambda run, _: _encoded(run) and run.contribution.batch_statistics,
        "Normalization statistics were taken over the private lot, so one record changes the "
        "encoding of every other. Use layer normalization or public statistics.",
    ),
    "codes and groups of weights": (
        lambda run, _: _encoded(run) and run.contribution.clip_groups > 1,
        "Gradients were clipped in {run.contribution.clip_groups} groups, but a codebook describes "
        "the whole gradient.",
    ),
    "other degrees of freedom": (
        lambda run, adjacency: (
            _encoded(run)
            and not are_covered(run.mechanism.encoding.degrees_of_freedom)
            and (
                not isinstance(run.sampling, Poisson)
                or run.contribution.max_examples_per_user > 1
                or run.contribution.replaces(adjacency)
            )
        ),
        "With {run.mechanism.encoding.family}, only Poisson lots are proven, for single records that "
        "are left out (zero_out). Use 1 to 12 degrees of freedom.",
    ),
    "other noise and several lots": (
        lambda run, adjacency: (
            _other_family(run)
            and (
                (
                    isinstance(run.sampling, RandomAllocation)
                    and run.contribution.replaces(adjacency)
                )
                or (run.sampling.groups > 1 and run.contribution.max_examples_per_user > 1)
            )
        ),
        "With {run.mechanism.encoding.noise} noise, nothing is proven for two records of a user, or "
        "a record and its replacement, that may be in several lots of a round. Use Poisson lots.",
    ),
    "insecure seed": (
        lambda run, _: run.insecure_seed,
        "The noise (or the secret choice of examples) came from a seed that a person chose and may "
        "know. With the same seed, the noise of two runs cancels, so nothing is proven. Remove "
        "that seed (--insecure_seed, seed=); a public --seed of the initial weights is harmless.",
    ),
    "open plan": (
        lambda run, _: run.open_plan,
        "The training ended, or a file was saved, before the end of its first epoch, whose length is "
        "unknown, so the number of planned steps is unknown. Pass steps_per_epoch, or "
        "a dataset that knows its length, or set a PrivacyBudget.",
    ),
}


def unproven(run: Run, adjacency: str) -> str:
    """Returns the reason why nothing finite is proven about a run; empty if something is."""
    return first_of(UNPROVEN, run, adjacency, run=run, bare_step=_bare_step(run))


def assumptions(run: Run, found: Analysis) -> tuple[str, ...]:
    """Returns the assumptions of a run's proven guarantee, in sentences."""
    declared = (Declared(words, name) for name, words in said(DECLARED, run, found, run=run))
    return (*declared, *all_of(ENFORCED, run, found, run=run))
