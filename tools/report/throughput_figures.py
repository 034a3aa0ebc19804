"""Figures of attention_throughput.csv."""

from matplotlib.patches import Patch

from report.style import INK, OURS, PAPER, plt
from report.throughput import load_throughput


def throughput_figures(path):
    """{length: figure}: a row a head dimension, a column a gate; bars forward and backward, ours in our colour."""
    cases = load_throughput(path)
    return {length: figure_of({key: case for key, case in cases.items() if key[0] == length}) for length in dict.fromkeys(key[0] for key in cases)}


def figure_of(cases):
    dims, gates = (list(dict.fromkeys(key[place] for key in cases)) for place in (1, 2))
    drawing, axes = plt.subplots(len(dims), len(gates), figsize=(3.9 * len(gates), 3.3 * len(dims) + 0.4), squeeze=False)
    for (length, dim, gate), case in cases.items():
        axis = axes[dims.index(dim)][gates.index(gate)]
        timed = [name for name, metrics in case.items() if "forward_speed" in metrics]
        for row, name in enumerate(timed):
            for offset, direction, hatch in ((-0.2, "forward", None), (0.2, "backward", "////")):
                axis.barh(row + offset, case[name][f"{direction}_speed"], 0.36, hatch=hatch, edgecolor="white", linewidth=0,
                          color=OURS if name.startswith("lethe") else PAPER)
        axis.set_yticks(range(len(timed)), timed, fontsize=8)
        axis.invert_yaxis()
        axis.set_title(f"T = {length}, D = {dim}, {gate}")
    for axis in axes.flat:
        axis.set_visible(axis.has_data())  # a case that was not measured
    for axis in axes[-1]:
        axis.set_xlabel("effective TFLOP/s, more is better", fontsize=8)
    kinds = [Patch(facecolor=OURS, label="ours"), Patch(facecolor=PAPER, label="others"), Patch(facecolor=INK, label="forward"),
             Patch(facecolor=INK, hatch="////", edgecolor="white", linewidth=0, label="backward")]
    drawing.legend(handles=kinds, loc="outside lower center", ncols=4)
    return drawing
