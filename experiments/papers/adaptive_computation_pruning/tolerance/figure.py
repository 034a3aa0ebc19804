"""Pruned share and loss over the tolerance."""

import re

from report.style import DASHES, GREY, OURS, PAPER, legend_below, panels


def figure(claim):
    figure, [[panel]] = panels(1, width=7.5, height=4.6)
    variants = [variant for variant in claim.variants() if variant.startswith("tolerance")]
    places = range(len(variants))
    for implementation, label, shade, marker, dash in (("single pairs", "pairs below the threshold", PAPER, "s", DASHES[1]),
                                                       ("lethe", "skipped by the operator, in blocks", OURS, "o", DASHES[0])):
        shares = [100 * claim.cell(variant, "pruned_share", implementation=implementation).mean for variant in variants]
        panel.plot(places, shares, marker=marker, color=shade, linestyle=dash, label=label)
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
    legend_below(panel)
    return figure
