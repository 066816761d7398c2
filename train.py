"""Trains a Keras model with differential privacy: `python train.py --help`.

The command is tfdp/experiments/main.py. Installing tfdp adds it as `tfdp-train`.
"""

from tfdp.experiments.main import run

if __name__ == "__main__":
    run()
