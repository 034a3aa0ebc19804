"""LM accuracy after several sources of irrelevant text, and copies of several sources."""

from report.curves import training_length
from report.style import DASHES, GREY, legend_below, log_positions, look, panels


def figure(claim):
    figure, [[prefixes, copies]] = panels(2, width=11, height=5.0)
    for axes, beginning, quantity in ((prefixes, "after ", "lm"), (copies, "copies of ", "copy")):
        variants = [variant for variant in claim.variants() if variant.startswith(beginning)]
        for position, variant in enumerate(variants):
            x, values = claim.curve(f"{quantity}_at_length", variant)
            _, deviations = claim.curve(f"{quantity}_deviation_at_length", variant)
            line = look(variant, position)
            axes.plot(x, values, label=variant, **line)
            axes.fill_between(x, [v - d for v, d in zip(values, deviations)], [v + d for v, d in zip(values, deviations)], color=line["color"],
                              alpha=0.15, linewidth=0)
            if quantity == "copy":
                axes.plot(*claim.curve("lm_at_length", variant), color=line["color"], linewidth=0.8, linestyle=DASHES[2])
        log_positions(axes, min(x), max(x))
        axes.axvline(training_length(claim) / 2, color=GREY, linewidth=1, linestyle=DASHES[2])
        axes.set_xlabel("length L (vertical line: half of the training length)")
        axes.set_ylabel("accuracy")
        legend_below(axes)
    prefixes.set_title("LM accuracy after irrelevant text")
    copies.set_title("Copy accuracy (dotted: LM accuracy)")
    return figure
