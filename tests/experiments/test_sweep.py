"""Texts of --sweep as points."""

import pytest

from tfdp.experiments.sweep import folder_name, product


def test_several_sweeps_make_the_product_and_the_first_is_slowest():
    found = product(["epsilon=1,2 steps=7,8", "seed=3,4"])
    assert [folder_name(values) for values in found] == [
        "epsilon=1,steps=7,seed=3", "epsilon=1,steps=7,seed=4", "epsilon=2,steps=8,seed=3",
        "epsilon=2,steps=8,seed=4",
    ]  # fmt: skip
    assert product([]) == [{}]
    assert folder_name({"dataset": "glue/sst2"}) == "dataset=glue-sst2"


@pytest.mark.parametrize(
    "sweeps",
    [
        [""],
        ["epsilon"],
        ["magic=1"],
        ["epsilon=1,,2"],
        ["epsilon=1,2 seed=3"],
        ["seed=1 seed=2"],
        ["seed=1", "seed=2"],
    ],
)
def test_a_text_that_is_no_sweep_is_refused(sweeps):
    with pytest.raises(ValueError):
        product(sweeps)
