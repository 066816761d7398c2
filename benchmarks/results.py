"""The file of results: the measurements, the machine, the settings and the versions."""

import datetime
import json
import os
import platform
import subprocess
from pathlib import Path

# The keys of which a record has one, instead of a time, if nothing could be measured.
REASONS = ("unsupported", "skipped", "failed")
# Settings that all records of a file share.
_SAME = ("steps", "warmup", "seconds")


def machine(device: str = "cpu") -> dict:
    """Returns the facts about the machine that times depend on, without host name, user or path.

    Args:
        device: With "gpu", the GPU and its driver are among the facts.
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
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


class Results:
    """Records in sections, such as "records" or "gpu", saved after each so that a run can be resumed.

    Args:
        path: A JSON file, which is read if it exists.
        settings: The settings of the measurement. When a run is resumed, the settings in `_SAME`
            must have the values in the file; the others, which are limits, may differ.
        note: A sentence for the report, which replaces the note of the file unless it is empty.
        device: What is measured, "cpu" or "gpu".

    Raises:
        ValueError: If the file was made on another machine or with other settings.
    """

    def __init__(self, path: Path, settings: dict | None = None, note: str = "", device="cpu"):
        settings, here = settings or {}, machine(device)
        self.path = path
        self.content = {"note": note, "machine": here, "versions": {}, "settings": settings}
        if path.exists():
            self.content = json.loads(path.read_text())
            before = self.content["settings"]
            if self.content["machine"] != here:
                raise ValueError(
                    f"{path} has measurements of another machine or Python. Use another file."
                )
            if any(before.get(name) != settings.get(name) for name in _SAME):
                same = ", ".join(f"--{name}={before.get(name)}" for name in _SAME)
                raise ValueError(f"{path} was measured with {same}. Use these, or another file.")
            self.content["settings"] = settings
            self.content["note"] = note or self.content.get("note", "")

    def missing(self, section: str, points: list[dict]) -> list[dict]:
        """Returns the points that were neither measured nor found impossible in any round.

        Args:
            section: Name of the section with their records.
            points: The points, each with its "round" and further facts that identify it.
        """
        records = self.content.get(section, [])

        def of(record, point, *but):
            return all(record[name] == value for name, value in point.items() if name not in but)

        return [
            point
            for point in points
            if not any(of(record, point) for record in records)
            and not any(of(r, point, "round") and {*REASONS} & r.keys() for r in records)
        ]

    def add(self, section: str, point: dict, record: dict) -> None:
        """Stores the record of a point, and saves the file."""
        record = dict(record)
        if versions := record.pop("versions", None):
            self.content["versions"][point["subject"]] = versions
        self.content.setdefault(section, []).append({**point, **record})
        self.content["date"] = datetime.date.today().isoformat()
        partial = self.path.with_name(self.path.name + ".partial")
        partial.write_text(json.dumps(self.content, indent=1) + "\n")
        partial.replace(self.path)
