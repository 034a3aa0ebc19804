"""Per-token loss and perplexity within and beyond the training length."""

import math
from itertools import accumulate

from report.curves import MAIN_ROWS, draw_loss_curves, first_shown, losses, training_length
from report.style import legend_below, log_positions, look, mark_training_length, panels


def figure(claim):
    figure, [[curves, perplexities]] = panels(2, width=11, height=5.0)
    rows = [row for row in MAIN_ROWS if row in claim.variants()]
    draw_loss_curves(curves, claim, rows)
    curves.set_title("Per-token loss L(i)", pad=16)
    for row in rows:
        ends, values = losses(claim, row)
        totals = list(accumulate(values))
        first = first_shown(ends[-1])
        shown = [end for end in ends if end >= first]
        perplexities.plot(shown, [math.exp(totals[end - 1] / end) for end in shown], label=row, **look(row))
        log_positions(perplexities, first, ends[-1])
    perplexities.set_xlabel("context length l")
    perplexities.set_ylabel("perplexity P(l)")
    perplexities.set_title("Perplexity over the first l positions", pad=16)
    for panel in (curves, perplexities):
        mark_training_length(panel, training_length(claim))
        legend_below(panel)
    return figure
