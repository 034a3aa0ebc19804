"""What pruning gains over the context, and FoX (Pro) beside the Transformers, a line a size."""

from report.style import BOUNDARY, COLOURS, DASHES, GREY, MARKERS, legend_below, log_positions, panels


def figure(claim):
    figure, [[gains, ratios]] = panels(2, width=11, height=4.6)
    contexts = claim.lengths("tokens_per_second")
    sizes = list(dict.fromkeys(variant.rsplit(" ", 1)[1] for variant in claim.variants()))

    def draw(axes, one, other, label, scale, **options):
        found = []
        for context in contexts:
            ours, theirs = (claim.cell(variant, "tokens_per_second", context) for variant in (one, other))
            if ours and theirs:
                found.append((context, scale(ours.mean / theirs.mean)))
        if found:
            axes.plot(*zip(*found), label=label, **options)

    for colour, size in enumerate(sizes):
        fox = f"FoX (Pro) {size}"
        draw(gains, f"FoX (Pro) pruned {size}", fox, size, lambda ratio: 100 * (ratio - 1), color=COLOURS[colour],
             marker=MARKERS[colour])
        for dash, name in enumerate(("LLaMA", "Pro")):
            draw(ratios, fox, f"Transformer ({name}) {size}", f"{size}, × Transformer ({name})", lambda ratio: ratio, color=COLOURS[colour],
                 marker=MARKERS[colour], linestyle=DASHES[dash])
    gains.axhspan(10, 35, color=BOUNDARY, alpha=0.2, linewidth=0, label="paper: 10 % to 35 % faster")
    gains.axhline(0, color=GREY, linewidth=0.8)
    ratios.axhline(1, color=GREY, linewidth=0.8)
    gains.set_ylabel("gain by pruning (%)")
    gains.set_title("Training with pruning")
    ratios.set_ylabel("tokens/s of FoX (Pro) over theirs")
    ratios.set_title("FoX beside the Transformer")
    for axes in (gains, ratios):
        if len(contexts) > 1:
            log_positions(axes, contexts[0] / 1.1, contexts[-1] * 1.1)
        axes.set_xlabel("context")
        if axes.get_legend_handles_labels()[0]:
            legend_below(axes)
    return figure
