"""What is pruned, what that saves, and the training with and without it."""

import numpy as np

from report.style import BOUNDARY, COLOURS, GREY, INK, OURS, PAPER, count_tokens, legend_below, look, panels


def figure(claim):
    figure, [[shares, gains, losses]] = panels(3, width=14, height=5.2)
    lengths = claim.lengths("pruned_share")
    with_acp = "FoX (Pro) with ACP"
    places = np.arange(len(lengths))
    for offset, implementation, label, shade in ((-0.2, "single pairs", "pairs below the threshold", PAPER),
                                                 (0.2, "lethe", "skipped by the operator, in blocks", OURS)):
        values = [100 * claim.cell(with_acp, "pruned_share", length, implementation).mean for length in lengths]
        drawn = shares.bar(places + offset, values, width=0.38, color=shade, label=label)
        shares.bar_label(drawn, fmt="%.0f", fontsize=8)
    before = [100 * cell.mean for length in lengths if (cell := claim.cell(with_acp, "pruned_share_untrained", length))]
    if before:
        shares.plot(places, before, "_", color=INK, markersize=30, label="blocks, before training")
    shares.axhline(70, color=BOUNDARY, linewidth=1.2, label="paper: around 70 % at 4k to 16k")
    shares.set_xticks(places, lengths)
    shares.set_ylim(0, 100)
    shares.set_ylabel("pruned share of the causal pairs (%)")
    shares.set_xlabel("context length")
    shares.set_title("What is pruned")
    legend_below(shares, 1)

    for offset, metric, label, shade in ((-0.2, "operator_speedup", "attention alone", COLOURS[4]),
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
    legend_below(gains, 1)

    for variant in (with_acp, "FoX (Pro) without ACP"):
        x, values = claim.curve("training_loss", variant)
        if x:
            losses.plot(x, values, label=variant, **look(variant))
    count_tokens(losses)
    losses.set_xlabel("training tokens")
    losses.set_ylabel("training loss (nats)")
    losses.set_title(f"Training with and without, context {lengths[-1]}")
    legend_below(losses, 1)
    return figure
