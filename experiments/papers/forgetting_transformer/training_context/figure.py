"""L(i) at the longest training context, and FoX's advantage over positions at each context."""

from report.curves import MAIN_ROWS, first_shown, losses, smoothed_over_positions
from report.style import COLOURS, DASHES, GREY, legend_below, log_positions, look, panels


def figure(claim):
    figure, [[curves, gains]] = panels(2, width=11, height=5.2)
    contexts = claim.certificate["settings"]["context_lengths"]
    longest = contexts[-1]
    window = [row for row in claim.variants() if row.startswith("Window of ") and row.endswith(f" at {longest}")]
    lowest = []
    for variant in [f"{row} at {longest}" for row in MAIN_ROWS] + window:
        ends, values = losses(claim, variant)
        if ends:
            smooth = smoothed_over_positions(values)
            curves.plot(ends, [smooth[end - 1] for end in ends], label=variant.removesuffix(f" at {longest}"),
                        **look(variant.removesuffix(f" at {longest}")))
            lowest += smooth[first_shown(longest) - 1:]
    if lowest:
        margin = 0.05 * (max(lowest) - min(lowest))
        curves.set_ylim(min(lowest) - margin, max(lowest) + margin)
    curves.set_ylabel("loss L(i) (nats)")
    curves.set_title(f"Per-token loss, training context {longest}")

    for colour, architecture in enumerate(("Pro", "LLaMA")):
        for dash, context in enumerate(reversed(contexts)):
            ends, fox = losses(claim, f"FoX ({architecture}) at {context}")
            others, transformer = losses(claim, f"Transformer ({architecture}) at {context}")
            if ends and ends == others:
                gain = smoothed_over_positions([t - f for t, f in zip(transformer, fox)])
                shown = [end for end in ends if end >= first_shown(longest)]
                gains.plot(shown, [gain[end - 1] for end in shown], label=f"({architecture}), training context {context}", color=COLOURS[colour],
                           linestyle=DASHES[len(contexts) * colour + dash])
    gains.axhline(0, color=GREY, linewidth=0.8)
    gains.set_ylabel("Transformer − FoX (nats)")
    gains.set_title("FoX's advantage")
    for axes in (curves, gains):
        log_positions(axes, first_shown(longest), longest)
        axes.set_xlabel("position i")
        legend_below(axes)
    return figure
