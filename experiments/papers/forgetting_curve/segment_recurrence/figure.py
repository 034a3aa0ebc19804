"""The curves of Llama-XL and Llama, and their losses over the position."""

from report.curves import draw_forgetting_curve, draw_loss_curves, forgetting_legend
from report.style import DASHES, GREY, legend_below, panels

VARIANTS = ("Llama-XL", "Llama")


def figure(claim):
    figure, [[*curves, losses]] = panels(3, width=13, height=4.4)
    for axes, variant in zip(curves, VARIANTS):
        draw_forgetting_curve(axes, claim, variant)
        axes.set_title(variant)
    draw_loss_curves(losses, claim, VARIANTS)
    losses.axvline(claim.certificate["settings"]["segment"], color=GREY, linewidth=1, linestyle=DASHES[4], label="a segment")
    losses.set_title("Per-token loss")
    legend_below(losses)
    figure.legend(handles=forgetting_legend(), loc="outside lower left", ncols=7, fontsize=8)
    return figure
