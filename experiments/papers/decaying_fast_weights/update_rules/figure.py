"""Table 1 in bars, with what diverged, and the trainings after the swap."""

import math

from report.curves import draw_training
from report.style import FAINT, INK, OURS, PAPER, bars_within, legend_below, panels

RULES = ("Additive", "Delta", "Gated", "Decay")


def loss(claim, variant):
    cell = claim.cell(variant, "loss")
    return cell.mean if cell else math.nan


def diverged(claim, variant):
    cell = claim.cell(variant, "diverged")
    return cell is not None and cell.mean > 0


def figure(claim):
    figure, [[bars, curves]] = panels(2, width=13, height=6.0, width_ratios=[1.4, 1])
    variants = [variant for variant in claim.variants() if variant.split()[0] in RULES]
    base, paper_base = loss(claim, "Gated linear"), claim.paper_value("Gated linear", "perplexity")
    known = [loss(claim, variant) - base for variant in variants if not math.isnan(loss(claim, variant))]
    edge = 1.1 * max([0.3, *(value for value in known if value < 1.5)])
    band = max((c["band"] for c in claim.comparisons if c["band"] is not None and c["unit"] == "nats"), default=0)
    bars.axvspan(-band, band, color=FAINT, alpha=0.6, linewidth=0)
    low = min(-0.02, *known) * 1.3
    perplexities = [claim.paper_value(variant, "perplexity") for variant in variants]
    papers = [math.log(perplexity / paper_base) if perplexity else math.nan for perplexity in perplexities]
    ours = [loss(claim, variant) - base for variant in variants]
    of_paper = [claim.paper_value(variant, "diverged") == 1 for variant in variants]
    for offset, values, stars, tint, label in ((-0.19, papers, of_paper, PAPER, "paper: GPT-2 on the Pile"),
                                               (0.19, ours, [diverged(claim, variant) for variant in variants], OURS, "here")):
        shown = [(row + offset, value) for row, value in enumerate(values) if not math.isnan(value)]
        bars_within(bars, *zip(*shown), low, edge, color=tint, label=label)
        for row, (value, star) in enumerate(zip(values, stars)):
            if star:
                end = 0 if math.isnan(value) else min(max(value, 0), edge)
                bars.annotate("diverged", (end, row + offset), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7, color=INK)
    bars.set_yticks(range(len(variants)), variants)
    bars.invert_yaxis()
    bars.set_xlabel("loss above Gated linear (nats = log of the perplexities' ratio)\nshaded: what seeds alone explain")
    bars.set_title("Table 1, m = 4, and what the text says diverges")
    legend_below(bars)
    draw_training(curves, claim, [v for v in ("Additive baseline", "Additive linear", "Delta without norm", "Gated linear", "Decay linear")
                                  if v in variants])
    curves.set_title("Training after the swap")
    legend_below(curves)
    return figure
