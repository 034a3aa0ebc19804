"""The curves of a small model on two texts, and of the model before its training."""

from report.curves import draw_forgetting_curves


def figure(claim):
    return draw_forgetting_curves(claim, claim.variants(), columns=3)
