"""The figure of what a generated token costs: time and memory over the context, in both editions."""

from report.style import COLOURS, PAPER, panels

RULE_COLOURS = {"attention": COLOURS[1], "decay": COLOURS[0], "delta": COLOURS[2], "forgetting attention": COLOURS[3]}
UNITS = {"time": (1e3, "time of a step (ms)"), "memory": (1e-6, "memory at a step's peak (MB)")}


def draw(panel, claim, edition, quantity):
    """The rivals of an edition: a line each, between its quartiles where there are any; dashed what isn't ours."""
    factor, label = UNITS[quantity]
    names = dict.fromkeys(point["variant"] for point in claim.points if point["quantity"] == edition + quantity)
    for name in names:
        rule, implementation = name.removesuffix(")").split(" (")
        contexts, values = claim.curve(edition + quantity, name)
        panel.plot(contexts, [factor * value for value in values], color=RULE_COLOURS[rule], label=name,
                   linestyle="-" if implementation == "lethe" or rule == "attention" else "--")
        if quantity == "time":
            low, high = (claim.curve(f"{edition}time_{end}", name)[1] for end in ("low", "high"))
            panel.fill_between(contexts, [factor * v for v in low], [factor * v for v in high], color=RULE_COLOURS[rule], alpha=0.15,
                               linewidth=0)
    crossing = claim.cell("decay (lethe)", f"{edition}{quantity}_crossing") or claim.cell("decay (torch)", f"{edition}{quantity}_crossing")
    if crossing:
        panel.axvline(crossing.mean, color=PAPER, linestyle=":", linewidth=1.2)
        panel.annotate(f"{crossing.mean:.0f}", (crossing.mean, 1), xycoords=("data", "axes fraction"), xytext=(3, -9),
                       textcoords="offset points", fontsize=7)
    panel.set_ylim(bottom=0)
    panel.set_xlabel("context (tokens)")
    panel.set_ylabel(label)


def figure(claim):
    figure, [axes] = panels(4, width=16, height=4.2)
    editions = (("scripted_", "as scripted"), ("", "clean"))
    for column, (quantity, words) in enumerate((("time", "Time"), ("memory", "Memory"))):
        for row, (edition, name) in enumerate(editions):
            panel = axes[2 * row + column]
            draw(panel, claim, edition, quantity)
            panel.set_title(f"{words} of a generated token, {name}")
    for panel in (axes[0], axes[2]):
        panel.legend(loc="upper left")
    return figure
