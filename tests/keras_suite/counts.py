"""Counts of Keras' own tests with private models, and their table in `docs/keras_suite.md`."""

import collections
import dataclasses
import pathlib
import re

from tests.keras_suite.expected import KINDS

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "keras_suite.md"
_COLUMNS = ("cases", "pass", *KINDS, "unexpected")
_BEGIN, _END = "<!-- counts -->", "<!-- end of counts -->"


@dataclasses.dataclass(frozen=True)
class Counts:
    """What became of the cases of each file; skipped cases are not counted.

    Attributes:
        keras: the version of Keras.
        files: {file: {column: number}}.
    """

    keras: str
    files: dict[str, collections.Counter]

    @classmethod
    def of(cls, keras: str, results: list[dict]) -> "Counts":
        """Counts the lines that the plugin wrote with `--results`."""
        files = collections.defaultdict(collections.Counter)
        for line in results:
            column = _column(line)
            if column is not None:
                files[line["case"].partition("::")[0]].update(("cases", column))
        return cls(keras, dict(sorted(files.items())))

    def total(self) -> collections.Counter:
        return sum(self.files.values(), collections.Counter())

    def table(self) -> list[str]:
        """Returns the lines of a table in Markdown."""
        rows = [*self.files.items(), (f"all, Keras {self.keras}", self.total())]
        lines = ["| file | " + " | ".join(_COLUMNS) + " |", "| --- |" + " ---: |" * len(_COLUMNS)]
        for name, counter in rows:
            lines.append(f"| {name} | " + " | ".join(str(counter[c]) for c in _COLUMNS) + " |")
        return lines

    def write(self) -> None:
        """Replaces the table of the page."""
        text = PAGE.read_text()
        before, after = text[: text.index(_BEGIN)], text[text.index(_END) :]
        PAGE.write_text("\n".join([before + _BEGIN, *self.table(), after]))


def written() -> list[str]:
    """Returns the lines of the table of the page."""
    text = PAGE.read_text()
    return re.findall(r"^\|.*\|$", text[text.index(_BEGIN) : text.index(_END)], re.MULTILINE)


def _column(line) -> str | None:
    if line["expected"] is not None:
        return line["expected"].partition(":")[0]
    return {"passed": "pass", "failed": "unexpected"}.get(line["outcome"])
