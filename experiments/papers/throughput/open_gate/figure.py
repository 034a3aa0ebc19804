"""Our speed over cuDNN's, with the goals."""

from report.goals import draw_goals


def figure(claim):
    return draw_goals(claim, ("forward_beside_cudnn", "backward_beside_cudnn"))
