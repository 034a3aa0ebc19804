"""Recall by state size and gate: accuracy with unchanged keys, and of the keys that have two values."""

from report.style import bars_within, panels

PANELS = (("accuracy", "each key has one value"), ("updated_accuracy_with_updates", "keys with two values: the last one counts"))


def figure(claim):
    figure, [axes] = panels(len(PANELS), width=11, height=4.4, sharey=True)
    models = {row["variant"] for row in claim.records if row["metric"] == "coarse_length"}  # of the needle
    variants = [variant for variant in claim.variants() if variant not in models]
    for panel, (metric, title) in zip(axes, PANELS):
        cells = [claim.cell(variant, metric) for variant in variants]
        bars_within(panel, range(len(variants)), [cell.mean if cell else float("nan") for cell in cells], 0, 1)
        panel.set_title(title)
        panel.set_xlabel("share of the queries answered right")
    axes[0].set_yticks(range(len(variants)), variants)
    axes[0].invert_yaxis()
    return figure
