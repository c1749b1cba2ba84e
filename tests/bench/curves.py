"""Curves of training runs as a picture, where Debian's python3-matplotlib is
installed; it is optional, so nothing else here needs it."""

import sys
from typing import Any, Dict, List, NamedTuple, Sequence

import numpy as np

_POINTS = 40  # of a curve, about; what lies between is averaged
_COLORS = ("#222222", "#1b6ca8", "#d1495b", "#2e8b57", "#edae49", "#7b4b94",
           "#8d6346", "#00a6a6")


class Curve(NamedTuple):
    """One line: the mean over runs of a loss per step."""
    name: str
    losses: Sequence[Sequence[float]]  # one sequence for each run
    megabytes: float = 0.0             # a node sent in a step; 0: not known


class Panel(NamedTuple):
    """One axis. `is_by_bytes`: of bytes, for the curves that have any."""
    title: str
    curves: List[Curve]
    is_by_bytes: bool = False


def points(curve: Curve) -> Any:
    """(step, mean loss) smoothed over a fortieth of the run."""
    losses = np.mean(np.asarray(curve.losses, np.float64), axis=0)
    width = max(1, len(losses) // _POINTS)
    smooth = np.convolve(losses, np.ones(width) / width, "valid")
    return np.arange(width, len(losses) + 1), smooth


def draw(panels: List[Panel], path: str) -> bool:
    """Writes a PNG; says so and returns False without matplotlib."""
    # pylint: disable=import-outside-toplevel
    try:
        import matplotlib
    except ImportError:
        print("no plot: %s needs Debian's python3-matplotlib" % path,
              file=sys.stderr)
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(5.6 * len(panels), 4.4), squeeze=False,
        sharey=len({len(panel.curves) for panel in panels}) == 1 and
        any(panel.is_by_bytes for panel in panels))
    colors: Dict[str, str] = {}
    for axis, panel in zip(axes[0], panels):
        for curve in panel.curves:
            color = colors.setdefault(
                curve.name, _COLORS[len(colors) % len(_COLORS)])
            steps, losses = points(curve)
            if not panel.is_by_bytes:
                axis.plot(steps, losses, label=curve.name, linewidth=1.2,
                          color=color)
            elif curve.megabytes:
                axis.plot(steps * curve.megabytes, losses, label=curve.name,
                          linewidth=1.2, color=color)
        axis.set(title=panel.title, ylabel="training loss",
                 xlabel="MB that a node sent" if panel.is_by_bytes else "step",
                 xscale="log" if panel.is_by_bytes else "linear")
        axis.grid(alpha=0.25)
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True
