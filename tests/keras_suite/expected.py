"""The list of cases of Keras' own tests that do not pass with private models, and why."""

import dataclasses
import fnmatch
import pathlib
import re
import tomllib

import keras

PATH = pathlib.Path(__file__).with_name("expected.toml")
# The kinds of entries, and what each means.
KINDS = {
    "refusal": "refused, with the reason in a sentence",
    "difference": "a documented difference of private training",
    "not ours": "fails with plain models, too",
    "defect": "a defect of tfdp",
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """Cases that do not pass for one reason.

    Attributes:
        kind: a key of `KINDS`.
        reason: a sentence.
        message: regular expression that occurs in the error of every case.
        cases: ids of cases, such as "trainers/trainer_test.py::TestTrainer::test_x"; `*` stands for
            any text.
    """

    kind: str
    reason: str
    message: str
    cases: tuple[str, ...]

    def matches(self, error: str) -> bool:
        """Whether a case failed with the expected message."""
        return re.search(self.message, error) is not None


@dataclasses.dataclass(frozen=True)
class Expectations:
    """The list.

    Attributes:
        keras: the version of Keras that it was written with; None for an empty list.
        entries: the entries; no two may name one case.
        short: ids of the cases of the short form, with `*` for any text.
    """

    keras: str | None = None
    entries: tuple[Entry, ...] = ()
    short: tuple[str, ...] = ()

    def entry(self, case: str) -> Entry | None:
        """Returns the entry that names a case, or None."""
        found = [e for e in self.entries if any(fnmatch.fnmatchcase(case, c) for c in e.cases)]
        if len(found) > 1:
            raise ValueError(f"Several entries of {PATH.name} name {case}. Expected one.")
        return found[0] if found else None

    def unused(self, cases) -> list[str]:
        """Returns the names in the list that fit none of the collected cases."""
        named = [name for entry in self.entries for name in entry.cases]
        return [name for name in named if not fnmatch.filter(cases, name)]


def verdict(entry: Entry | None, outcome: str, error: str | None) -> tuple[str, str]:
    """Returns what became of a case, "passed", "failed" or "expected", and why in words.

    Args:
        entry: the entry that names the case, or None.
        outcome: "passed" or "failed".
        error: type and message of the exception, if the case failed.
    """
    if entry is None:
        return outcome, ""
    if outcome == "passed":
        return "failed", (
            f"This case passes, and the list expects that it fails ({entry.kind}: {entry.reason}). "
            f"Take it out of {PATH.name}."
        )
    if entry.matches(error):
        return "expected", f"{entry.kind}: {entry.reason}"
    return "failed", f"The list expects another message: {entry.message!r} ({entry.reason})"


def load(version: str = keras.__version__) -> Expectations:
    """Reads the list, with the entries for a version of Keras."""
    content = tomllib.loads(PATH.read_text())
    entries = tuple(
        Entry(e["kind"], e["reason"], e["message"], tuple(e["cases"]))
        for e in content["entry"]
        if "before" not in e or _numbers(version) < _numbers(e["before"])
    )
    for entry in entries:
        re.compile(entry.message)
        if entry.kind not in KINDS:
            raise ValueError(f"Expected a kind among {sorted(KINDS)}. Found {entry.kind!r}.")
    return Expectations(content["keras"], entries, tuple(content["short"]))


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
