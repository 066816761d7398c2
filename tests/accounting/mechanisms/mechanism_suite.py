"""The tests that every mechanism passes, inherited by the test module of each mechanism.

A subclass sets `RUN` to a small run with a finite guarantee, and sets class attributes for what the
mechanism does not support.
"""

import json
import math

import pytest

from tests.accounting.varying import vary
from tfdp.accounting import (
    CalibrationError,
    Ledger,
    Run,
    Statement,
    claimed,
    epsilon_curve,
    max_steps,
    noise_for,
    proven,
)

DELTA = 1e-5


class MechanismSuite:
    """The suite. `takes_tables`: noise may vary over steps."""

    RUN: Run
    takes_tables = True
    finite = True  # False if no guarantee is ever finite

    @property
    def steps(self) -> int:
        return self.RUN.steps

    def table(self, factor=1.0):
        """Returns a table of noise multipliers that begins with the run's own value and grows."""
        z = self.RUN.mechanism.noise_multiplier
        return tuple(factor * z * (1 + t // (self.steps // 2)) for t in range(self.steps))

    def test_no_steps_cost_nothing(self):
        for guarantee in (proven, claimed):
            assert guarantee(vary(self.RUN, steps=0), DELTA).epsilon == 0
        assert proven(vary(self.RUN, steps=0, insecure_seed=True), DELTA).epsilon == 0

    def test_no_noise_is_infinite(self):
        bare = vary(self.RUN, noise_multiplier=0.0)
        for guarantee in (proven(bare, DELTA), claimed(bare, DELTA)):
            assert guarantee.epsilon == math.inf
            assert guarantee.reason
        with pytest.raises(ValueError, match="noise_multiplier"):
            vary(self.RUN, noise_multiplier=-1.0)

    def test_more_noise_and_fewer_steps_are_not_worse(self):
        less, more, half = (
            self.RUN,
            self.RUN.with_noise(2 * self.RUN.mechanism.noise_multiplier),
            vary(self.RUN, steps=self.steps // 2),
        )
        for guarantee in (proven, claimed):
            epsilon = guarantee(less, DELTA).epsilon
            assert guarantee(half, DELTA).epsilon <= epsilon
            assert guarantee(more, DELTA).epsilon <= epsilon
            assert (guarantee(more, DELTA).epsilon < epsilon) is self.finite

    def test_the_statement_has_both_figures(self):
        statement = Statement.of(self.RUN, DELTA)
        for kind in ("Claimed: ", "Proven: ", self.RUN.mechanism.name):
            assert kind in statement.text()
        assert statement.released.startswith(f"{statement.proven.released}.")
        found = json.loads(json.dumps(statement.to_dict(), allow_nan=False))
        assert (found["proven"]["kind"], found["claimed"]["kind"]) == ("proven", "claimed")
        assert math.isfinite(statement.proven.epsilon) is self.finite
        assert math.isfinite(statement.claimed.epsilon) is self.finite
        if self.finite:
            assert "weights at the start" in statement.assumptions[0]

    def test_replacing_is_not_cheaper_than_zeroing(self):
        replaced, zeroed = (proven(self.RUN, DELTA, a) for a in ("replace_one", "zero_out"))
        assert replaced.epsilon >= zeroed.epsilon
        assert math.isfinite(replaced.epsilon) is self.finite

    def test_a_chosen_seed_proves_nothing(self):
        seeded = vary(self.RUN, insecure_seed=True)
        assert proven(seeded, DELTA).epsilon == math.inf
        assert claimed(seeded, DELTA).epsilon == claimed(self.RUN, DELTA).epsilon
        if self.finite:
            assert "seed" in Statement.of(seeded, DELTA).verdict

    def test_round_trip(self):
        runs = [self.RUN, vary(self.RUN, start="public", clip_groups=2, l2_norm_clip=0.5)]
        if self.takes_tables:
            runs.append(vary(self.RUN, noise_multiplier=self.table()))
        ledger = Ledger()
        for run in runs:
            assert Run.from_dict(json.loads(json.dumps(run.to_dict()))) == run
            ledger.record(ledger.open(run), run.steps)
        assert ledger.runs == runs
        assert Ledger.from_json(ledger.to_json()) == ledger

    def test_segments_cost_no_less_than_one(self):
        alone = proven(self.RUN, DELTA).epsilon
        assert proven([self.RUN, self.RUN], DELTA).epsilon >= alone

    def test_curve_and_calibration(self):
        counts = [0, self.steps // 2, self.steps]
        curve = epsilon_curve(self.RUN, counts, DELTA)
        assert curve == sorted(curve)
        if not self.finite:
            with pytest.raises(CalibrationError):
                noise_for(1.0, DELTA, self.RUN)
            return
        assert curve[-1] == pytest.approx(proven(self.RUN, DELTA).epsilon)
        for kind, guarantee in (("proven", proven), ("claimed", claimed)):
            budget = guarantee(self.RUN, DELTA).epsilon
            z = noise_for(budget, DELTA, self.RUN, kind)
            assert z == pytest.approx(self.RUN.mechanism.noise_multiplier, rel=1e-3)
            assert guarantee(self.RUN.with_noise(z), DELTA).epsilon <= budget

    # -- tables of noise over steps ----------------------------------------------------------------

    def test_a_table_of_equal_values_is_the_constant(self):
        if not self.takes_tables:
            with pytest.raises(ValueError, match="noise_multiplier"):
                vary(self.RUN, noise_multiplier=(1.0,) * self.steps)
            return
        run = vary(self.RUN, noise_multiplier=(self.RUN.mechanism.noise_multiplier,) * self.steps)
        for adjacency in ("zero_out", "replace_one"):
            for guarantee in (proven, claimed):
                assert (
                    guarantee(run, DELTA, adjacency).epsilon
                    == guarantee(self.RUN, DELTA, adjacency).epsilon
                )

    def test_a_table_of_noise(self):
        if not (self.takes_tables and self.finite):
            return
        run = vary(self.RUN, noise_multiplier=self.table())
        for guarantee in (proven, claimed):
            least = guarantee(self.RUN, DELTA).epsilon
            largest = guarantee(
                self.RUN.with_noise(2 * self.RUN.mechanism.noise_multiplier), DELTA
            ).epsilon
            assert largest < guarantee(run, DELTA).epsilon <= least
        assert max_steps(1e6, DELTA, run) == self.steps
        with pytest.raises(ValueError, match=str(self.steps + 1)):
            vary(run, steps=self.steps + 1)

    def test_one_step_without_noise_is_infinite(self):
        if not (self.takes_tables and self.finite):
            return
        run = vary(self.RUN, noise_multiplier=(*self.table()[:-1], 0.0))
        for guarantee in (proven, claimed):
            assert guarantee(run, DELTA).epsilon == math.inf
        # A value after the last step of the run does not count.
        assert proven(vary(run, steps=self.steps - 1), DELTA).epsilon < math.inf

    def test_tables_calibrate_by_a_common_factor(self):
        if not (self.takes_tables and self.finite):
            return
        budget = proven(vary(self.RUN, noise_multiplier=self.table()), DELTA).epsilon
        run = vary(self.RUN, noise_multiplier=self.table(0.7))
        factor = noise_for(budget, DELTA, run)
        assert factor == pytest.approx(1 / 0.7, rel=2e-3)
        assert proven(run.with_noise(factor), DELTA).epsilon <= budget
