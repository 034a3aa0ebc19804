"""The figure of the forms: gates' product, its logarithm and attention weights as heat maps, and how far the forms are apart."""

import numpy as np

from report.style import BOUNDARY, COLOURS, GREY, MARKERS, legend_below, plt

LEAST = 1e-18  # what is drawn for a difference of exactly zero
DEEPEST = -20  # nats of D that the colours distinguish


def matrices(claim, head):
    """F, D and A of the first tokens, NaN above the diagonal."""
    _, gates = claim.curve("log_forget", head)
    tokens = len(gates)
    prefix = np.cumsum([0.0, *gates[1:]])
    weights = np.full((tokens, tokens), np.nan)
    for point in claim.points:
        if point["quantity"] == "attention" and point["variant"] == head:
            weights[int(point["x"]), int(point["y"])] = point["value"]
    decay = np.where(np.isnan(weights), np.nan, prefix[:, None] - prefix[None, :])
    return np.exp(decay), decay, weights


def draw_differences(panel, claim, metric, limit, title):
    """Every mechanism's differences: a mark a form."""
    variants = claim.variants()
    forms = list(dict.fromkeys(row["implementation"] for row in claim.records))
    for place, form in enumerate(forms):
        cells = [(i, claim.cell(variant, metric, implementation=form)) for i, variant in enumerate(variants)]
        shown = [(max(cell.mean, LEAST), i) for i, cell in cells if cell]
        panel.scatter(*zip(*shown), s=16, color=COLOURS[place % len(COLOURS)], label=form, marker=MARKERS[place % len(MARKERS)], zorder=3)
    panel.axvline(limit, color=BOUNDARY, linewidth=1.2)
    panel.annotate("budget", (limit, 1), xycoords=("data", "axes fraction"), xytext=(-3, -8), textcoords="offset points", ha="right",
                   fontsize=7, color=GREY)
    panel.set_xscale("log")
    panel.set_ylim(len(variants) - 0.5, -0.5)
    panel.set_yticks(range(len(variants)), [variant.replace("_", " ") for variant in variants])
    panel.set_xlabel("largest relative difference from the recurrent form")
    panel.set_title(title)


def figure(claim):
    heads = list(dict.fromkeys(point["variant"] for point in claim.points))
    figure = plt.figure(figsize=(13, 3.6 * len(heads) + 4.8))
    pictures, differences = figure.subfigures(2, 1, height_ratios=[3.6 * len(heads), 4.8])
    axes = pictures.subplots(len(heads), 3, squeeze=False)
    for row, head in enumerate(heads):
        product, decay, weights = matrices(claim, head)
        for panel, values, title, limits, map_name in (
                (axes[row][0], product, "F, the product of the gates", (0, 1), "viridis"),
                (axes[row][1], decay, "D = log F (nats)", (DEEPEST, 0), "viridis"),
                (axes[row][2], weights, "A, the attention weights", (0, 1), "magma_r")):
            image = panel.imshow(values, vmin=limits[0], vmax=limits[1], cmap=map_name, interpolation="nearest")
            pictures.colorbar(image, ax=panel, shrink=0.85)
            panel.set_title(f"{head}: {title}")
            panel.set_xlabel("key j")
            panel.set_ylabel("query i")
            panel.grid(False)
    in_double, in_float = differences.subplots(1, 2, sharey=True)
    draw_differences(in_double, claim, "difference", 1e-12, "Double precision")
    draw_differences(in_float, claim, "single_precision_difference", 1e-5, "Single precision")
    legend_below(in_double, 4)
    return figure
