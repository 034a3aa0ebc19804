"""The forgetting curve of each architecture."""

from report.curves import draw_forgetting_curves


def figure(claim):
    return draw_forgetting_curves(claim, claim.variants(), columns=5)
