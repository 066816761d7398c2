"""Flags are the settings' fields. Flags come first, then the recipe, then the defaults."""

import re
import shlex

import pytest
from absl import flags

import tfdp
from tfdp._settings import flag_of
from tfdp.accounting import mechanism_names
from tfdp.experiments import Experiment, command
from tfdp.experiments.settings import SETTINGS

RECIPES = command.RECIPES


def values_of(*arguments, sweeps=True):
    values = flags.FlagValues()
    command.define(values, sweeps=sweeps)
    command.parse(["train.py", *arguments], flag_values=values)
    return values


def points(*arguments, recipes=RECIPES):
    values_of(*arguments)
    return command.points(["train.py", *arguments], recipes)


def one(*arguments, **options):
    (point,) = points(*arguments, **options)
    assert not point.values
    return point.experiment


def test_flags_are_the_fields():
    values = values_of()
    assert set(values) == {*SETTINGS, "sweep"}
    for name, known in SETTINGS.items():
        assert values[name].default == known.default and known.help in values[name].help
    assert set(values_of("--steps=3", sweeps=False)) == set(SETTINGS)
    (point,) = command.points(["audit", "--steps=3", "--canaries", "7", "membership"])
    assert point.experiment.steps == 3


def test_help_has_every_flag_under_its_group(capsys):
    with pytest.raises(SystemExit):
        command.parse(["train.py", "--mechanism=dpsgd", "--help"], "", values_of())
    text = capsys.readouterr().out
    places = [text.index(f"\n{group}:\n") for group in ("Privacy", "Data and model", "Execution")]
    assert places == sorted(places)
    for name, known in SETTINGS.items():
        assert f"\n  --{'[no]' if known.kind is bool else ''}{name}:" in text
    for word in (*mechanism_names(), "kmnist", "cifar_tutorial", "softplus"):
        assert word in text


@pytest.mark.parametrize(
    ("word", "said"), [("--version", tfdp.__version__), ("--help", "tfdp-train --epsilon=2\n")]
)
def test_an_installed_command_names_itself(word, said, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/tfdp-train", word])
    with pytest.raises(SystemExit) as ended:
        command.parse(["tfdp-train", word], "    python train.py --epsilon=2", values_of())
    assert said in capsys.readouterr().out and not ended.value.code


def test_recipes_fill_in_what_is_not_given():
    assert one().mechanism == "dpsgd"
    assert one("--mechanism=si_dpsgd").batch_size == 1437
    assert one("--mechanism=si_dpsgd", "--batch_size=7").batch_size == 7
    assert one("--mechanism=si_dpsgd", "--batch_size=7").steps == 2
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


def test_a_wrong_recipe_is_refused(tmp_path):
    (tmp_path / "digits_dpsgd.cfg").write_text("--steps=many\n")
    with pytest.raises(ValueError, match="--steps=many"):
        one(recipes=tmp_path)


@pytest.mark.parametrize("file_first", [True, False])
def test_what_is_typed_wins_over_a_flag_file(tmp_path, file_first):
    """Whatever the order; the file's rivals, and what has no effect any more, are silenced."""
    inner = tmp_path / "inner.cfg"
    inner.write_text("--mechanism=dpsgd\n--epsilon=9\n--steps=7\n--momentum=0.9\n--seed=1\n")
    outer = tmp_path / "outer.cfg"
    outer.write_text(f"--flagfile={inner}\n--learning_rate=3\n")
    file, typed = [f"--flagfile={outer}"], ["--epochs=2", "--noise_multiplier", "4", "-seed=2"]
    found = one(*(file + typed if file_first else typed + file), "--optimizer=adam")
    assert (found.noise_multiplier, found.epsilon) == (4.0, None)
    assert (found.epochs, found.steps) == (2.0, None)
    assert (found.seed, found.optimizer, found.momentum, found.learning_rate) == (2, "adam", 0, 3)
    assert one(*file).momentum == 0.9 and one(*file).epsilon == 9.0


def test_what_is_typed_wins_over_the_sweep_of_a_flag_file(tmp_path):
    file = tmp_path / "sweep.cfg"
    file.write_text(
        "--seed=3\n--sweep=epsilon=1,2\n--sweep=learning_rate=0.5,1\n--sweep=steps=5,6\n"
    )
    with_noise = points(f"--flagfile={file}", "--noise_multiplier=4", "--steps=5")
    assert [point.name for point in with_noise] == ["learning_rate=0.5", "learning_rate=1"]
    assert {point.experiment.noise_multiplier for point in with_noise} == {4.0}
    swept = points("--sweep=epsilon=7,8", "--sweep=seed=4,5", f"--flagfile={file}", "--steps=6")
    assert [point.name for point in swept][:2] == [
        "learning_rate=0.5,epsilon=7,seed=4", "learning_rate=0.5,epsilon=7,seed=5",
    ]  # fmt: skip
    assert len(swept) == 8 and {point.experiment.steps for point in swept} == {6}


def test_a_point_has_a_name_for_its_folder():
    (point,) = points("--sweep=dataset=glue/sst2")
    assert point.name == "dataset=glue-sst2"


def test_what_has_no_effect_beside_what_is_typed_is_left_out_of_a_recipe():
    found = one("--mechanism=discrete_sgd", "--noise=gaussian")
    assert (found.noise, found.degrees_of_freedom) == ("gaussian", None)
    own = RECIPES / "digits_discrete_sgd.cfg"
    assert one(f"--flagfile={own}", "--mechanism=dpsgd").encode is None
    assert one("--dataset=mnist", "--optimizer=adam").momentum == 0
    with pytest.raises(ValueError, match="--momentum"):
        one("--dataset=mnist", "--optimizer=adam", "--momentum=0.9")


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["--steps=1", "--epochs=1"], "both"),
        (["--flagfile=nowhere.cfg"], "nowhere.cfg"),
        (["--initial_weights=nowhere.keras"], "nowhere.keras"),
        (["--dataset=minst"], "'mnist'"),
        (["--epsilonn=1"], "Did you mean 'epsilon'"),
        (["--zzz"], "zzz"),
        (["--epsilon=much"], "'much'"),
        (["--batch_size=1.5"], "--batch_size=1.5"),
        (["--jit_compile=maybe"], "--jit_compile"),
        (["--epsilon"], "--epsilon"),
    ],
)
def test_wrong_flags_are_refused_in_one_line(arguments, fact):
    with pytest.raises(ValueError, match=re.escape(fact)) as caught:
        points(*arguments)
    assert "\n" not in str(caught.value)


def test_a_point_says_where_its_settings_come_from():
    (point,) = points("--mechanism=matrix", "--steps=9")
    assert point.read == (str(RECIPES / "digits_matrix.cfg"),)
    path = str(RECIPES / "digits_none.cfg")
    assert points(f"--flagfile={path}")[0].read == (path,)
    assert points("--dataset=kmnist")[0].read == ()
    assert points("--dataset=glue/sst2")[0].read == (str(RECIPES / "glue-sst2_dpsgd.cfg"),)


def test_flag_files_of_the_package_are_found_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["/usr/bin/tfdp-train"])
    (point,) = points("--flagfile", "flags/tutorial/mnist_cnn_2_epsilon_1.19.cfg")
    assert point.experiment.noise_multiplier == 1.3
    typed = command.command_of(point.experiment)
    assert typed.startswith("tfdp-train --flagfile=/dev/null --noise_multiplier=1.3 ")


def test_a_command_holds_no_seed_of_the_noise():
    (point,) = points("--insecure_seed=987654321", "--noise_multiplier=1")
    assert point.experiment.insecure_seed == 987654321
    assert "987654321" not in command.command_of(point.experiment)


def test_each_point_has_the_recipe_of_its_mechanism():
    dpsgd, matrix = points("--sweep=mechanism=dpsgd,matrix", "--learning_rate=3")
    assert dpsgd.experiment == one("--mechanism=dpsgd", "--learning_rate=3")
    assert matrix.experiment == one("--mechanism=matrix", "--learning_rate=3")
    assert dpsgd.name == "mechanism=dpsgd"
    # Beside a swept value, what has no effect is left out, and so is its rival in the recipe.
    none, si = points("--sweep=mechanism=none,si_dpsgd", "--noise_multiplier=3", "--release=theta")
    assert (none.experiment.noise_multiplier, none.experiment.release) == (None, None)
    assert (si.experiment.epsilon, si.experiment.release) == (None, "theta")


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["--sweep=magic=1"], "magic"),
        (["--sweep=insecure_seed=1,2"], "insecure_seed"),
        (["--sweep=epsilon=1,two"], "'two'"),
        (["--sweep=epsilom=1,2"], "'epsilon'"),
        (["--sweep=steps=1,1.5"], "steps=1.5"),
        (["--sweep=seed=1,2,1"], "different"),
        (["--sweep=epsilon=1,-1"], "epsilon"),
        (["--sweep=epsilon=1,2", "--noise_multiplier=1"], "both"),
        (["--sweep=epochs=1,2", "--sweep=steps=1,2"], "both"),
        (["--sweep=epsilon=1,2", "--sweep=epsilon=3,4"], "twice"),
        (["--sweep=epsilon=1,2", "--epsilon=1"], "set and swept"),
        (["--sweep="], "sweep"),
        (["--sweep=epsilon"], "epsilon"),
        (["--sweep=epsilon=1,,2"], "epsilon"),
    ],
)
def test_a_wrong_sweep_is_refused(arguments, fact):
    with pytest.raises(ValueError, match=fact):
        points(*arguments)


def test_a_flag_file_says_only_what_differs_from_the_defaults():
    for path in RECIPES.parent.rglob("*.cfg"):
        defaults = {flag_of(n, k.default) for n, k in SETTINGS.items()} | {"--epsilon=2"}
        assert not defaults & {*path.read_text().splitlines()}, path


@pytest.mark.parametrize(
    "path", sorted(RECIPES.parent.rglob("*.cfg")), ids=lambda p: f"{p.parent.stem}-{p.stem}"
)
def test_every_flag_file_describes_experiments(path, tmp_path, monkeypatch):
    # The result of the recipe for pre-training, from which another one starts.
    (tmp_path / "runs" / "cifar100_pretraining").mkdir(parents=True)
    (tmp_path / "runs" / "cifar100_pretraining" / "model.keras").touch()
    monkeypatch.chdir(tmp_path)
    found = points(f"--flagfile={path}")
    assert all(isinstance(point.experiment, Experiment) for point in found)
    assert path.read_text().startswith("# ")
    if path.parent == RECIPES:
        (point,) = found
        dataset = point.experiment.dataset.replace("/", "-")
        assert path.stem == f"{dataset}_{point.experiment.mechanism}"
    for point in found:  # each point alone is the same as in the sweep
        chosen = [f"--{name}={text}" for name, text in point.values.items()]
        assert one(f"--flagfile={path}", *chosen) == point.experiment
        assert one(*shlex.split(command.command_of(point.experiment))[2:]) == point.experiment
