"""One figure for each claim on Adaptive Computation Pruning."""

import re

import numpy as np

from report.style import BOUNDARY, COLOURS, GREY, OURS, PAPER, colour, count_tokens, panels, plt

SHOWN = 512  # rows and columns of a heat map


def savings(claim):
    figure, [[shares, gains, losses]] = panels(3, width=14, height=4.2)
    lengths = claim.lengths("pruned_share")
    with_acp = "FoX (Pro) with ACP"
    places = np.arange(len(lengths))
    for offset, implementation, label, shade in ((-0.2, "single pairs", "pairs below the threshold", PAPER),
                                                 (0.2, "lethe", "skipped by the operator, in blocks", OURS)):
        values = [100 * claim.cell(with_acp, "pruned_share", length, implementation).mean for length in lengths]
        drawn = shares.bar(places + offset, values, width=0.38, color=shade, label=label)
        shares.bar_label(drawn, fmt="%.0f", fontsize=8)
    shares.axhline(70, color=BOUNDARY, linewidth=1.2, label="paper: around 70 % at 4k to 16k")
    shares.set_xticks(places, lengths)
    shares.set_ylim(0, 100)
    shares.set_ylabel("pruned share of the causal pairs (%)")
    shares.set_xlabel("context length")
    shares.set_title("What is pruned")
    shares.legend()

    for offset, metric, label, shade in ((-0.2, "operator_speedup", "attention alone", COLOURS[2]),
                                         (0.2, "training_step_speedup", "whole training step", OURS)):
        values = [100 * (claim.cell(with_acp, metric, length).mean - 1) for length in lengths]
        drawn = gains.bar(places + offset, values, width=0.38, color=shade, label=label)
        gains.bar_label(drawn, fmt="%+.0f", fontsize=8)
    gains.axhspan(10, 35, color=BOUNDARY, alpha=0.2, linewidth=0, label="paper: training 10 % to 35 % faster")
    gains.axhline(0, color=GREY, linewidth=0.8)
    gains.set_xticks(places, lengths)
    gains.set_ylabel("gain in throughput (%)")
    gains.set_xlabel("context length")
    gains.set_title("What that saves (forward and backward)")
    gains.legend()

    for variant in (with_acp, "FoX (Pro) without ACP"):
        x, values = claim.curve("training_loss", variant)
        losses.plot(x, values, color=colour(variant), label=variant, linestyle="-" if variant == with_acp else "--")
    count_tokens(losses)
    losses.set_xlabel("training tokens")
    losses.set_ylabel("training loss (nats)")
    losses.set_title(f"Training with and without, context {lengths[-1]}")
    losses.legend()
    return figure


def heads_of(claim, metric="pruned_share"):
    """{layer: [value of each head]}"""
    layers = {}
    for variant in claim.variants():
        layer, _ = map(int, re.fullmatch(r"layer (\d+) head (\d+)", variant).groups())
        layers.setdefault(layer, []).append(claim.cell(variant, metric, implementation="single pairs").mean)
    return layers


def per_head_savings(claim):
    layers = heads_of(claim)
    bins = np.linspace(0, 1, 21)
    figure, [axes] = panels(1 + len(layers), width=4.5 + 1.6 * len(layers), height=4.0, sharey=True,
                            width_ratios=[2.6] + [1] * len(layers))
    everything = np.concatenate([np.array(heads) for heads in layers.values()])
    for panel, heads, title in zip(axes, [everything, *layers.values()], ["All heads", *(f"Layer {layer}" for layer in layers)]):
        share, _ = np.histogram(heads, bins)
        panel.barh(100 * (bins[:-1] + 0.025), 100 * share / len(heads), height=4.4, color=OURS)
        panel.set_xlim(0, 100)
        panel.set_title(title)
        panel.set_xlabel("heads (%)")
    axes[0].set_ylabel("pruned share of a head's pairs (%)")
    axes[0].set_ylim(0, 100)
    axes[0].annotate("local heads", (98, 97), ha="right", va="top", color=GREY)
    axes[0].annotate("global heads", (98, 3), ha="right", va="bottom", color=GREY)
    return figure


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
    inset = axes.inset_axes([0.52, 0.52, 0.47, 0.47])
    draw_decay(inset, decay, boundary, begin, begin + width)
    inset.set_xticks([])
    inset.set_yticks([])
    inset.spines[["top", "right"]].set_visible(True)
    inset.set_title(f"{width} tokens", fontsize=7, pad=2)


def boundaries(claim):
    heads = list(dict.fromkeys(point["variant"] for point in claim.points))
    figure, axes = plt.subplots(2, len(heads), figsize=(4.2 * len(heads), 7.6), squeeze=False)
    for column, head in enumerate(heads):
        top, bottom = axes[0][column], axes[1][column]
        _, decay = claim.curve("cumulative_log_forget", head)
        queries, boundary = claim.curve("first_visited_key", head)
        image = draw_decay(top, decay, boundary, 0, len(decay))
        saved = 100 * claim.cell(head, "pruned_share", implementation="single pairs").mean
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
    axes[0][0].legend(loc="lower left", labelcolor="white")
    figure.colorbar(image, ax=list(axes[0]), shrink=0.8, label="decay D (nats, cut at −40)")
    figure.colorbar(dots, ax=list(axes[1]), shrink=0.8, label="attention A, entries above 0.1")
    return figure


def tolerance(claim):
    figure, [[panel]] = panels(1, width=7.5, height=4.2)
    variants = [variant for variant in claim.variants() if variant.startswith("tolerance")]
    places = range(len(variants))
    for implementation, label, shade in (("single pairs", "pairs below the threshold", PAPER),
                                         ("lethe", "skipped by the operator, in blocks", OURS)):
        shares = [100 * claim.cell(variant, "pruned_share", implementation=implementation).mean for variant in variants]
        panel.plot(places, shares, marker="o", color=shade, label=label)
    for place, share, variant in zip(places, shares, variants):
        panel.annotate(f"{claim.cell(variant, 'loss').mean:.5f}", (place, share), xytext=(0, -14), textcoords="offset points",
                       ha="center", fontsize=8, color=GREY)
    exponents = [re.search(r"exp\((-?\d+)\)", variant)[1] for variant in variants]
    panel.set_xticks(places, [f"exp({exponent})" for exponent in exponents])
    panel.set_ylim(0, 100)
    panel.margins(x=0.08)
    panel.set_xlabel("tolerance ε (the default is exp(-10))")
    panel.set_ylabel("pruned share of the causal pairs (%)")
    panel.set_title(f"Grey: the validation loss; without pruning {claim.cell('without pruning', 'loss').mean:.5f} nats")
    panel.legend()
    return figure
