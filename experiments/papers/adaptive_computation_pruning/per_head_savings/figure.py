"""Histograms of the heads' pruned shares, of all and of each layer."""

import re

import numpy as np

from report.style import OURS, panels


def heads_of(claim, metric="pruned_share"):
    """{layer: [value of each head of every seed], in blocks}"""
    layers = {}
    for variant in claim.variants():
        if not (place := re.fullmatch(r"layer (\d+) head (\d+)", variant)):
            continue
        layer = int(place[1])
        layers.setdefault(layer, []).extend(claim.cell(variant, metric).values)
    return layers


def figure(claim):
    layers = heads_of(claim)
    bins = np.linspace(0, 1, 21)
    figure, [axes] = panels(1 + len(layers), width=4.5 + 1.6 * len(layers), height=4.0, sharey=True,
                            width_ratios=[2.6] + [1] * len(layers))
    everything = np.concatenate([np.array(heads) for heads in layers.values()])
    for panel, heads, title in zip(axes, [everything, *layers.values()], ["All heads", *(f"Layer {layer}" for layer in layers)]):
        share, _ = np.histogram(heads, bins)
        panel.barh(100 * (bins[:-1] + 0.025), 100 * share / len(heads), height=4.4, color=OURS)
        panel.set_xlim(0, 100)
        panel.set_title(title)
        panel.set_xlabel("heads (%)")
    axes[0].set_ylabel("pruned share of a head's blocks (%)\nglobal heads below, local heads above")
    axes[0].set_ylim(0, 100)
    return figure
