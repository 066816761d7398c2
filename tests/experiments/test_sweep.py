"""Texts of --sweep and flag files as points."""

import pytest

from tfdp.experiments.sweep import flag_and_text, folder_name, parse, points_of, product


def test_one_setting():
    assert parse("epsilon=0.5,1") == [{"epsilon": "0.5"}, {"epsilon": "1"}]


def test_settings_that_move_together():
    assert parse("epsilon=1,2 steps=7,8") == [
        {"epsilon": "1", "steps": "7"},
        {"epsilon": "2", "steps": "8"},
    ]


def test_several_make_the_product_and_the_first_is_slowest():
    found = product(["epsilon=1,2", "seed=3,4"])
    assert [folder_name(values) for values in found] == [
        "epsilon=1,seed=3", "epsilon=1,seed=4", "epsilon=2,seed=3", "epsilon=2,seed=4",
    ]  # fmt: skip
    assert product([]) == [{}]


def test_a_folder_is_one_folder():
    assert folder_name({"dataset": "glue/sst2"}) == "dataset=glue-sst2"


@pytest.mark.parametrize(
    ("sweeps", "words"),
    [
        ([""], "empty"),
        (["epsilon"], "name=value"),
        (["epsilon="], "name=value"),
        (["epsilon=1,,2"], "name=value"),
        (["=1"], "name=value"),
        (["epsilon=1,2 seed=3"], "2 of epsilon, 1 of seed"),
        (["seed=1 seed=2"], "once"),
        (["seed=1", "seed=2"], "twice"),
    ],
)
def test_what_is_no_sweep_is_refused(sweeps, words):
    with pytest.raises(ValueError, match=words):
        product(sweeps)


def test_flags_as_they_are_written():
    assert flag_and_text("--steps=3") == ("steps", "3")
    assert flag_and_text("--encode") == ("encode", "true")
    assert flag_and_text("--noencode") == ("encode", "false")
    assert flag_and_text("--normalize_output") == ("normalize_output", "true")  # no negation
    assert flag_and_text("--nonormalize_output") == ("normalize_output", "false")
    assert flag_and_text("--noise=laplace") == ("noise", "laplace")


def test_the_points_of_a_flag_file():
    flags = ["--model=mlp", "--epsilon=9", "--sweep=epsilon=1,2 steps=3,4"]
    assert points_of(flags) == [
        ({"epsilon": "1", "steps": "3"}, ["--model=mlp", "--epsilon=1", "--steps=3"]),
        ({"epsilon": "2", "steps": "4"}, ["--model=mlp", "--epsilon=2", "--steps=4"]),
    ]
    assert points_of(["--model=mlp"]) == [({}, ["--model=mlp"])]
