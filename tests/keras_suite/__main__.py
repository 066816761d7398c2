"""Runs Keras' own tests with private models: `python -m tests.keras_suite [--write] [ARGUMENT...]`.

Without arguments all cases run, the counts are printed, and `--write` puts them into
`docs/keras_suite.md`. Arguments are for pytest: files of Keras such as `callbacks/csv_logger_test.py`,
ids of cases, or options such as `-x`. `--plain` runs plain models, for comparison.
"""

import sys

from tests.keras_suite.running import run


def main(arguments: list[str]) -> int:
    write = "--write" in arguments
    arguments = [argument for argument in arguments if argument != "--write"]
    if write and arguments:
        sys.exit("Expected --write alone, since the page counts all cases.")
    done = run(arguments)
    print(done.output)
    print("\n".join(done.counts.table()))
    if write:
        done.counts.write()
    return done.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
