"""Experiments: settings in, a trained model, its accuracy and its two guarantees out."""

from tfdp.experiments.experiment import Result, run
from tfdp.experiments.report import print_table, record, write_card, write_record
from tfdp.experiments.settings import MECHANISMS, Experiment

__all__ = [
    "MECHANISMS",
    "Experiment",
    "Result",
    "print_table",
    "record",
    "run",
    "write_card",
    "write_record",
]
