"""How the figures look: one palette, quiet axes, text that stays text in SVG."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (after the choice of the backend)
from matplotlib.ticker import EngFormatter  # noqa: E402

INK, GREY, FAINT = "#22303c", "#8a97a3", "#d9dfe4"
PAPER = "#b8c1c9"  # the paper's own numbers, wherever they are beside ours
OURS = "#2a7f9e"
BOUNDARY = "#f28e2b"
COLOURS = ("#2a7f9e", "#d1495b", "#5b8c5a", "#8367a8", "#c98a1b", "#3d5a80", "#a05195", "#7f8c8d")
FAMILY_COLOURS = {
    "FoX (Pro)": "#2a7f9e", "FoX (LLaMA)": "#7cc0d8", "Transformer (Pro)": "#d1495b", "Transformer (LLaMA)": "#eea29a",
    "FoX (Pro) with ACP": "#2a7f9e", "FoX (Pro) without ACP": "#d1495b",
}
VERDICT_COLOURS = {
    "reproduced": "#2f7d4f", "trend reproduced": "#5b8c5a", "refuted": "#b23a48", "inconclusive at this scale": "#8a97a3",
}

plt.rcParams.update({
    "font.family": "DejaVu Sans", "font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.edgecolor": GREY, "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": FAINT, "grid.linewidth": 0.6,
    "axes.axisbelow": True, "legend.frameon": False, "legend.fontsize": 8, "lines.linewidth": 1.6, "figure.constrained_layout.use": True,
    "svg.fonttype": "none", "svg.hashsalt": "lethe",
})


def colour(name, position=0):
    """A variant's colour: its own where it has one in every figure, else the next of the palette."""
    return FAMILY_COLOURS.get(name, COLOURS[position % len(COLOURS)])


def panels(columns, width=11.0, height=4.0, **options):
    """A figure of panels side by side."""
    return plt.subplots(1, columns, figsize=(width, height), squeeze=False, **options)


def count_tokens(axes):
    """Ticks of the x axis as 100k, 2M."""
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def mark_training_length(axes, length):
    axes.axvline(length, color=GREY, linestyle="--", linewidth=1)
    axes.annotate("training length", (length, 1), xycoords=("data", "axes fraction"), xytext=(3, -3), textcoords="offset points",
                  rotation=90, va="top", fontsize=7, color=GREY)


def save(figure, path):
    """Writes SVG without a date in it, so that the same data give the same file."""
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
