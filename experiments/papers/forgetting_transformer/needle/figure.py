"""Heat maps of the needle: gain over length and depth, a panel a model, as FoX Fig. 4."""

from report.curves import training_length
from report.heat_maps import draw_needles


def figure(claim):
    variants = [variant for variant in claim.variants() if not variant.endswith("untrained")]
    return draw_needles(claim, variants, lambda variant: training_length(claim))
