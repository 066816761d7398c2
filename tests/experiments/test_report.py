"""What the final table says of clipping, and what run.json does not say."""

from unittest import mock

import pytest

from tfdp.accounting import Run
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


def test_no_record_holds_the_seed_of_the_noise():
    result = mock.MagicMock(seconds_per_step=1.0)
    result.experiment.insecure_seed = 987654321
    found = record(result)
    assert found["insecure_seed"] is True
    assert "987654321" not in repr(found)
