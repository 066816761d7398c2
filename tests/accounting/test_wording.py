"""Which sentences a statement has for which runs and guarantees, by the names of their rows."""

import json

import pytest
from scipy.optimize import brentq

from tests.accounting.varying import vary
from tfdp.accounting import (
    Encoding,
    Guarantee,
    Ledger,
    PrivacyBudget,
    Statement,
    Strategy,
    describe,
)
from tfdp.accounting.analysis import Analysis
from tfdp.accounting.assumptions import DECLARED, ENFORCED, OF_SEVERAL_RUNS, START, UNPROVEN
from tfdp.accounting.meaning import MEANING, VERDICT, Facts, meaning
from tfdp.accounting.numerics.gaussian import epsilon_of_mu
from tfdp.accounting.numerics.privacy_loss import GaussianLoss
from tfdp.accounting.sentences import Declared, said
from tfdp.accounting.statements import StatementText, figure
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
CODEBOOK = "a codebook independent of the data"
NONE = {"mechanism": "none"}


def names(rows):
    return {name for name, _ in rows}


# ---------------------------------------------------------------------- runs

ASSUMED = [
    ({"machines": 2}, "a network that nobody reads", ()),
    ({"shards": 2}, "no record in two shards", ()),
    (
        {"start": "public"},
        START["public"].name,
        START["assumed"].name,
    ),
    ({"nominal": True}, "sizes fixed without the data", "sizes that may be public"),
    (
        {"sampling": "unknown"},
        {"lots independent of their contents", "no example twice in a lot"},
        {"sizes that may be public", "Poisson lots"},
    ),
    (
        {"sampling": "once_per_epoch"},
        {"lots independent of their contents", "each example once in an epoch"},
        {"sizes that may be public", "Poisson lots", "no example twice in a lot", "shuffled order"},
    ),
    ({"sampling": "cyclic_poisson", "groups": 2}, "lots of groups", "Poisson lots"),
    ({"sampling": "cyclic"}, "fixed order", "Poisson lots"),
    ({"sampling": "shuffle"}, "shuffled order", "Poisson lots"),
    ({"sampling": "random_allocation"}, "allocated lots", "Poisson lots"),
    ({"sampling": "with_replacement"}, "lots with replacement", "Poisson lots"),
    ({"sampling": "fixed_size"}, "lots of fixed size", "Poisson lots"),
    ({"microbatch_size": 2}, "clipping of microbatches", "clipping"),
    ({"views": 2}, "views", ()),
    (
        PEOPLE,
        {"all rows of a person under one id", "examples of a person"},
        "each row a record of its own",
    ),
    (
        {"sampling": "random_allocation", "num_examples": 2**25},
        {"allocated lots", "an order indistinguishable from random"},
        "Poisson lots",
    ),
    ({"clip_groups": 2}, "clipping in groups", ()),
    ({"public_examples": 8}, "public examples independent of private ones", ()),
    ({"adaptive_clipping": True}, "adaptive clipping", ()),
    ({"max_examples_per_user": 2}, "no more records of a user", ()),
    ({"mechanism": "dp_dropout"}, "noise of dropout", ()),
    ({"mechanism": "sgld"}, "noise of dropout", ()),
    (SI, {"means", "schedules fixed in advance"}, ()),
    (MATRIX, "correlated noise", ()),
    ({"mechanism": "matrix", "strategy": Strategy(name="identity")}, (), ()),
    (encoded("gaussian"), {CODEBOOK, "encoding"}, ()),
    (
        encoded("laplace"),
        {CODEBOOK, "encoding", "noise of another family"},
        "Gaussian noise",
    ),
    (
        STUDENT,
        {CODEBOOK, "encoding", "noise of another family"},
        "Gaussian noise",
    ),
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
        assert found == {*table} - {"the choice of examples kept secret"}
    secret = Analysis(secret_sample=True)
    assert rows_of(ASSUMPTIONS, RUN, secret) == assumed(RUN) | {
        "the choice of examples kept secret"
    }


REASONS = [
    (NONE, "zero_out", "no mechanism"),
    (SI | {"release": "mu"}, "zero_out", "released means"),
    ({"noise_multiplier": 0.0}, "zero_out", "no noise"),
    ({"noise_multiplier": (1.0,) * 49 + (0.0,)}, "zero_out", "a step without noise"),
    (SI | {"optimizer": "adam"}, "zero_out", "update rule"),
    (encoded("gaussian", private_codebook=True), "zero_out", "private codebook"),
    (encoded("gaussian") | {"batch_statistics": True}, "zero_out", "codes and lot statistics"),
    (encoded("gaussian") | {"clip_groups": 2}, "zero_out", "codes and groups of weights"),
    (
        encoded("student_t", degrees_of_freedom=0.5) | {"sampling": "shuffle"},
        "zero_out",
        "other degrees of freedom",
    ),
    (STUDENT | {"sampling": "random_allocation"}, "replace_one", "other noise and several lots"),
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

    def excess(mu):
        return epsilon_of_mu(mu, DELTA) - epsilon

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
            losses=(GaussianLoss(brentq(excess, 1e-9, 20.0)),) if known and epsilon < 50 else (),
            **common,
        ),
    )


INFINITE = float("inf")
EXPLAINED = [
    ("belief", {"epsilon": 8.0}, "no bound"),
    ("belief", {"adjacency": "replace_one"}, "replaced"),
    ("belief", {}, "used"),
    ("rates", {"epsilon": 51.0}, "vacuous"),
    ("rates", {"adjacency": "replace_one"}, "replaced"),
    ("rates", {}, "membership"),
    ("other rates", {"epsilon": 51.0}, "vacuous"),
    ("other rates", {}, "finite"),
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
    ("given", "row"),
    [
        ({"epsilon": INFINITE, "num_examples": 100_000}, "infinite"),
        ({"epsilon": 51.0, "num_examples": 100_000}, "vacuous"),
        ({"epsilon": 0.5, "num_examples": 100_000}, "delta"),
        ({"epsilon": 0.0, "num_examples": 100_000, "runs": 0}, "nothing"),
        ({"epsilon": 7.0}, "certain"),
        ({"known": False}, "unbounded"),
        ({"epsilon": 1.1}, "moderate"),
        ({"epsilon": 1.0}, "strong"),
    ],
)
def test_the_verdict_is_the_first_that_holds(given, row):
    found = facts(**given)
    assert next(said(VERDICT, found, f=found))[0] == row


# ---------------------------------------------------------------------- the statement


def test_numbers_are_rounded_up():
    assert "at most 96.5% sure" in meaning(facts(3.3))["belief"]
    assert "at most 2.72 times the chance" in meaning(facts(1.0))["definition"]


def test_users_are_named():
    found = Statement.of(vary(RUN, max_examples_per_user=10), DELTA)
    assert "all records of one user (10 at most)" in found.neighbours
    assert "each user's records" in found.verdict and "user" in str(found.proven)


def test_a_run_has_its_numbers():
    rates = (0.1,) * 25 + (0.05,) * 25
    run = vary(RUN, **SI, momentum=0.9, nesterov=True, learning_rates=rates, clip_groups=3)
    (words,) = Statement.of(run, DELTA).executed
    for part in ("10 out of 1000", "noise multiplier 2", "momentum 0.9", "0.05 to 0.1", "3 groups"):
        assert part in words


def test_every_full_form_has_the_verdict_the_assumptions_and_the_limits():
    found = Statement.of(vary(RUN, sampling="cyclic", noise_multiplier=0.25), DELTA)
    forms = found.text(full=True), found.markdown(), json.dumps(found.to_dict(), ensure_ascii=False)
    assert found.assumptions and found.not_covered and found.verdict.startswith("Weak")
    for sentence in (
        found.verdict, *found.assumptions, *found.not_covered, *found.meaning.values()
    ):  # fmt: skip
        assert all(sentence in form for form in forms)
    assert found.markdown().startswith("## Privacy\n")


@pytest.mark.parametrize(
    ("run", "delta", "verdict"),
    [
        (RUN, DELTA, "Strong"),
        (vary(RUN, **SI, optimizer="adam"), DELTA, "'adam' is not linear"),
        (vary(RUN, noise_multiplier=0.1), DELTA, "Do not call these weights private"),
        (RUN, 0.5, "delta = 0.5 is not below 1/N"),
    ],
)
def test_five_lines_have_the_verdict_both_figures_and_the_names_of_what_to_confirm(
    run, delta, verdict
):
    found = Statement.of(run, delta)
    lines = found.text().splitlines()
    assert len(lines) <= 5 and verdict in lines[0] and "full=True" in lines[-1]
    for guarantee in (found.proven, found.claimed):
        assert any(figure(guarantee) in line for line in lines)
    for assumption in found.assumptions:
        if isinstance(assumption, Declared):
            assert assumption.name and assumption.name in lines[-1]
    assert "plan" in lines[0] and "plan" not in Statement.of(run, delta, planned=False).verdict


def test_notebooks_show_short_reprs_and_tables_without_scripts():
    run = vary(RUN, **SI, noise_multiplier=(2.0,) * 50)
    ledger = Ledger()
    ledger.record(ledger.open(run), 5)
    ledger.budget = PrivacyBudget(2.0, DELTA)
    found = Statement.of(run, DELTA)
    shown = (run, found, found.proven, found.claimed, ledger)
    assert max(len(repr(each)) for each in shown) <= 200
    texts = (StatementText.of(found), StatementText.of(found, full=True))
    for each in (found, found.proven, ledger, *texts):
        assert each._repr_html_().startswith(("<table>", "<pre>"))
    infinite = Statement.of(vary(RUN, **NONE, reason="<b>"), DELTA)
    assert "&lt;b&gt;" in infinite._repr_html_() and "<b>" not in infinite._repr_html_()


def test_each_run_is_named_once_and_a_plan_is_called_one():
    other = vary(RUN, steps=20, lot_size=2 * RUN.sampling.lot_size)
    found = Statement.of([RUN] * 40 + [other], DELTA, planned=False)
    assert len(found.executed) == 2 and found.executed[0].startswith("40 times: ")
    assert "What was executed" in found.text(full=True) and "2 different" in found.text()
    assert found.text().count("sizes that may be public") == 1
    assert "What is planned" in Statement.of(RUN, DELTA).text(full=True)


def test_without_runs_nothing_was_executed():
    found = Statement.of([], 0.5)
    assert found.executed == ("Nothing yet.",) and found.proven.epsilon == 0
    assert len(found.assumptions) == 1 and "Nothing is spent" in found.verdict
