"""What the gate adds to a kernel's time, with the goals."""

from report.goals import draw_goals


def figure(claim):
    return draw_goals(claim, ("forward_cost", "backward_cost"))
