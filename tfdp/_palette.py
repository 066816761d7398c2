"""Common parts of all plots: colours, frames and the import of matplotlib.

The colours are hues of the palette of Okabe and Ito, which is safe for the colour-blind. Lines also
differ in style, so that a plot can be read in black and white.
"""

import io
from typing import Any

PROVEN, CLAIMED, ATTACK, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"


def new_figure(width: float, height: float, rows: int = 1) -> tuple[Any, list]:
    """Returns a matplotlib figure that notebooks display, and its axes from top to bottom.

    Args:
        width, height: Size of the figure in inches.
        rows: Number of axes, one below the other.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Plots need matplotlib, which is not installed. Install it: pip install 'tfdp[plot]'."
        ) from error

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png", dpi=150)
            return file.getvalue()

    figure = Picture(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, 1, squeeze=False)[:, 0]
    for axis in axes:
        axis.grid(color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, [*axes]
