"""Table 1 in bars, with what diverged, and the trainings after the swap."""

import math

from report.curves import draw_training
from report.style import FAINT, INK, OURS, PAPER, panels

RULES = ("Additive", "Delta", "Gated", "Decay")


def loss(claim, variant):
    cell = claim.cell(variant, "loss")
    return cell.mean if cell else math.nan


def diverged(claim, variant):
    cell = claim.cell(variant, "diverged")
    return cell is not None and cell.mean > 0


def figure(claim):
    figure, [[bars, curves]] = panels(2, width=13, height=5.2, width_ratios=[1.4, 1])
    variants = [variant for variant in claim.variants() if variant.split()[0] in RULES]
    base, paper_base = loss(claim, "Gated linear"), claim.paper_value("Gated linear", "perplexity")
    known = [loss(claim, variant) - base for variant in variants if not math.isnan(loss(claim, variant))]
    edge = 1.1 * max([0.3, *(value for value in known if value < 1.5)])
    band = max((c["band"] for c in claim.comparisons if c["band"] is not None and c["unit"] == "nats"), default=0)
    bars.axvspan(-band, band, color=FAINT, alpha=0.6, linewidth=0)
    for row, variant in enumerate(variants):
        perplexity = claim.paper_value(variant, "perplexity")
        of_paper = math.log(perplexity / paper_base) if perplexity else math.nan
        stars = claim.paper_value(variant, "diverged") == 1, diverged(claim, variant)
        for offset, value, star, tint in ((-0.19, of_paper, stars[0], PAPER), (0.19, loss(claim, variant) - base, stars[1], OURS)):
            if not math.isnan(value):
                bars.barh(row + offset, min(value, edge), height=0.36, color=tint)
            beyond = f"{value:.1f}" if value > edge else ""
            if star or beyond:
                bars.annotate(f"{'diverged ' if star else ''}{beyond}", (max(0, min(0 if math.isnan(value) else value, edge)), row + offset),
                              xytext=(3, 0), textcoords="offset points", va="center", fontsize=7, color=INK)
    bars.barh(0, 0, color=PAPER, label="paper: GPT-2 on the Pile")
    bars.barh(0, 0, color=OURS, label="here")
    bars.set_xlim(min(-0.02, *known) * 1.3, 1.3 * edge)
    bars.set_yticks(range(len(variants)), variants)
    bars.invert_yaxis()
    bars.set_xlabel("loss above Gated linear (nats = log of the perplexities' ratio)\nshaded: what seeds alone explain")
    bars.set_title("Table 1, m = 4, and what the text says diverges")
    bars.legend(loc="lower right")
    draw_training(curves, claim, [v for v in ("Additive baseline", "Additive linear", "Delta without norm", "Gated linear", "Decay linear") if v in variants])
    curves.set_title("Training after the swap")
    curves.legend()
    return figure
