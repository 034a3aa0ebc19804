"""Per-token loss and perplexity within and beyond the training length."""

import math
from itertools import accumulate

from report.curves import MAIN_ROWS, draw_loss_curves, first_shown, training_length
from report.style import legend_below, log_positions, look, mark_training_length, panels


def figure(claim):
    figure, [[losses, perplexities]] = panels(2, width=11, height=5.0)
    rows = [row for row in MAIN_ROWS if row in claim.variants()]
    draw_loss_curves(losses, claim, rows)
    losses.set_title("Per-token loss L(i)", pad=16)
    for row in rows:
        x, values = claim.curve("loss_at_position", row)
        perplexity = [math.exp(total / i) for total, i in zip(accumulate(values), x)]
        first = first_shown(len(x))
        perplexities.plot(x[first - 1:], perplexity[first - 1:], label=row, **look(row))
        log_positions(perplexities, first, x[-1])
    perplexities.set_xlabel("context length l")
    perplexities.set_ylabel("perplexity P(l)")
    perplexities.set_title("Perplexity over the first l positions", pad=16)
    for panel in (losses, perplexities):
        mark_training_length(panel, training_length(claim))
        legend_below(panel)
    return figure
