"""The forgetting curve of each model."""

from report.curves import draw_forgetting_curves


def figure(claim):
    return draw_forgetting_curves(claim, claim.variants(), columns=4)
