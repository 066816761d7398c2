"""Every setting is declared once, with a help text, and checked by its declaration."""

import dataclasses
import subprocess
import sys

import pytest

from tfdp.accounting import mechanism_names
from tfdp.accounting.mechanisms.dp_dropout import READINGS
from tfdp.experiments import SETTINGS, Experiment
from tfdp.experiments.settings import GROUPS, Setting


def experiment(**changes):
    return Experiment(**({"epsilon": 2.0} | changes))


def test_settings_are_the_fields():
    fields = {field.name: field.default for field in dataclasses.fields(Experiment)}
    assert {name: known.default for name, known in SETTINGS.items()} == fields
    assert all(known.name == name for name, known in SETTINGS.items())


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_said_of_a_setting_is_whole(name):
    known = SETTINGS[name]
    assert known.help[0].isupper() and known.help.endswith(".")
    assert len(known.help.split()) >= 3
    assert known.group in GROUPS
    assert known.kind in (bool, int, float, str)
    assert known.optional == (known.default is None)
    assert known.default is None or isinstance(known.default, known.kind)
    assert not known.own or known.default is None
    if known.rival:
        assert SETTINGS[known.rival].rival == name


def test_choices_are_those_of_the_code_that_takes_them():
    from tfdp import data, layers, models
    from tfdp.gradients import bounds, lot

    assert set(SETTINGS["sampling"].allowed) == set(data.SAMPLINGS)
    assert set(SETTINGS["normalization"].allowed) <= set(models.NORMALIZATIONS)
    assert SETTINGS["clipping"].allowed == bounds.CLIPPINGS
    assert SETTINGS["engine"].allowed == lot.ENGINES
    assert SETTINGS["statistics"].allowed == layers.public.STATISTICS
    assert set(SETTINGS["composition"].allowed) == set(READINGS)
    assert SETTINGS["mechanism"].allowed == mechanism_names()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mechanism": "magic"}, "--mechanism to be one of .*si_dpsgd.*'magic'"),
        ({"optimizer": "magic"}, "--optimizer to be one of sgd"),
        ({"sampling": "magic"}, "--sampling to be one of poisson"),
        ({"strategy": "magic"}, "--strategy to be one of identity"),
        ({"learning_rate": 0.0}, "--learning_rate to be a finite number above 0. Found 0"),
        ({"learning_rate": float("nan")}, "--learning_rate to be a finite number above 0"),
        ({"l2_norm_clip": float("inf")}, "--l2_norm_clip to be a finite number above 0"),
        ({"epochs": -1.0}, "--epochs"),
        ({"batch_size": 0}, "--batch_size to be at least 1. Found 0"),
        ({"batch_size": None}, "--batch_size to be set"),
        ({"steps": 0}, "--steps to be at least 1"),
        ({"public_examples": 1}, "--public_examples to be at least 2"),
        ({"noise_multiplier": -1.0}, "--noise_multiplier to be a finite number of at least 0"),
        ({"noise_multiplier": float("nan")}, "--noise_multiplier"),
        ({"epsilon": None}, "Found neither"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"statistics": "batch"}, "--normalization=batch only"),
    ],
    ids=str,
)
def test_a_value_that_cannot_be_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        experiment(**changes)


def test_numbers_on_their_bounds_are_allowed():
    assert experiment(noise_multiplier=0.0, steps=1, public_examples=2).noise_multiplier == 0.0


def test_recorded_settings_make_the_same_experiment():
    made = experiment(seed=3, insecure_seed=4, data_dir="/here", momentum=0.5)
    again = Experiment(**made.recorded())
    assert again == dataclasses.replace(made, insecure_seed=None, data_dir=None)


def test_a_choice_that_is_registered_later_is_allowed():
    names = ["a"]
    known = Setting(help="", group="", choices=lambda: tuple(names), name="x")
    with pytest.raises(ValueError, match="--x to be one of a"):
        known.check("b")
    names.append("b")
    known.check("b")


@pytest.mark.parametrize("name", ["settings", "command_line", "sweep"])
def test_settings_and_flags_need_no_tensorflow(name):
    code = (
        f"import sys, tfdp.experiments.{name}, tfdp.experiments as e\n"
        "e.Experiment(epsilon=2.0)\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
