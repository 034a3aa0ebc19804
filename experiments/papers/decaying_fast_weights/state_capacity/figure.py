"""The loss over the size of the state, and the trainings after the swap."""

import math

from report.curves import draw_training
from report.style import COLOURS, DASHES, INK, legend_below, panels

ATTENTION = "Softmax trained on"
STATES = (4, 16, 32)


def loss(claim, variant):
    cell = claim.cell(variant, "loss")
    return cell.mean if cell else math.nan


def figure(claim):
    figure, [[sizes, curves]] = panels(2, width=11, height=5.2)
    base, paper_base = loss(claim, ATTENTION), claim.paper_value("Softmax before the swap", "perplexity")
    for position, rule in enumerate(("Gated", "Decay")):
        ours = [loss(claim, f"{rule} m={m}") - base for m in STATES]
        papers = [math.log(claim.paper_value(f"{rule} m={m}", "perplexity") / paper_base) for m in STATES]
        marker, tint = "os"[position], COLOURS[position]
        sizes.plot(STATES, ours, marker=marker, color=tint, label=f"{rule}, here")
        sizes.plot(STATES, papers, marker=marker, color=tint, linestyle=DASHES[1], markerfacecolor="white", label=f"{rule}, paper")
    sizes.axhline(0, color=INK, linewidth=0.8)
    for variant, style in (("Local attention", DASHES[3]), ("Local attention of context / 32", DASHES[2])):
        if not math.isnan(loss(claim, variant)):
            sizes.axhline(loss(claim, variant) - base, color=INK, linestyle=style, linewidth=0.8, label=f"{variant}, here")
    sizes.set_xscale("log", base=2)
    sizes.set_xticks(STATES, [str(m) for m in STATES])
    sizes.set_xlabel("rows m of a head's state")
    sizes.set_ylabel("loss above attention (nats)")
    sizes.set_title("What a larger state is worth")
    legend_below(sizes)
    draw_training(curves, claim, [v for v in (ATTENTION, "Local attention", "Gated m=32", "Decay m=4", "Decay m=32") if v in claim.variants()])
    curves.set_title("Training after the swap")
    legend_below(curves)
    return figure
