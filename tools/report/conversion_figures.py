"""Figures for the claims of T2FW: what became of a softmax model after its attention was swapped."""

import math

from report.style import FAINT, INK, OURS, PAPER, colour, count_tokens, panels

RULES = ("Additive", "Delta", "Gated", "Decay")
ATTENTION = "Softmax trained on"
STATES = (4, 16, 32)


def loss(claim, variant):
    cell = claim.cell(variant, "loss")
    return cell.mean if cell else math.nan


def diverged(claim, variant):
    cell = claim.cell(variant, "diverged")
    return cell is not None and cell.mean > 0


def draw_training(axes, claim, variants, window=25):
    """The training losses after the swap, smoothed; what ends early has diverged."""
    for position, variant in enumerate(variants):
        x, values = claim.curve("training_loss", variant)
        half = max(1, len(values) // window) // 2
        smooth = [sum(values[max(0, i - half):i + half + 1]) / len(values[max(0, i - half):i + half + 1]) for i in range(len(values))]
        axes.plot(x, smooth, color=colour(variant, position), label=variant, linewidth=1.2)
    count_tokens(axes)
    axes.set_xlabel("training tokens after the swap")
    axes.set_ylabel("training loss (nats)")


def update_rules(claim):
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


def state_capacity(claim):
    figure, [[sizes, curves]] = panels(2, width=11, height=4.4)
    base, paper_base = loss(claim, ATTENTION), claim.paper_value(ATTENTION, "perplexity")
    for position, rule in enumerate(("Gated", "Decay")):
        ours = [loss(claim, f"{rule} m={m}") - base for m in STATES]
        papers = [math.log(claim.paper_value(f"{rule} m={m}", "perplexity") / paper_base) for m in STATES]
        sizes.plot(STATES, ours, "o-", color=colour(rule, position), label=f"{rule}, here")
        sizes.plot(STATES, papers, "s--", color=colour(rule, position), alpha=0.5, label=f"{rule}, paper")
    sizes.axhline(0, color=INK, linewidth=0.8)
    for variant, style in (("Local attention", "-."), ("Local attention of context / 32", ":")):
        if not math.isnan(loss(claim, variant)):
            sizes.axhline(loss(claim, variant) - base, color=INK, linestyle=style, linewidth=0.8, label=f"{variant}, here")
    sizes.set_xscale("log", base=2)
    sizes.set_xticks(STATES, [str(m) for m in STATES])
    sizes.set_xlabel("rows m of a head's state")
    sizes.set_ylabel("loss above attention (nats)")
    sizes.set_title("What a larger state is worth")
    sizes.legend(fontsize=7)
    draw_training(curves, claim, [v for v in (ATTENTION, "Local attention", "Gated m=32", "Decay m=4", "Decay m=32") if v in claim.variants()])
    curves.set_title("Training after the swap")
    curves.legend()
    return figure
