"""The figure of what a generated token costs: time and memory over the context, in both editions."""

from report.style import COLOURS, DASHES, GREY, legend_below, panels

LOOKS = {"attention": 1, "decay": 0, "delta": 2, "forgetting attention": 3}  # places in the palette; the next dashes are those of Torch
UNITS = {"time": (1e3, "time of a step (ms)"), "memory": (1e-6, "memory at a step's peak (MB)")}


def draw(panel, claim, edition, quantity):
    """The rivals of an edition: a line each, between its quartiles where there are any."""
    factor, label = UNITS[quantity]
    names = dict.fromkeys(point["variant"] for point in claim.points if point["quantity"] == edition + quantity)
    for name in names:
        rule, implementation = name.removesuffix(")").split(" (")
        contexts, values = claim.curve(edition + quantity, name)
        place = LOOKS[rule]
        panel.plot(contexts, [factor * value for value in values], color=COLOURS[place], label=name,
                   linestyle=DASHES[place if implementation == "lethe" else place + 3], marker="o" if implementation == "lethe" else None,
                   markersize=3)
        if quantity == "time":
            low, high = (claim.curve(f"{edition}time_{end}", name)[1] for end in ("low", "high"))
            panel.fill_between(contexts, [factor * v for v in low], [factor * v for v in high], color=COLOURS[place], alpha=0.15, linewidth=0)
    crossing = claim.cell("decay (lethe)", f"{edition}{quantity}_crossing") or claim.cell("decay (torch)", f"{edition}{quantity}_crossing")
    if crossing:
        panel.axvline(crossing.mean, color=GREY, linestyle=":", linewidth=1.2)
        panel.annotate(f"{crossing.mean:.0f}", (crossing.mean, 1), xycoords=("data", "axes fraction"), xytext=(3, -9),
                       textcoords="offset points", fontsize=7)
    panel.set_ylim(bottom=0)
    panel.set_xlabel("context (tokens)")
    panel.set_ylabel(label)


def figure(claim):
    figure, [axes] = panels(4, width=16, height=5.0)
    editions = (("scripted_", "as scripted"), ("", "clean"))
    for column, (quantity, words) in enumerate((("time", "Time"), ("memory", "Memory"))):
        for row, (edition, name) in enumerate(editions):
            panel = axes[2 * row + column]
            draw(panel, claim, edition, quantity)
            panel.set_title(f"{words} of a generated token, {name}")
    for panel in (axes[0], axes[2]):
        legend_below(panel)
    return figure
