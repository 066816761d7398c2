"""Compares the private gradients of Keras' layers with those of each example alone, on all engines.

    python -m tests.keras_suite.layers                   # all cases of Keras' layer tests
    python -m tests.keras_suite.layers rnn/ Dense        # those whose names contain one of the words
    python -m tests.keras_suite.layers --write           # all, and puts their counts on the page

The exit code is 1 if a case is not what `layers_expected.toml` says.
"""

import argparse
import sys
import warnings

import keras

from tests.keras_suite import layers_cases, layers_expected, layers_gradients


def run(words: list[str], jit_compile: bool = False) -> tuple[dict[str, str], list[str]]:
    """Checks the cases whose names or layers contain one of the words; all of them without words.

    Returns:
        (kinds, complaints): {name of a case: kind of its outcome}, and what is not as listed.
    """
    listed = layers_expected.load()
    kinds, complaints = {}, []
    for file in layers_cases.files():
        cases = layers_cases.cases_of(file)
        complaints += [f"{name}: no such case" for name in listed.stale(cases, [file])]
        for case in cases:
            if words and not any(word in f"{case.name} {case.layer}" for word in words):
                continue
            found = layers_gradients.check(case, jit_compile=jit_compile)
            kinds[case.name] = found.kind
            complaint = listed.complaint(case, found)
            if complaint is not None:
                complaints.append(complaint)
            mark = "" if complaint is None else "CHANGED "
            print(f"{mark}{found.kind:8}{case.name} ({case.layer}) {found.detail}", flush=True)
    return kinds, complaints


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.keras_suite.layers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", help="parts of names of cases or layers")
    parser.add_argument("--write", action="store_true", help="writes the counts to the page")
    parser.add_argument("--jit", action="store_true", help="compiles the steps with XLA")
    options = parser.parse_args(arguments)
    if options.write and options.words:
        parser.error("--write needs all cases, so it takes no words")
    warnings.filterwarnings("ignore")
    kinds, complaints = run(options.words, options.jit)
    counts = layers_expected.table(kinds, keras.__version__)
    if options.write:
        layers_expected.write(counts)
    print(counts, *complaints, f"{len(complaints)} changed", sep="\n")
    return 1 if complaints or not kinds else 0


if __name__ == "__main__":
    sys.exit(main())
