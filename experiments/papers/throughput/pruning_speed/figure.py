"""Our speed with pruning over the three it is measured against, with the goals."""

from report.goals import draw_goals


def figure(claim):
    return draw_goals(claim, [f"{direction}_beside_{rival}" for rival in ("unpruned", "flex", "official") for direction in ("forward", "backward")])
