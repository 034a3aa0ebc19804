"""Per-token loss and perplexity within and beyond the training length."""

import math
from itertools import accumulate

from report.curves import MAIN_ROWS, draw_loss_curves, training_length
from report.style import colour, mark_training_length, panels


def figure(claim):
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
