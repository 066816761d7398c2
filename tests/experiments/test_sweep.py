"""Texts of --sweep and flag files as points."""

import pytest

from tfdp.experiments.sweep import flag_and_text, folder_name, points_of, product


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
        ["epsilon=1,,2"],
        ["epsilon=1,2 seed=3"],
        ["seed=1 seed=2"],
        ["a=1", "a=2"],
    ],
)
def test_a_text_that_is_no_sweep_is_refused(sweeps):
    with pytest.raises(ValueError):
        product(sweeps)


def test_flags_and_points_of_a_flag_file():
    assert flag_and_text("--encode") == ("encode", "true")
    assert flag_and_text("--noencode") == ("encode", "false")
    assert flag_and_text("--normalize_output") == ("normalize_output", "true")  # no negation
    assert flag_and_text("--noise=laplace") == ("noise", "laplace")
    flags = ["--model=mlp", "--epsilon=9", "--sweep=epsilon=1,2 steps=3,4"]
    assert points_of(flags) == [
        ({"epsilon": "1", "steps": "3"}, ["--model=mlp", "--epsilon=1", "--steps=3"]),
        ({"epsilon": "2", "steps": "4"}, ["--model=mlp", "--epsilon=2", "--steps=4"]),
    ]
