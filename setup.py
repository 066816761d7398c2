"""Adds the flag files in flags/ to the package, as tfdp/flags; setup.cfg has everything else."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["tfdp", "tfdp.*"]), "tfdp.flags"],
    package_dir={"tfdp.flags": "flags"},
    package_data={"tfdp": ["py.typed"], "tfdp.flags": ["*/*.cfg"]},
)
