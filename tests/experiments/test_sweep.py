"""The points of a sweep are trained one after the other, and a failure does not affect others."""

import json

import pytest

from tfdp.accounting import describe, proven
from tfdp.accounting.guarantee import format_epsilon
from tfdp.experiments import Experiment
from tfdp.experiments.command import Point
from tfdp.experiments.sweep import train_points

POINTS = [
    Point(Experiment(epsilon=float(e), seed=s), {"epsilon": e, "seed": str(s)})
    for e in ("0.5", "8")
    for s in (1, 2)
]
RUN = describe(
    mechanism="dpsgd",
    sampling="cyclic",
    num_examples=100,
    lot_size=10,
    steps=10,
    noise_multiplier=2.0,
)


def stub(trained, failures=()):
    """Returns a substitute for training, which writes a run.json, and fails at the given points."""

    def train(point, folder):
        experiment = point.experiment
        trained.append(folder.name)
        failure = dict(failures).get((experiment.epsilon, experiment.seed), 0)
        if isinstance(failure, BaseException):
            raise failure
        if failure:
            return failure
        folder.mkdir(parents=True)
        proven = {"epsilon": "inf" if experiment.seed == 2 else experiment.epsilon}
        record = {"test_accuracy": 0.875, "claimed": {"epsilon": 12.34}, "proven": proven}
        record["runs"] = [RUN.to_dict()]
        (folder / "run.json").write_text(json.dumps(record))
        return 0

    return train


def test_a_point_that_fails_does_not_lose_the_others(tmp_path, capsys):
    trained = []
    failures = [((0.5, 2), 2), ((8.0, 1), RuntimeError("out of memory"))]
    (tmp_path / "epsilon=8,seed=1").mkdir()
    (tmp_path / "epsilon=8,seed=1" / "run.json").write_text("{}")  # an earlier result
    assert train_points(POINTS, tmp_path, stub(trained, failures)) == 2
    assert trained == [
        "epsilon=0.5,seed=1", "epsilon=0.5,seed=2", "epsilon=8,seed=1", "epsilon=8,seed=2",
    ]  # fmt: skip
    said = capsys.readouterr()
    assert "RuntimeError: out of memory" in said.err
    assert said.out.count("failed") == 2 and said.out.count("87.50%") == 2
    rows = [line.split() for line in said.out.splitlines() if "│" in line]
    assert ["│0.5", "│", "1", "│", "87.50%", "│", "12.34", "│", "0.5│"] in rows
    assert ["│8", "│", "1", "│", "failed", "│", "│", "│"] in rows
    both = proven([RUN, RUN], 1e-5).epsilon
    assert f"All 2 trainings together: proven epsilon {format_epsilon(both)}" in said.out


def test_an_interruption_ends_the_sweep(tmp_path):
    trained = []
    with pytest.raises(KeyboardInterrupt):
        train_points(POINTS, tmp_path, stub(trained, [((0.5, 2), KeyboardInterrupt())]))
    assert len(trained) == 2
