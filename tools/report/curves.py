"""Curves that the figures of several claims draw."""

import math
from itertools import accumulate
from statistics import fmean as mean

from report.style import count_tokens, log_positions, look

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


def first_shown(length):
    """The first position of an axis: the ones before it differ by more than the curves do."""
    return max(1, 2 ** round(math.log2(length / 64)))


def draw_loss_curves(axes, claim, variants):
    """L(i), smoothed, over a logarithmic axis of positions."""
    lowest, highest, first, last = math.inf, -math.inf, 1, 2
    for position, variant in enumerate(variants, start=1):  # variants without a look of their own begin after those of FoX
        x, values = claim.curve("loss_at_position", variant)
        if not x:
            continue
        smooth = smoothed_over_positions(values)
        first, last = first_shown(len(x)), x[-1]
        axes.plot(x, smooth, label=variant, **look(variant, position))
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
