"""Flags are the settings' fields. Flags come first, then the recipe, then the defaults."""

import pathlib

import pytest
from absl import flags

from tfdp.experiments import SETTINGS, Experiment, command_line

RECIPES = pathlib.Path(__file__).resolve().parents[2] / "flags" / "defaults"
_PARSERS = {
    bool: "BooleanParser",
    int: "IntegerParser",
    float: "FloatParser",
    str: "ArgumentParser",
}


def values_of(*arguments, sweeps=True):
    values = flags.FlagValues()
    command_line.define(values, sweeps=sweeps)
    values(["train.py", *arguments])
    return values


def points(*arguments, recipes=RECIPES):
    return command_line.points(["train.py", *arguments], recipes, values_of(*arguments))


def one(*arguments, **options):
    (point,) = points(*arguments, **options)
    assert not point.values
    return point.experiment


@pytest.mark.parametrize("name", SETTINGS)
def test_a_flag_is_its_field(name):
    known, flag = SETTINGS[name], values_of()[name]
    assert (flag.name, flag.default) == (name, known.default)
    assert flag.help.startswith(known.help) or known.help in flag.help
    if known.allowed is not None:
        assert tuple(flag.parser.enum_values) == known.allowed
    else:
        assert type(flag.parser).__name__ == _PARSERS[known.kind]


def test_there_are_no_other_flags_and_sweeps_are_optional():
    assert set(values_of()) == {*SETTINGS, "sweep"}
    alone = values_of("--steps=3", sweeps=False)
    assert set(alone) == set(SETTINGS)
    (point,) = command_line.points(["audit"], RECIPES, alone)
    assert point.experiment.steps == 3


def test_help_has_every_flag_under_its_group_with_its_default():
    text = command_line.help_text(values_of())
    places = [text.index(f"\n{group}:\n") for group in ("Privacy", "Data and model", "Execution")]
    assert places == sorted(places)
    for name, known in SETTINGS.items():
        assert f"\n  --{'[no]' if known.kind is bool else ''}{name}:" in text
    assert "(default: '256')" in text
    assert "It is 2 where neither it nor --noise_multiplier is set." in " ".join(text.split())


def test_recipes_fill_in_what_is_not_given():
    assert one().batch_size == 1437
    assert one("--batch_size=7").batch_size == 7
    assert one("--batch_size=7").steps == 2
    assert one("--dataset=cifar10").batch_size == SETTINGS["batch_size"].default
    assert one(recipes=None).batch_size == SETTINGS["batch_size"].default
    own = RECIPES / "digits_none.cfg"
    assert one(f"--flagfile={own}", "--mechanism=dpsgd").steps is None


def test_what_is_given_silences_its_rival_in_the_recipe():
    given = one("--mechanism=dpsgd", "--noise_multiplier=4", "--epochs=2")
    assert (given.noise_multiplier, given.epsilon) == (4.0, None)
    assert (given.epochs, given.steps) == (2.0, None)
    assert one("--mechanism=dpsgd", "--epsilon=9").epsilon == 9.0


def test_an_epsilon_is_taken_where_nothing_says_how_much_noise():
    assert one(recipes=None).epsilon == 2.0
    assert one("--noise_multiplier=1", recipes=None).epsilon is None
    assert one("--mechanism=none", recipes=None).epsilon is None
    with pytest.raises(ValueError, match="both"):
        one("--noise_multiplier=1", "--epsilon=2")


def test_a_recipe_with_something_else_is_refused(tmp_path):
    (tmp_path / "digits_si_dpsgd.cfg").write_text("--sweep=seed=1,2\n")
    with pytest.raises(ValueError, match=r"Expected settings in .*digits_si_dpsgd\.cfg"):
        one(recipes=tmp_path)
    (tmp_path / "digits_si_dpsgd.cfg").write_text("--steps=many\n")
    with pytest.raises(ValueError, match=r"--steps takes.*--steps=many in"):
        one(recipes=tmp_path)


def test_each_point_has_the_recipe_of_its_mechanism():
    dpsgd, matrix = points("--sweep=mechanism=dpsgd,matrix", "--learning_rate=3")
    assert dpsgd.experiment == one("--mechanism=dpsgd", "--learning_rate=3")
    assert matrix.experiment == one("--mechanism=matrix", "--learning_rate=3")
    assert dpsgd.name == "mechanism=dpsgd"
    assert command_line.common_name([dpsgd, matrix]) == "digits_sweep"
    assert command_line.common_name([dpsgd]) == "digits_dpsgd"


def test_a_swept_setting_silences_its_rival_in_the_recipe():
    for point in points("--sweep=noise_multiplier=1,2", "--sweep=epochs=3,4"):
        assert point.experiment.epsilon is None and point.experiment.steps is None


def test_a_given_value_keeps_its_points():
    sweep = ["--sweep=epsilon=1,2,3 steps=4,5,5", "--sweep=seed=6,7"]
    kept = points(*sweep, "--steps=5")
    assert [point.name for point in kept] == [
        "epsilon=2,seed=6", "epsilon=2,seed=7", "epsilon=3,seed=6", "epsilon=3,seed=7",
    ]  # fmt: skip
    assert all(point.experiment.steps == 5 for point in kept)
    alone = one(*sweep, "--epsilon=1.0", "--seed=7")
    assert (alone.epsilon, alone.steps, alone.seed) == (1.0, 4, 7)
    with pytest.raises(ValueError, match=r"Expected a point of --sweep with --epsilon=9.0"):
        points(*sweep, "--epsilon=9")


def test_a_sweep_of_one_value_is_a_sweep():
    (point,) = points("--sweep=seed=1")
    assert point.values == {"seed": "1"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sweep=magic=1"], "'magic'"),
        (["--sweep=model_dir=1"], "'model_dir'"),
        (["--sweep=insecure_seed=1,2"], "'insecure_seed'"),
        (["--sweep=data_dir=a,b"], "'data_dir'"),
        (["--sweep=epsilon=1,two"], "--epsilon takes.*epsilon=two"),
        (["--sweep=steps=1,1.5"], "--steps takes.*steps=1.5"),
        (["--sweep=adjacency=zero_out,magic"], "--adjacency takes.*adjacency=magic"),
        (["--sweep=epsilon=1,-1"], "epsilon"),
        (["--sweep=steps=1,0"], "--steps to be at least 1. Found 0. It is in --sweep"),
        (["--sweep=epsilon=1,1.0"], "differ"),
        (["--sweep=epsilon=1,2", "--noise_multiplier=1"], "both"),
        (["--sweep=epochs=1,2", "--steps=2"], "both"),
        (["--sweep=epochs=1,2", "--sweep=steps=1,2"], "both"),
        (["--sweep=epsilon=1,2", "--sweep=epsilon=3,4"], "twice"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_in_one_sentence(arguments, words):
    with pytest.raises(ValueError, match=words) as caught:
        points(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "path", sorted(RECIPES.parent.rglob("*.cfg")), ids=lambda p: f"{p.parent.stem}-{p.stem}"
)
def test_every_flag_file_describes_experiments(path):
    found = points(f"--flagfile={path}")
    assert all(isinstance(point.experiment, Experiment) for point in found)
    assert path.read_text().startswith("# ")
    if path.parent == RECIPES:
        (point,) = found
        assert path.stem == f"{point.experiment.dataset}_{point.experiment.mechanism}"
    for point in found:  # each point alone is the same as in the sweep
        chosen = [f"--{name}={text}" for name, text in point.values.items()]
        assert one(f"--flagfile={path}", *chosen) == point.experiment
