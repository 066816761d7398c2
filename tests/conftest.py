"""What every test starts from: seeded weights, nothing of earlier tests, and the fast lane's marker."""

import collections
import gc
import os
import pathlib
import resource
import signal
import sys

import hypothesis
import pytest

from tfdp._interruptions import SIGNALS
from tfdp.experiments import console

# Before TensorFlow is imported, so that the tests compute as the commands do, whatever CPU there is.
# Keras and TensorFlow are imported below in functions, because the process that hands out the tests
# needs neither, and importing them took nearly a third of the fast lane.
console.prepare_tensorflow()

STARTED = pytest.StashKey()

# The fast lane: what runs in seconds because it trains little or nothing. See CONTRIBUTING.md.
FAST = (
    "_compat/test_versions.py",
    "accounting/mechanisms/test_dp_dropout.py",
    "accounting/numerics/test_privacy_loss.py",
    "accounting/test_composition.py",
    "accounting/test_ledger.py::test_merge",
    "accounting/test_ledger.py::test_record",
    "accounting/test_noise_tables.py",
    "accounting/test_run.py",
    "accounting/test_strategies.py",
    "data/test_labels.py",
    "experiments/test_command.py",
    "experiments/test_console.py",
    "experiments/test_report.py",
    "experiments/test_run_folder.py",
    "experiments/test_settings.py",
    "gradients/test_bounds.py",
    "gradients/test_forward.py",
    "noise/test_gaussian.py",
    "optimizers/test_every_mechanism.py::TestDPSGD::test_one_example",
    "papers/test_catalogue.py",
    "test_docs.py::test_links",
    "test_files.py",
    "test_names.py",
    "test_validate.py",
)

# One run decides, so examples that hypothesis draws are the same in every run. The slow lane asks for
# new ones.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


def pytest_collection_finish():
    """Nothing that was imported is freed again, so the collector need not examine it again."""
    gc.collect()
    gc.freeze()


def pytest_ignore_collect(collection_path, config):
    """With `-m fast`, imports only the files that have fast tests."""
    if config.option.markexpr != "fast" or collection_path.suffix != ".py":
        return None
    name = collection_path.relative_to(pathlib.Path(__file__).parent).as_posix()
    return None if name.startswith(tuple(f.partition("::")[0] for f in FAST)) else True


def pytest_collection_modifyitems(items):
    for item in items:
        fast = item.nodeid.removeprefix("tests/").startswith(FAST)
        if fast and not item.get_closest_marker("slow"):
            item.add_marker("fast")


# A process in the background ignores Ctrl-C, and so would what is tested here and what it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption(
        "--cpu", action="store_true", help="print tests, lines and CPU seconds of each folder"
    )
    parser.addoption("--gpu_paths", action="store_true", help="compute without a GPU as with one")


def cpu_seconds():
    """Returns the CPU seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """Begins to measure a test with its fixtures; its last report carries the numbers."""
    item.stash[STARTED] = cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "teardown":
        megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        report.cpu = cpu_seconds() - item.stash[STARTED], megabytes
    return report


def pytest_terminal_summary(terminalreporter, config):
    if not config.getoption("cpu"):
        return
    root, largest = pathlib.Path(__file__).parent, 0
    tests, seconds = collections.Counter(), collections.Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if hasattr(report, "cpu"):
                path = report.nodeid.partition("::")[0].removeprefix("tests/")
                folder = path.rpartition("/")[0].partition("/")[0]
                tests[folder] += 1
                seconds[folder] += report.cpu[0]
                largest = max(largest, report.cpu[1])
    terminalreporter.section("CPU seconds")
    for folder in sorted(tests):
        files = (root / folder).rglob("*.py") if folder else root.glob("*.py")
        lines = sum(len(file.read_text().splitlines()) for file in files)
        terminalreporter.line(
            f"| {folder or 'tests/*.py'} | {tests[folder]} | {lines} | {seconds[folder]:.0f} |"
        )
    terminalreporter.line(
        f"| all | {sum(tests.values())} | | {sum(seconds.values()):.0f} |\n"
        f"largest process: {largest:.0f} MB"
    )


@pytest.fixture(autouse=True)
def handlers():
    """Puts the handlers of signals back, which a command that ends in this process takes away."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="session")
def full_products():
    """Tests compare float32 numbers, whose products a GPU would round to TensorFloat-32."""
    if tf := sys.modules.get("tensorflow"):
        tf.config.experimental.enable_tensor_float_32_execution(False)


@pytest.fixture(autouse=True)
def gpu_paths(request, monkeypatch):
    if request.config.getoption("gpu_paths"):
        from tests.helpers import take_gpu_paths

        take_gpu_paths(monkeypatch)


@pytest.fixture(autouse=True)
def seeded():
    """Seeds initial weights, so that tests that do not seed their models are repeatable."""
    from tests.seeds import seed_keras

    seed_keras(0)


@pytest.fixture(autouse=True)
def no_caching_device():
    """Removes the caching device that TensorFlow's map_fn leaves if tracing its function raises.

    With this device in the global scope, entering a strategy would fail in a later test.
    """
    yield
    import tensorflow as tf

    tf.compat.v1.get_variable_scope()._caching_device = None


@pytest.fixture(autouse=True)
def no_graphs():
    """Removes gradient functions that a test's graphs registered, which keep the graphs in memory.

    Otherwise a process of some thousand tests spends a fifth of its time in the garbage collector.
    """
    from tensorflow.python.framework import ops

    registered = ops.gradient_registry._registry
    before = {*registered}
    yield
    for name in registered.keys() - before:
        if name.startswith("CustomGradient-"):  # others are a module's that was imported meanwhile
            del registered[name]
