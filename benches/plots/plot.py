#!/usr/bin/env python3
"""Draws target/bench/growth.json, which `make bench ARGS=--growth` writes: one SVG a plot, beside this file.

Needs matplotlib.
"""

import json
import pathlib

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
# The same picture for the same figures.
matplotlib.rcParams["svg.hashsalt"] = "twinbox"


def main():
    growth = HERE.parent.parent / "target" / "bench" / "growth.json"
    for plot in json.loads(growth.read_text()):
        figure, axes = pyplot.subplots(figsize=(7, 4))
        for series in plot["series"]:
            axes.plot(*zip(*series["points"]), marker="o", label=series["name"])
        axes.set(title=plot["title"], xlabel=plot["x"], ylabel=plot["y"], xscale="log")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
        figure.tight_layout()
        figure.savefig(HERE / plot["file"], metadata={"Date": None})
        print(f"drawn: {plot['file']}")


if __name__ == "__main__":
    main()
