"""The file of results: the measurements, the machine, the settings and the versions."""

import datetime
import json
import os
import platform
import subprocess
from pathlib import Path

FORMAT = 1
# The keys of which a record has one, instead of a time, if nothing could be measured.
REASONS = ("unsupported", "skipped", "failed")
# Settings that all records of a file share.
_SAME = ("steps", "warmup", "seconds")


def machine(device: str = "cpu") -> dict:
    """Returns the facts about the machine that times depend on, without host name, user or path.

    Args:
        device: with "gpu", the GPU and its driver are among the facts.
    """
    facts = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "system": platform.system(),
        "python": platform.python_version(),
    }
    return facts | ({"gpu": _gpu()} if device == "gpu" else {})


def _gpu():
    ask = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "no NVIDIA GPU was found"
    return said.splitlines()[0].replace(", ", ", driver ")


def _processor():
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


class Results:
    """Records by (model, lot, subject, round), saved after each record so that a run can be resumed.

    Args:
        path: a JSON file, which is read if it exists.
        settings: the settings of the measurement. When a run is resumed, the settings in `_SAME`
            must have the values in the file; the others, which are limits, may differ.
        note: a sentence for the report, which replaces the note of the file unless it is empty.
        device: what is measured, "cpu" or "gpu".

    Raises:
        ValueError: the file has another format, or was made on another machine or with other
            settings.
    """

    def __init__(self, path: Path, settings: dict | None = None, note: str = "", device="cpu"):
        settings = settings or {}
        self.path = path
        self.content = {
            "format": FORMAT,
            "date": datetime.date.today().isoformat(),
            "note": note,
            "machine": machine(device),
            "versions": {},
            "settings": settings,
            "records": [],
        }
        if path.exists():
            self.content = load(path)
            if self.content["machine"] != machine(device):
                raise ValueError(
                    f"{path} holds measurements of another machine or Python. Expected a file of "
                    "this one, or a new file."
                )
            before = self.content["settings"]
            if any(before.get(name) != settings.get(name) for name in _SAME):
                raise ValueError(
                    f"{path} was measured with {', '.join(f'{n}={before.get(n)}' for n in _SAME)}. "
                    "Expected the same flags, or a new file."
                )
            self.content["settings"] = settings
            if note:
                self.content["note"] = note
        self.records = self.content["records"]
        self._done = {self._key(**record): record for record in self.records}

    @staticmethod
    def _key(model, lot, subject, round, **_):
        return model, lot, subject, round

    def done(self, model: str, lot: int, subject: str, round: int) -> bool:
        """Whether the point was measured in this round, or found impossible in any round."""
        if (model, lot, subject, round) in self._done:
            return True
        return self.refused(model, lot, subject)

    def refused(self, model: str, lot: int, subject: str) -> bool:
        """Whether any round found that the point cannot be measured."""
        return any(
            key[:3] == (model, lot, subject) and any(reason in record for reason in REASONS)
            for key, record in self._done.items()
        )

    def add(self, model: str, lot: int, subject: str, round: int, record: dict) -> None:
        """Stores one record and saves the file."""
        record = dict(record)
        if versions := record.pop("versions", None):
            self.content["versions"][subject] = versions
        record = {"model": model, "lot": lot, "subject": subject, "round": round, **record}
        self._done[self._key(**record)] = record
        self.records.append(record)
        self.content["date"] = datetime.date.today().isoformat()
        self.save()

    def section(self, name: str) -> list[dict]:
        """Returns the list of records of a separate measurement, such as "scale", to append to."""
        return self.content.setdefault(name, [])

    def save(self) -> None:
        """Writes the file, whole or not at all."""
        partial = self.path.with_name(self.path.name + ".partial")
        partial.write_text(json.dumps(self.content, indent=1) + "\n")
        partial.replace(self.path)


def load(path: Path) -> dict:
    """Reads a file of results.

    Raises:
        ValueError: the file is not a file of results in the current format.
    """
    content = json.loads(Path(path).read_text())
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is no file of benchmark results (format {FORMAT}).")
    return content
