"""Heat maps of the needle in a haystack."""

from statistics import fmean

from report.style import GREY, panels

QUANTITY = "gain_at_length_and_depth"


def draw_needles(claim, variants, training_length):
    """The gain over length and depth, a panel a variant, as FoX Fig. 4; dashed: training_length(variant)."""
    figure, [axes] = panels(len(variants), width=2.1 * len(variants) + 1, height=3.4, sharey=True)
    cells = {}
    for point in claim.points:
        if point["quantity"] == QUANTITY:
            cells.setdefault(point["variant"], {}).setdefault((point["x"], point["y"]), []).append(point["value"])
    highest = max(fmean(values) for cell in cells.values() for values in cell.values())
    for panel, variant in zip(axes, variants):
        lengths = sorted({length for length, _ in cells[variant]})
        depths = sorted({depth for _, depth in cells[variant]})
        grid = [[fmean(cells[variant][length, depth]) for length in lengths] for depth in depths]
        image = panel.imshow(grid, cmap="RdYlGn", vmin=0, vmax=max(highest, 1e-6), aspect="auto")
        panel.set_xticks(range(len(lengths)), [f"{length:g}" for length in lengths], rotation=90)
        panel.set_yticks(range(len(depths)), [f"{depth:g}" for depth in depths])
        within = sum(length <= training_length(variant) for length in lengths)
        panel.axvline(within - 0.5, color=GREY, linewidth=1.5, linestyle="--")
        panel.set_title(variant, fontsize=8)
        panel.set_xlabel("length (tokens)")
        panel.grid(False)
    axes[0].set_ylabel("depth (%)")
    figure.colorbar(image, ax=list(axes), label="gain (nats a token)", fraction=0.03)
    return figure
