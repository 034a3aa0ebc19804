"""Table 3 in bars, the trainings, and the loss by position."""

import math

from report.curves import MAIN_ROWS, draw_loss_curves, smoothed
from report.style import FAINT, OURS, PAPER, bars_within, count_tokens, legend_below, look, panels


def figure(claim):
    figure, [[bars, curves, positions]] = panels(3, width=15, height=6.0, width_ratios=[1.5, 1, 1])
    variants = claim.variants()
    base, paper_base = claim.cell("FoX (Pro)", "loss").mean, claim.paper_value("FoX (Pro)", "perplexity")
    shown = [variant for variant in variants if claim.paper_value(variant, "perplexity") is not None]  # a control is in no table of the paper
    ours = [claim.cell(variant, "loss").mean - base for variant in shown]
    papers = [math.log(claim.paper_value(variant, "perplexity") / paper_base) for variant in shown]
    band = max((c["band"] for c in claim.comparisons if c["band"] is not None and c["source"] == "FoX Table 3"), default=0)  # of its steps
    rows = range(len(shown))
    bars.axvspan(-band, band, color=FAINT, alpha=0.6, linewidth=0)
    # Two rows without any sense of position lie far outside; the axis stays with the others and their bars are cut.
    ordered = sorted(max(pair) for pair in zip(ours, papers))
    edge = 1.25 * max(ordered[-3] if len(ordered) > 2 else ordered[-1], band)
    low = min(0, *ours, *papers) - 0.15 * edge
    for offset, values, tint, label in ((-0.19, papers, PAPER, "paper, 360M parameters"), (0.19, ours, OURS, "here")):
        bars_within(bars, [r + offset for r in rows], values, max(low, -edge), edge, color=tint, label=label)
    bars.set_yticks(rows, shown)
    bars.invert_yaxis()
    bars.set_xlabel("loss above FoX (Pro) (nats = log of the perplexities' ratio)\nshaded: what seeds alone explain")
    bars.set_title("What each row of Table 3 loses")
    legend_below(bars)

    for variant in variants:
        x, values = claim.curve("training_loss", variant)
        smooth = smoothed(values, max(1, len(values) // 25 | 1))
        if variant in MAIN_ROWS:
            curves.plot(x, smooth, label=variant, zorder=3, **look(variant))
        else:
            curves.plot(x, smooth, color=FAINT, zorder=2, linewidth=1.0)
    count_tokens(curves)
    curves.set_xlabel("training tokens")
    curves.set_ylabel("training loss (nats)")
    curves.set_title("Training (grey: the other rows)")
    legend_below(curves, 1)
    draw_loss_curves(positions, claim, [row for row in MAIN_ROWS if row in variants])
    positions.set_title("Loss by position, validation text")
    legend_below(positions, 1)
    return figure
