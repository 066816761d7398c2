"""Adds to setup.cfg the flag files in flags/, as tfdp/flags, and what follows from the address."""

import pathlib
import re

from setuptools import find_packages, setup

# The address of the public repository, without a slash at the end; empty until there is one.
ADDRESS = ""
PAGES = {"Documentation": "tree/main/docs", "Changes": "blob/main/CHANGELOG.md", "Issues": "issues"}


def readme():
    """Returns README.md with links that work on a package index; without an address, with words."""
    text = pathlib.Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    link = rf"[\1]({ADDRESS}/blob/main/\2)" if ADDRESS else r"\1"
    return re.sub(r"\[([^\]]+)\]\((?!https?:|#)([^)]+)\)", link, text)


setup(
    long_description=readme(),
    url=ADDRESS or None,
    project_urls={name: f"{ADDRESS}/{page}" for name, page in PAGES.items()} if ADDRESS else {},
    packages=[*find_packages(include=["tfdp", "tfdp.*"]), "tfdp.flags"],
    package_dir={"tfdp.flags": "flags"},
    package_data={"tfdp": ["py.typed"], "tfdp.data": ["digits.npz"], "tfdp.flags": ["*/*.cfg"]},
)
