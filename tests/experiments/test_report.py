"""The clipping in the final table, and what run.json must not contain."""

import dataclasses
import json
from unittest import mock

import pytest

from tfdp.accounting import Run
from tfdp.experiments import SETTINGS, Experiment
from tfdp.experiments.report import _clip_norm, record


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "clip norm C = 0.5"),
        ({"clip_groups": 3}, "clip norm C = 0.5 in each of 3 layers"),
        ({"adaptive_clipping": True}, "clip norm C = 0.5 at first, then adaptive"),
    ],
    ids=["global", "each_layer", "adaptive"],
)
def test_the_clip_norm_is_said_as_it_was(fields, words):
    run = Run(
        mechanism="dpsgd",
        num_examples=8,
        lot_size=4,
        steps=1,
        sampling="poisson",
        noise_multiplier=1.0,
        l2_norm_clip=0.5,
        **fields,
    )
    assert _clip_norm(run) == words


def result(**settings):
    settings = {"epsilon": 2.0} | settings
    made = mock.MagicMock(seconds_per_step=1.0)
    made.experiment = Experiment(**settings)
    return made


def test_no_record_holds_the_seed_of_the_noise():
    found = record(result(insecure_seed=987654321))
    assert found["insecure_seed"] is True
    assert "987654321" not in repr(found)


def test_a_record_holds_the_settings_that_were_run():
    settings = dict(mechanism="discrete_sgd", steps=3, encode=False, denoise=False, seed=5)
    made = result(**settings, data_dir="/somewhere", insecure_seed=1)
    found = json.loads(json.dumps(record(made)["settings"]))
    assert found.keys() == SETTINGS.keys() - {"data_dir", "insecure_seed"}
    there = Experiment(**found)
    assert there == dataclasses.replace(made.experiment, data_dir=None, insecure_seed=None)
    assert there.encode is False and there.steps == 3
