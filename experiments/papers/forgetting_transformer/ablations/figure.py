"""Table 3 in bars, the trainings, and the loss by position."""

import math

from report.curves import MAIN_ROWS, draw_loss_curves, smoothed
from report.style import FAINT, INK, OURS, PAPER, colour, count_tokens, panels


def figure(claim):
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
