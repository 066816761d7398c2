"""The list of cases of Keras' layer tests that are not equal, with a reason for each of them."""

import collections
import dataclasses
import functools
import pathlib
import tomllib

import keras

from tests.keras_suite.layers_cases import Case
from tests.keras_suite.layers_gradients import Outcome

LIST = pathlib.Path(__file__).with_name("layers_expected.toml")


@dataclasses.dataclass(frozen=True)
class Listed:
    """The list.

    Attributes:
        keras: the version of Keras that it was written with.
        groups: dictionaries with `kind`, `reason`, `layers` (names of classes), `cases`, and perhaps
            `or`, another kind.
    """

    keras: str
    groups: list

    def kind_of(self, case: Case) -> str:
        """The kind that the list says a case has; "equal" for a case that is not listed."""
        return self._by_name.get(case.name, "equal")

    def complaint(self, case: Case, found: Outcome) -> str | None:
        """Says what is wrong with the outcome of a case, or None if it is as listed.

        Other versions of Keras have other cases. There, a case may also have a kind that the list has
        for its layer.
        """
        kinds = {self.kind_of(case), self._or_by_name.get(case.name, self.kind_of(case))}
        if keras.__version__ != self.keras:
            kinds |= self._by_layer[case.layer]
        if found.kind in kinds:
            return None
        expected = " or ".join(sorted(kinds))
        return f"{case.name}: expected {expected}, found {found.kind}. {found.detail}"

    def stale(self, cases: list[Case], file: str) -> list[str]:
        """The listed names that no case of a test file has; only for the list's version.

        A file without cases needs a package that is not installed, as Grain.
        """
        names = {case.name for case in cases}
        if keras.__version__ != self.keras or not names:
            return []
        return [n for n in self._by_name if n.partition("::")[0] == file and n not in names]

    @functools.cached_property
    def _or_by_name(self):
        """Another kind that a case may have, where chance decides."""
        return {name: g["or"] for g in self.groups if "or" in g for name in g["cases"]}

    @functools.cached_property
    def _by_name(self):
        return {name: group["kind"] for group in self.groups for name in group["cases"]}

    @functools.cached_property
    def _by_layer(self):
        found = collections.defaultdict(set)
        for group in self.groups:
            for name in group["layers"]:
                found[name].add(group["kind"])
        return found


def load() -> Listed:
    """Reads the list."""
    content = tomllib.loads(LIST.read_text())
    return Listed(content["keras"], content["groups"])
