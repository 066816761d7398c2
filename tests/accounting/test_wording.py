"""Which sentences a statement has for which runs and guarantees, by the names of their rows."""

import json

import pytest

from tests.accounting.varying import vary
from tfdp.accounting import Encoding, Guarantee, Statement, Strategy, describe
from tfdp.accounting.analysis import Analysis
from tfdp.accounting.assumptions import DECLARED, ENFORCED, OF_SEVERAL_RUNS, UNPROVEN
from tfdp.accounting.meaning import MEANING, WARNINGS, Facts, meaning
from tfdp.accounting.numerics.gaussian import mu_of_epsilon
from tfdp.accounting.numerics.privacy_loss import GaussianLoss
from tfdp.accounting.sentences import said
from tfdp.accounting.wording import ADVICE, EXECUTED, RELEASED

DELTA = 1e-5
RUN = describe("dpsgd", "poisson", num_examples=1000, lot_size=10, steps=50, noise_multiplier=2.0)
ASSUMPTIONS = DECLARED | ENFORCED
SI = {"mechanism": "si_dpsgd"}
MATRIX = {"mechanism": "matrix", "strategy": Strategy(name="sqrt_toeplitz")}
BANDS = {"mechanism": "matrix", "strategy": Strategy(name="sqrt_toeplitz", bands=3)}


def encoded(noise, **more):
    encoding = Encoding(noise=noise, num_weights=5, **more)
    return {"mechanism": "discrete_sgd", "encoding": encoding}


STUDENT = encoded("student_t", degrees_of_freedom=9.0)
PEOPLE = {"examples_per_person": 2, "views": 2}
NONE = {"mechanism": "none"}


def names(rows):
    return {name for name, _ in rows}


# ---------------------------------------------------------------------- runs

ASSUMED = [
    ({"start": "public"}, "start is public", "start is assumed"),
    ({"nominal": True}, "nominal sizes", "sizes"),
    (
        {"sampling": "unknown"},
        {"unknown lots", "once in a lot"},
        {"sizes", "Poisson lots"},
    ),
    (
        {"sampling": "once_per_epoch"},
        {"unknown lots", "once in an epoch"},
        {"sizes", "Poisson lots", "once in a lot", "shuffled order"},
    ),
    ({"sampling": "cyclic_poisson", "groups": 2}, "lots of groups", "Poisson lots"),
    ({"sampling": "cyclic"}, "fixed order", "Poisson lots"),
    ({"sampling": "shuffle"}, "shuffled order", "Poisson lots"),
    ({"sampling": "random_allocation"}, "allocated lots", "Poisson lots"),
    ({"sampling": "with_replacement"}, "lots with replacement", "Poisson lots"),
    ({"sampling": "fixed_size"}, "lots of fixed size", "Poisson lots"),
    ({"microbatch_size": 2}, "clipping of microbatches", "clipping"),
    ({"views": 2}, "views", ()),
    (PEOPLE, {"people", "examples of a person"}, "records"),
    (
        {"sampling": "random_allocation", "num_examples": 2**25},
        {"allocated lots", "keyed order"},
        "Poisson lots",
    ),
    ({"clip_groups": 2}, "clipping in groups", ()),
    ({"public_examples": 8}, "public examples", ()),
    ({"adaptive_clipping": True}, "adaptive clipping", ()),
    ({"max_examples_per_user": 2}, "users", ()),
    ({"mechanism": "dp_dropout"}, "noise of dropout", ()),
    ({"mechanism": "sgld"}, "noise of dropout", ()),
    (SI, {"means", "schedules of the means"}, ()),
    (MATRIX, "correlated noise", ()),
    ({"mechanism": "matrix", "strategy": Strategy(name="identity")}, (), ()),
    (encoded("gaussian"), {"codebook", "encoding"}, ()),
    (encoded("laplace"), {"codebook", "encoding", "noise of another family"}, "Gaussian noise"),
    (STUDENT, {"codebook", "encoding", "noise of another family"}, "Gaussian noise"),
]
DONE = [
    ({"steps": 1}, "one step", "steps"),
    ({"taken": 20}, "planned steps", "steps"),
    ({"sampling": "unknown"}, {"unknown lots", "examples in every lot"}, "nominal lots"),
    ({"sampling": "once_per_epoch"}, "unknown lots", {"nominal lots", "examples in every lot"}),
    ({"sampling": "cyclic"}, "lots", "nominal lots"),
    ({"nominal": True}, "nominal examples", ()),
    (NONE, "no privacy", "noise"),
    (encoded("laplace"), "noise of a family", ()),
    (MATRIX, "strategy", ()),
    (BANDS, {"strategy", "bands"}, ()),
    (SI, "update rule", ()),
    (SI | {"momentum": 0.9}, {"update rule", "momentum"}, ()),
    (SI | {"momentum": 0.9, "nesterov": True}, {"update rule", "Nesterov momentum"}, ()),
    (SI | {"learning_rates": (0.1,) * 50}, {"update rule", "learning rates"}, ()),
    ({"adaptive_clipping": True}, "adaptive clipping", ()),
    ({"clip_groups": 2}, "groups of weights", ()),
    ({"microbatch_size": 2}, "microbatches", ()),
    ({"views": 2}, "views", ()),
    (PEOPLE, "people", ()),
    ({"batch_statistics": True}, "lot statistics", ()),
]


def rows_of(table, run, *more):
    fields = {"noise": "", "momentum": "", "learning_rates": "", "bare_step": 0}
    return names(said(table, run, *more, run=run, **fields))


def assumed(run):
    return rows_of(ASSUMPTIONS, run, Analysis())


def done(run):
    return rows_of(EXECUTED, run)


@pytest.mark.parametrize(
    ("rows", "change", "more", "less"),
    [(assumed, *case) for case in ASSUMED] + [(done, *case) for case in DONE],
)
def test_a_sentence_follows_from_the_run(rows, change, more, less):
    more, less = ({each} if isinstance(each, str) else {*each} for each in (more, less))
    assert rows(vary(RUN, **change)) == (rows(RUN) | more) - less


def test_every_row_about_a_run_is_said_of_some_run():
    for table, rows, cases in ((ASSUMPTIONS, assumed, ASSUMED), (EXECUTED, done, DONE)):
        found = set.union(rows(RUN), *(rows(vary(RUN, **change)) for change, _, _ in cases))
        assert found == {*table} - {"secret lots"}
    secret = Analysis(secret_sample=True)
    assert rows_of(ASSUMPTIONS, RUN, secret) == assumed(RUN) | {"secret lots"}


REASONS = [
    (NONE, "zero_out", "no mechanism"),
    (SI | {"release": "mu"}, "zero_out", "released means"),
    ({"noise_multiplier": 0.0}, "zero_out", "no noise"),
    ({"noise_multiplier": (1.0,) * 49 + (0.0,)}, "zero_out", "a step without noise"),
    (SI | {"optimizer": "adam"}, "zero_out", "update rule"),
    (encoded("gaussian", private_codebook=True), "zero_out", "private codebook"),
    (encoded("gaussian") | {"batch_statistics": True}, "zero_out", "codes and lot statistics"),
    (encoded("gaussian") | {"clip_groups": 2}, "zero_out", "codes and groups of weights"),
    (STUDENT | {"max_examples_per_user": 2}, "zero_out", "other noise and users"),
    (STUDENT | {"microbatch_size": 2}, "zero_out", "other noise and microbatches"),
    (STUDENT | {"sampling": "cyclic"}, "zero_out", "other noise and lots"),
    (STUDENT, "replace_one", "other noise and replaced records"),
    ({"insecure_seed": True}, "zero_out", "insecure seed"),
    ({"open_plan": True}, "zero_out", "open plan"),
]


def test_reasons_why_nothing_is_proven():
    for change, adjacency, reason in REASONS:
        assert rows_of(UNPROVEN, vary(RUN, **change), adjacency) == {reason}
    assert {reason for _, _, reason in REASONS} == {*UNPROVEN}
    for change in ({}, STUDENT, SI, {"noise_multiplier": (1.0,) * 50 + (0.0,)}):
        assert not rows_of(UNPROVEN, vary(RUN, **change), "zero_out")


def test_what_was_released_and_what_is_advised():
    si = vary(RUN, **SI)
    runs = {"no privacy": vary(RUN, **NONE), "means": vary(si, release="mu")}
    runs |= {"noised weights": si, "noisy gradients": RUN}
    assert {*runs} == {*RELEASED}
    for name, run in runs.items():
        assert next(said(RELEASED, run))[0] == name
    assert names(said(ADVICE, si)) == {"means"} and not names(said(ADVICE, RUN))
    assert names(said(OF_SEVERAL_RUNS, [si, si])) == {"segments of means"}
    assert not names(said(OF_SEVERAL_RUNS, [si, RUN]))


# ---------------------------------------------------------------------- guarantees


def facts(
    epsilon=2.0, claim=2.0, adjacency="zero_out", users=1, runs=1, changes=1, known=True, **change
):
    """Facts of a Gaussian mechanism, or, unless `known`, of one with this epsilon only."""
    common = {
        "delta": DELTA, "sampling": "", "released": "", "mechanism": "", "reason": "None.",
    }  # fmt: skip
    return Facts(
        [vary(RUN, **change)] * runs,
        Guarantee(epsilon=claim, kind="claimed", adjacency="zero_out", **common),
        Guarantee(
            epsilon=epsilon,
            kind="proven",
            adjacency=adjacency,
            max_examples_per_user=users,
            changes=changes,
            losses=(GaussianLoss(mu_of_epsilon(epsilon, DELTA)),) if known and epsilon < 50 else (),
            **common,
        ),
    )


INFINITE = float("inf")
EXPLAINED = [
    ("belief", {"epsilon": INFINITE}, "infinite"),
    ("belief", {"epsilon": 51.0}, "vacuous"),
    ("belief", {"epsilon": 0.0}, "nothing spent"),
    ("belief", {"epsilon": 8.0}, "certain"),
    ("belief", {"known": False}, "unbounded"),
    ("belief", {"adjacency": "replace_one"}, "replaced"),
    ("belief", {}, "used"),
    ("rates", {"epsilon": 51.0}, "vacuous"),
    ("rates", {"adjacency": "replace_one"}, "replaced"),
    ("rates", {}, "membership"),
    ("definition", {"epsilon": 10.0}, "definition"),
    ("definition", {"epsilon": 10.1}, None),
    ("neighbours", {}, "zero_out"),
    ("neighbours", {"adjacency": "replace_one"}, "replace_one"),
    ("neighbours", {"adjacency": "add_or_remove_one"}, "add_or_remove_one"),
    ("changes", {"changes": 2}, "several"),
    ("changes", {}, None),
    ("nominal lots", {}, "nominal lots"),
    ("nominal lots", {"sampling": "cyclic"}, None),
    ("comparison", {}, "equal"),
    ("comparison", {"epsilon": INFINITE}, "equal"),
    ("comparison", {"claim": INFINITE}, "no claim"),
    ("comparison", {"epsilon": 3.0, "adjacency": "replace_one"}, "other neighbours"),
    ("comparison", {"epsilon": 3.0, "runs": 2}, "several runs"),
    ("comparison", {"epsilon": 1.0, "sampling": "cyclic"}, "larger for other lots"),
    ("comparison", {"epsilon": 1.0}, "larger"),
    ("comparison", {"epsilon": 3.0, **SI}, "means"),
    ("comparison", {"epsilon": 3.0, "sampling": "cyclic"}, "lots"),
    ("comparison", {"epsilon": 3.0, "users": 2, "sampling": "cyclic", **MATRIX}, "users"),
    ("comparison", {"epsilon": 3.0, "microbatch_size": 2}, "microbatches"),
    ("comparison", {"epsilon": 3.0, "batch_statistics": True}, "lot statistics"),
    ("comparison", {"epsilon": 3.0, "clip_groups": 2}, "groups of weights"),
    ("comparison", {"epsilon": 3.0}, "smaller"),
]


@pytest.mark.parametrize(("topic", "given", "row"), EXPLAINED)
def test_a_sentence_follows_from_the_guarantees(topic, given, row):
    found = facts(**given)
    assert next(said(MEANING[topic], found, f=found), (None,))[0] == row


def test_every_row_about_guarantees_is_said_of_some():
    for topic, table in MEANING.items():
        assert {*table} == {row for name, _, row in EXPLAINED if name == topic and row}


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ({}, set()),
        ({"epsilon": 10.1}, {"weak"}),
        ({"epsilon": 51.0}, {"vacuous"}),
        ({"insecure_seed": True, "epsilon": INFINITE}, {"vacuous", "insecure seed"}),
        ({"num_examples": 100_000}, {"delta"}),
        ({"num_examples": 100_000, "runs": 0}, set()),
    ],
)
def test_warnings(given, rows):
    found = facts(**given)
    assert names(said(WARNINGS, found, f=found)) == rows


# ---------------------------------------------------------------------- the statement


def test_numbers_are_rounded_up():
    assert "at most 96.5% sure" in meaning(facts(3.3))["belief"]
    assert "at most 2.72 times the chance" in meaning(facts(1.0))["definition"]


def test_users_are_named():
    found = Statement.of(vary(RUN, max_examples_per_user=10), DELTA)
    assert "all records of one user (10 at most)" in found.neighbours
    assert "all records of one user" in found.meaning["belief"] and "user" in str(found.proven)


def test_a_run_has_its_numbers():
    rates = (0.1,) * 25 + (0.05,) * 25
    run = vary(RUN, **SI, momentum=0.9, nesterov=True, learning_rates=rates, clip_groups=3)
    (words,) = Statement.of(run, DELTA).executed
    for part in ("10 out of 1000", "noise multiplier 2", "momentum 0.9", "0.05 to 0.1", "3 groups"):
        assert part in words


def test_every_form_has_the_figures_the_assumptions_and_the_limits():
    found = Statement.of(vary(RUN, sampling="cyclic", noise_multiplier=0.25), DELTA)
    forms = found.text(), found.markdown(), json.dumps(found.to_dict(), ensure_ascii=False)
    assert found.assumptions and found.not_covered and found.warnings  # epsilon is above 10
    for sentence in (
        *found.assumptions, *found.not_covered, *found.warnings, *found.meaning.values()
    ):  # fmt: skip
        assert all(sentence in form for form in forms)
    assert found.markdown().startswith("## Privacy\n")


def test_each_run_is_named_once_and_a_plan_is_called_one():
    other = vary(RUN, steps=20)
    found = Statement.of([RUN] * 40 + [other], DELTA, planned=False)
    assert len(found.executed) == 2 and found.executed[0].startswith("40 times: ")
    assert found.text().count("Executed: ") == 2 and "Planned: " not in found.text()
    plan = Statement.of(RUN, DELTA).text()
    assert "Planned: " in plan and "Executed: " not in plan


def test_without_runs_nothing_was_executed():
    found = Statement.of([], 0.5)
    assert found.executed == ("Nothing yet.",) and found.proven.epsilon == 0
    assert len(found.assumptions) == 1 and not found.warnings
