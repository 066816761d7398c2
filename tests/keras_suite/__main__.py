"""Runs Keras' own tests with private models: `python -m tests.keras_suite [ARGUMENT...]`.

Without arguments all cases run. Arguments are for pytest: files of Keras such as
`callbacks/csv_logger_test.py`, ids of cases, or options such as `-x`. `--plain` runs plain models, for
comparison.
"""

import sys

from tests.keras_suite.running import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]).returncode)
