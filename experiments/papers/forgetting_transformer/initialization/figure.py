"""The losses of both initializations by position."""

from report.curves import draw_loss_curves
from report.style import legend_below, panels


def figure(claim):
    figure, [axes] = panels(2, width=11, height=5.0)
    for panel, row in zip(axes, ("Transformer (LLaMA)", "FoX (LLaMA)")):
        scaled = f"{row} from scaled matrices"
        draw_loss_curves(panel, claim, [row, *([scaled] if scaled in claim.variants() else [])])
        panel.set_title(row)
        legend_below(panel, 1)
    return figure
