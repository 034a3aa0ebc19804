"""Curves that the figures of several claims draw."""

import math
from itertools import accumulate
from statistics import fmean as mean

from report.style import colour, count_tokens

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


def window_for(length):
    """The papers smooth 65536 positions over 101; shorter curves get a window that leaves their shape."""
    return 101 if length >= 8192 else max(5, length // 20 | 1)


def draw_loss_curves(axes, claim, variants, raw=True):
    """L(i), smoothed over the raw values."""
    lowest, highest = math.inf, -math.inf
    for position, variant in enumerate(variants):
        x, values = claim.curve("loss_at_position", variant)
        if not x:
            continue
        window = window_for(len(x))
        smooth = smoothed(values, window)
        if raw:
            axes.plot(x, values, color=colour(variant, position), alpha=0.15, linewidth=0.6)
        axes.plot(x, smooth, color=colour(variant, position), label=variant)
        shown = smooth[len(smooth) // 32:]
        lowest, highest = min(lowest, *shown), max(highest, *shown)
    if lowest < highest:
        margin = 0.1 * (highest - lowest)
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
        axes.plot(x, smooth, color=colour(variant, position), label=variant, linewidth=1.2)
    count_tokens(axes)
    axes.set_xlabel("training tokens after the swap")
    axes.set_ylabel("training loss (nats)")
