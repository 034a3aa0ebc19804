"""Figures of claims whose numbers are judged against goals."""

from report.style import BOUNDARY, OURS, panels


def draw_goals(claim, metrics):
    """A panel a metric: a bar a variant, and a mark where its goal is."""
    variants = claim.variants()
    figure, [axes] = panels(len(metrics), width=3.2 * len(metrics) + 1, height=1 + 0.35 * len(variants), sharey=True)
    for panel, metric in zip(axes, metrics):
        for row, variant in enumerate(variants):
            cell, goal = claim.cell(variant, metric), claim.paper_value(variant, metric)
            if cell:
                panel.barh(row, cell.mean, color=OURS, height=0.6)
            if goal is not None:
                panel.plot([goal, goal], [row - 0.4, row + 0.4], color=BOUNDARY, linewidth=2)
        better = claim.better(metric, "1")
        panel.set_xlabel(claim.words(metric) + (f"\n{better} is better" if better else ""))
    axes[0].set_yticks(range(len(variants)), variants)
    axes[0].invert_yaxis()
    axes[0].plot([], [], color=BOUNDARY, linewidth=2, label="goal")
    figure.legend(loc="outside upper right")
    return figure
