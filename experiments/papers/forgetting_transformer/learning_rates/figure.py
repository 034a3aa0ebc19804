"""The loss over the learning rate, a line a row."""

from report.style import legend_below, look, panels

ROWS = ("FoX (Pro)", "FoX (LLaMA)", "Transformer (Pro)", "Transformer (LLaMA)")


def figure(claim):
    figure, [[axes]] = panels(1, width=7, height=5.2)
    for position, row in enumerate(ROWS):
        found = []
        for variant in claim.variants():
            if variant == row or variant.startswith(f"{row} at rate "):
                loss, rate = claim.cell(variant, "loss"), claim.cell(variant, "learning_rate")
                found.append((rate.mean, loss.mean, loss.stddev))
        if found:
            rates, losses, scatter = zip(*sorted(found))
            axes.errorbar(rates, losses, yerr=scatter, marker="o", capsize=3, label=row, **look(row, position))
    axes.set_xscale("log")
    axes.set_xlabel("peak learning rate")
    axes.set_ylabel("loss (nats)")
    axes.set_title("Each row at several rates")
    legend_below(axes, 2)
    return figure
