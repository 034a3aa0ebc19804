"""The loss by position of the kinds of gate, a panel an architecture."""

from report.curves import draw_loss_curves, training_length
from report.style import legend_below, mark_training_length, panels


def figure(claim):
    figure, [axes] = panels(2, width=11, height=5.2)
    for panel, architecture in zip(axes, ("LLaMA", "Pro")):
        base = f"FoX ({architecture})"
        control = [name for name in claim.variants() if name.startswith("Window of ")] if architecture == "LLaMA" else []
        draw_loss_curves(panel, claim, [base, f"{base} with data-independent gate", f"{base} with fixed gate", *control])
        mark_training_length(panel, training_length(claim))
        panel.set_title(f"{base}: kinds of forget gate", pad=16)
        legend_below(panel, 1)
    return figure
