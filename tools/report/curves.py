"""Curves that the figures of several claims draw."""

import math
from itertools import accumulate
from statistics import fmean as mean

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from report.style import COARSE, COLOURS, FINE, FORGOTTEN, GREY, DASHES, count_tokens, log_positions, look, plt

MAIN_ROWS = ("FoX (Pro)", "FoX (LLaMA)", "Transformer (Pro)", "Transformer (LLaMA)")


def smoothed(values, window):
    """Moving average over a window centred at each value, cut at the ends."""
    sums = [0.0, *accumulate(values)]
    half = window // 2
    result = []
    for i in range(len(values)):
        begin, end = max(0, i - half), min(len(values), i + half + 1)
        result.append((sums[end] - sums[begin]) / (end - begin))
    return result


def smoothed_over_positions(values):
    """Moving average for a logarithmic axis: at position i over i ± i / 8, a stretch of the same width everywhere on the axis."""
    sums = [0.0, *accumulate(values)]
    result = []
    for i in range(len(values)):
        half = (i + 1) // 8
        begin, end = max(0, i - half), min(len(values), i + half + 1)
        result.append((sums[end] - sums[begin]) / (end - begin))
    return result


def losses(claim, variant):
    """The positions that end a stretch, and L(i) of every position from 1 on: a point is the mean of its stretch, which begins after the one
    before."""
    ends, means = claim.curve("loss_at_position", variant)
    ends = [int(end) for end in ends]
    return ends, [mean for begin, end, mean in zip([0, *ends], ends, means) for _ in range(end - begin)]


def first_shown(length):
    """The first position of an axis: the ones before it differ by more than the curves do."""
    return max(1, 2 ** round(math.log2(length / 64)))


def draw_loss_curves(axes, claim, variants):
    """L(i), smoothed, over a logarithmic axis of positions."""
    lowest, highest, first, last = math.inf, -math.inf, 1, 2
    for position, variant in enumerate(variants, start=1):  # variants without a look of their own begin after those of FoX
        ends, values = losses(claim, variant)
        if not ends:
            continue
        smooth = smoothed_over_positions(values)
        first, last = first_shown(ends[-1]), ends[-1]
        axes.plot(ends, [smooth[end - 1] for end in ends], label=variant, **look(variant, position))
        shown = smooth[first - 1:]
        lowest, highest = min(lowest, *shown), max(highest, *shown)
    log_positions(axes, first, last)
    if lowest < highest:
        margin = 0.05 * (highest - lowest)
        axes.set_ylim(lowest - margin, highest + margin)
    axes.set_xlabel("position i")
    axes.set_ylabel("loss L(i) (nats)")


def training_length(claim):
    return claim.certificate["settings"]["training"]["context_length"]


def draw_training(axes, claim, variants, window=25):
    """The training losses after the swap of a conversion, smoothed; what ends early has diverged."""
    for position, variant in enumerate(variants):
        x, values = claim.curve("training_loss", variant)
        half = max(1, len(values) // window) // 2
        smooth = [mean(values[max(0, i - half):i + half + 1]) for i in range(len(values))]
        axes.plot(x, smooth, label=variant, linewidth=1.2, **look(variant, position))
    count_tokens(axes)
    axes.set_xlabel("training tokens after the swap")
    axes.set_ylabel("training loss (nats)")


def memory_length(claim, variant, metric):
    """A length of memory, the mean over seeds, and whether it is the longest that was measured."""
    cell, longest = claim.cell(variant, metric), claim.cell(variant, "longest_length")
    return (cell.mean, cell.mean >= longest.mean) if cell else (math.nan, False)


def draw_forgetting_curve(axes, claim, variant):
    """Accuracy of copying and of guessing over the length, with bands of one standard deviation between repeats. The areas are fine memory, coarse
    memory and amnesia; the lines are the training length and its half. Lengths that could not be measured are marked below the axis."""
    lengths, copies = claim.curve("copy_at_length", variant)
    if not lengths:
        return
    first, last = min(lengths), max(lengths)
    fine, coarse = (memory_length(claim, variant, metric)[0] for metric in ("fine_length", "coarse_length"))
    begin = first
    for end, tint in ((fine, FINE), (max(fine, coarse), COARSE), (last, FORGOTTEN)):
        if end > begin:
            axes.axvspan(begin, end, color=tint, linewidth=0, zorder=0)
            begin = end
    for quantity, label, tint, face in (("copy", "copy", COLOURS[1], COLOURS[1]), ("lm", "LM", COLOURS[0], "white")):
        x, values = claim.curve(f"{quantity}_at_length", variant)
        _, deviations = claim.curve(f"{quantity}_deviation_at_length", variant)
        axes.fill_between(x, [v - d for v, d in zip(values, deviations)], [v + d for v, d in zip(values, deviations)], color=tint, alpha=0.25,
                          linewidth=0)
        axes.plot(x, values, color=tint, marker="o", markersize=2.5, markerfacecolor=face, label=label)
    trained = training_length(claim)
    for length, dash in ((trained, DASHES[1]), (trained / 2, DASHES[2])):
        axes.axvline(length, color=GREY, linewidth=1, linestyle=dash)
    for length in (x for x, value in zip(lengths, copies) if math.isnan(value)):
        axes.annotate("not measurable", (length, 0.5), rotation=90, fontsize=7, color=GREY, ha="right", va="center")
    log_positions(axes, first, last)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("length L")
    axes.set_ylabel("accuracy")


def draw_forgetting_curves(claim, variants, columns=4):
    """A panel a variant, and one legend for all."""
    rows = math.ceil(len(variants) / columns)
    figure, grid = plt.subplots(rows, columns, figsize=(3.1 * columns, 2.6 * rows + 0.4), squeeze=False)
    for place, axes in enumerate(grid.flat):
        if place >= len(variants):
            axes.set_visible(False)
            continue
        draw_forgetting_curve(axes, claim, variants[place])
        axes.set_title(variants[place], fontsize=9)
    figure.legend(handles=forgetting_legend(), loc="outside lower center", ncols=7, fontsize=8)
    return figure


def forgetting_legend():
    return [
        Line2D([], [], color=COLOURS[1], marker="o", markersize=3, label="copy"),
        Line2D([], [], color=COLOURS[0], marker="o", markersize=3, markerfacecolor="white", label="LM"),
        Patch(color=FINE, label="fine memory"), Patch(color=COARSE, label="coarse memory"), Patch(color=FORGOTTEN, label="amnesia"),
        Line2D([], [], color=GREY, linestyle=DASHES[1], label="training length"), Line2D([], [], color=GREY, linestyle=DASHES[2], label="its half"),
    ]
