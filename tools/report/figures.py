"""One figure for each claim of the Forgetting Transformer, and the table of all claims' figures."""

import math
from itertools import accumulate

from report.cost_figures import generation_cost
from report.form_figures import duality
from report.conversion_figures import state_capacity, update_rules
from report.pruning_figures import boundaries, per_head_savings, savings, tolerance
from report.style import FAINT, INK, OURS, PAPER, colour, count_tokens, mark_training_length, panels

MAIN_ROWS = ("FoX (Pro)", "FoX (LLaMA)", "Transformer (Pro)", "Transformer (LLaMA)")


def smoothed(values, window):
    """Moving average over a window centred at each value, cut at the ends."""
    sums = [0.0, *accumulate(values)]
    half = window // 2
    result = []
    for i in range(len(values)):
        begin, end = max(0, i - half), min(len(values), i + half + 1)
        result.append((sums[end] - sums[begin]) / (end - begin))
    return result


def window_for(length):
    """The papers smooth 65536 positions over 101; shorter curves get a window that leaves their shape."""
    return 101 if length >= 8192 else max(5, length // 20 | 1)


def draw_loss_curves(axes, claim, variants, raw=True):
    """L(i), smoothed over the raw values."""
    lowest, highest = math.inf, -math.inf
    for position, variant in enumerate(variants):
        x, values = claim.curve("loss_at_position", variant)
        if not x:
            continue
        window = window_for(len(x))
        smooth = smoothed(values, window)
        if raw:
            axes.plot(x, values, color=colour(variant, position), alpha=0.15, linewidth=0.6)
        axes.plot(x, smooth, color=colour(variant, position), label=variant)
        shown = smooth[len(smooth) // 32:]
        lowest, highest = min(lowest, *shown), max(highest, *shown)
    if lowest < highest:
        margin = 0.1 * (highest - lowest)
        axes.set_ylim(lowest - margin, highest + margin)
    axes.set_xlabel("position i")
    axes.set_ylabel("loss L(i) (nats)")


def training_length(claim):
    return claim.certificate["settings"]["training"]["context_length"]


def ablations(claim):
    figure, [[bars, curves, positions]] = panels(3, width=15, height=5.2, width_ratios=[1.5, 1, 1])
    variants = claim.variants()
    base, paper_base = claim.cell("FoX (Pro)", "loss").mean, claim.paper_value("FoX (Pro)", "perplexity")
    ours = [claim.cell(variant, "loss").mean - base for variant in variants]
    papers = [math.log(claim.paper_value(variant, "perplexity") / paper_base) for variant in variants]
    band = max((c["band"] for c in claim.comparisons if c["band"] is not None), default=0)
    rows = range(len(variants))
    bars.axvspan(-band, band, color=FAINT, alpha=0.6, linewidth=0)
    bars.barh([r - 0.19 for r in rows], papers, height=0.36, color=PAPER, label="paper, 360M parameters")
    bars.barh([r + 0.19 for r in rows], ours, height=0.36, color=OURS, label="here")
    # Two rows without any sense of position lie far outside; the axis stays with the others and their bars are labelled.
    ordered = sorted(max(pair) for pair in zip(ours, papers))
    edge = 1.25 * max(ordered[-3] if len(ordered) > 2 else ordered[-1], band)
    low = min(0, *ours, *papers) - 0.15 * edge
    bars.set_xlim(max(low, -edge), edge)
    for row, (own, paper) in enumerate(zip(ours, papers)):
        for offset, value in ((0.19, own), (-0.19, paper)):
            if value > edge:
                bars.annotate(f"{value:.2f}", (edge, row + offset), xytext=(-3, 0), textcoords="offset points", ha="right",
                              va="center", fontsize=7, color=INK)
    bars.set_yticks(rows, variants)
    bars.invert_yaxis()
    bars.set_xlabel("loss above FoX (Pro) (nats = log of the perplexities' ratio)\nshaded: what seeds alone explain")
    bars.set_title("What each row of Table 3 loses")
    bars.legend(loc="center right")

    for variant in variants:
        x, values = claim.curve("training_loss", variant)
        is_main = variant in MAIN_ROWS
        curves.plot(x, smoothed(values, max(1, len(values) // 25 | 1)), color=colour(variant) if is_main else FAINT,
                    label=variant if is_main else None, zorder=3 if is_main else 2, linewidth=1.6 if is_main else 1.0)
    count_tokens(curves)
    curves.set_xlabel("training tokens")
    curves.set_ylabel("training loss (nats)")
    curves.set_title("Training (grey: the other rows)")
    curves.legend()
    draw_loss_curves(positions, claim, [row for row in MAIN_ROWS if row in variants], raw=True)
    positions.set_title("Loss by position, validation text")
    positions.legend()
    return figure


def forget_gate_types(claim):
    figure, [axes] = panels(2, width=11, height=4.4)
    for panel, architecture in zip(axes, ("LLaMA", "Pro")):
        base = f"FoX ({architecture})"
        draw_loss_curves(panel, claim, [base, f"{base} with data-independent gate", f"{base} with fixed gate"])
        mark_training_length(panel, training_length(claim))
        panel.set_title(f"{base}: kinds of forget gate")
        panel.legend()
    return figure


def length_extrapolation(claim):
    figure, [[losses, perplexities]] = panels(2, width=11, height=4.4)
    rows = [row for row in MAIN_ROWS if row in claim.variants()]
    draw_loss_curves(losses, claim, rows)
    losses.set_title("Per-token loss L(i)")
    for row in rows:
        x, values = claim.curve("loss_at_position", row)
        perplexity = [math.exp(total / i) for total, i in zip(accumulate(values), x)]
        begin = len(x) // 32
        perplexities.plot(x[begin:], perplexity[begin:], color=colour(row), label=row)
    perplexities.set_xlabel("context length l")
    perplexities.set_ylabel("perplexity P(l)")
    perplexities.set_title("Perplexity over the first l positions")
    for panel in (losses, perplexities):
        mark_training_length(panel, training_length(claim))
        panel.legend()
    return figure


FIGURES = {
    "ablations": ablations,
    "forget_gate_types": forget_gate_types,
    "length_extrapolation": length_extrapolation,
    "duality": duality,
    "savings": savings,
    "per_head_savings": per_head_savings,
    "boundaries": boundaries,
    "tolerance": tolerance,
    "generation_cost": generation_cost,
    "update_rules": update_rules,
    "state_capacity": state_capacity,
}
