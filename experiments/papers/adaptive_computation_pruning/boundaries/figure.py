"""Decay, attention and pruning boundary of three heads as heat maps."""

import numpy as np

from report.style import BOUNDARY, legend_below, plt

SHOWN = 512  # rows and columns of a heat map


def draw_decay(axes, decay, boundary, begin, end):
    """D between two positions, thinned to what a picture can show, with the pruning boundary over it."""
    indices = np.linspace(begin, end - 1, min(SHOWN, end - begin)).round().astype(int)
    c = np.asarray(decay)[indices]
    causal = np.where(np.tri(len(c), dtype=bool), c[:, None] - c[None, :], np.nan)
    image = axes.imshow(causal, cmap="viridis", vmin=-40, vmax=0, extent=(begin, end, end, begin), interpolation="nearest")
    axes.plot(boundary[begin:end], range(begin, end), color=BOUNDARY, linewidth=1.6, label="pruning boundary")
    axes.set_xlim(begin, end)
    axes.set_ylim(end, begin)
    axes.grid(False)
    return image


def draw_closer_look(axes, decay, boundary):
    """In the empty triangle above the diagonal: the middle of the sequence, as wide as the boundary is far."""
    length = len(decay)
    reach = max(i - first for i, first in enumerate(boundary))
    width = int(min(length // 2, max(48, 2 * reach)))
    begin = (length - width) // 2
    inset = axes.inset_axes([0.54, 0.5, 0.44, 0.44])
    draw_decay(inset, decay, boundary, begin, begin + width)
    inset.set_xticks([])
    inset.set_yticks([])
    inset.spines[["top", "right"]].set_visible(True)
    inset.set_title(f"{width} tokens", fontsize=7, pad=2)


def figure(claim):
    heads = list(dict.fromkeys(point["variant"] for point in claim.points))
    figure, axes = plt.subplots(2, len(heads), figsize=(4.2 * len(heads), 7.6), squeeze=False)
    for column, head in enumerate(heads):
        top, bottom = axes[0][column], axes[1][column]
        _, decay = claim.curve("cumulative_log_forget", head)
        queries, boundary = claim.curve("first_visited_key", head)
        image = draw_decay(top, decay, boundary, 0, len(decay))
        saved = 100 * claim.cell(head, "pruned_share", implementation="single pairs").values[0]  # the pictures are of the first seed
        top.set_title(f"{head}: {saved:.0f} % pruned")
        if saved > 50:
            draw_closer_look(top, decay, boundary)
        weights = [(p["y"], p["x"], p["value"]) for p in claim.points if p["quantity"] == "attention_weight" and p["variant"] == head]
        keys, rows, values = zip(*weights)
        dots = bottom.scatter(keys, rows, c=values, s=1.2, cmap="magma_r", vmin=0, vmax=1, rasterized=True)
        bottom.plot(boundary, queries, color=BOUNDARY, linewidth=1.0)
        bottom.set_xlim(0, len(decay))
        bottom.set_ylim(len(decay), 0)
        bottom.set_aspect("equal")
        bottom.grid(False)
        for panel in (top, bottom):
            panel.set_xlabel("key j")
            panel.set_ylabel("query i")
    legend_below(axes[0][0])
    figure.colorbar(image, ax=list(axes[0]), shrink=0.8, label="decay D (nats, cut at −40)")
    figure.colorbar(dots, ax=list(axes[1]), shrink=0.8, label="attention A, entries above 0.1")
    return figure
