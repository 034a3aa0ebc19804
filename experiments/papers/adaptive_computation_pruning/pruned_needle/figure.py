"""Heat maps of the needle with and without pruning, two panels a training length."""

from report.heat_maps import draw_needles


def figure(claim):
    return draw_needles(claim, claim.variants(), lambda variant: int(variant.split()[0]))
