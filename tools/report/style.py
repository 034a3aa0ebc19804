"""How the figures look: one palette, quiet axes, legends below the axes, text that stays text in SVG."""

import io

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (after the choice of the backend)
from matplotlib.layout_engine import ConstrainedLayoutEngine  # noqa: E402
from matplotlib.ticker import EngFormatter, FuncFormatter, NullLocator  # noqa: E402
from matplotlib.transforms import Bbox, ScaledTranslation  # noqa: E402

from report.files import write_whole  # noqa: E402

INK, GREY, FAINT = "#22303c", "#56646f", "#d9dfe4"
PAPER = "#a9b4bd"  # the paper's own numbers, wherever they are beside ours
# Okabe and Ito, "Color Universal Design" (2008), without its yellow, which is faint on white: told apart with any common colour blindness.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
OURS, BOUNDARY = COLOURS[0], COLOURS[1]
FINE, COARSE, FORGOTTEN = "#d3ecdf", "#d5e5f3", "#f7dcd2"  # areas of a forgetting curve
DASHES = ("-", (0, (5, 2)), (0, (1, 1.3)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (9, 2)), (0, (2, 2)))
MARKERS = "osD^vPX"
FAMILIES = {  # a variant with a look of its own in every figure: places in COLOURS and in DASHES
    "FoX (Pro)": (0, 0), "FoX (LLaMA)": (4, 1), "Transformer (Pro)": (1, 2), "Transformer (LLaMA)": (5, 3),
    "FoX (Pro) with ACP": (0, 0), "FoX (Pro) without ACP": (1, 1),
}
CONTROL = (6, 6)  # of a model that sees a window
# Behind white text with a contrast of at least 4.5 (WCAG 2.2, 1.4.3).
VERDICT_COLOURS = {
    "reproduced": "#00684a", "trend reproduced": "#1763a6", "direction reproduced, size contradicted": "#6b4fa0", "refuted": "#a3260b",
    "inconclusive at this scale": "#59636e",
    "out of reach here": "#7a5c3e",
}

plt.rcParams.update({
    "font.family": "DejaVu Sans", "font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.edgecolor": GREY, "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": FAINT, "grid.linewidth": 0.6,
    "axes.axisbelow": True, "legend.frameon": False, "legend.fontsize": 8, "lines.linewidth": 1.6, "figure.constrained_layout.use": True,
    "svg.fonttype": "none", "svg.hashsalt": "lethe",
})


def look(name, position=0):
    """Colour and dash of a variant's line: its own where it has one in every figure, else the next of the palette."""
    colour, dash = CONTROL if name.startswith("Window of ") else FAMILIES.get(name, (position % len(COLOURS), position % len(DASHES)))
    return {"color": COLOURS[colour], "linestyle": DASHES[dash]}


def panels(columns, width=11.0, height=4.0, **options):
    """A figure of panels side by side."""
    return plt.subplots(1, columns, figsize=(width, height), squeeze=False, **options)


def legend_below(axes, columns=2):
    """The legend under the label of the x axis, so that it is never over data."""
    lines = 1 + axes.get_xlabel().count("\n")
    below = axes.transAxes + ScaledTranslation(0, -(24 + 12 * lines) / 72, axes.figure.dpi_scale_trans)
    axes.legend(loc="upper left", bbox_to_anchor=(0, 0), bbox_transform=below, ncols=columns, borderaxespad=0)


def bars_within(axes, places, values, low, high, height=0.36, **options):
    """Horizontal bars on an axis from `low` to `high`. A bar that is longer ends there with two white strokes and its value beside it."""
    axes.barh(places, [min(max(value, low), high) for value in values], height=height, **options)
    for place, value in zip(places, values):
        if low <= value <= high or value != value:
            continue
        edge, side = (high, 1) if value > high else (low, -1)
        for inset in (0.025, 0.04):
            axes.plot(edge - side * inset * (high - low), place, marker=(2, 0, -20), color="white", markersize=11, markeredgewidth=1.4, zorder=5)
        axes.annotate(f"{value:.2f}", (edge, place), xytext=(3 * side, 0), textcoords="offset points", ha="left" if side > 0 else "right",
                      va="center", fontsize=7, annotation_clip=False, gid="cut")
    axes.set_xlim(low, high)


def count_tokens(axes):
    """Ticks of the x axis as 100k, 2M."""
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def log_positions(axes, first, last):
    """The x axis of positions `first` to `last` in powers of two."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(first, last)
    axes.set_xticks([2**power for power in range(1, 40) if first <= 2**power <= last])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def mark_training_length(axes, length):
    axes.axvline(length, color=GREY, linewidth=1, linestyle=DASHES[1])
    axes.annotate("training length", (length, 1), xycoords=("data", "axes fraction"), xytext=(-2, 3), textcoords="offset points",
                  ha="right", va="bottom", fontsize=7, color=GREY, annotation_clip=False)


class RoundedLayout(ConstrainedLayoutEngine):
    """Constrained layout with rounded positions. Its solver sums in the order of addresses, so that the last bits differ between runs, and with them
    the names of clip paths in SVG, which are hashes of their coordinates."""

    def execute(self, figure):
        super().execute(figure)
        for part in figure.subfigs:
            part.bbox_relative.set_points(part.bbox_relative.get_points().round(6))
        for axes in figure.axes:
            axes.set_position(Bbox(axes.get_position(original=True).get_points().round(6)))


def save(figure, path):
    """Writes SVG (or what the file's ending asks for) without a date in it, so that the same data give the same file."""
    buffer = io.BytesIO()
    kind = path.suffix.removeprefix(".") or "svg"
    figure.set_layout_engine(RoundedLayout())
    figure.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else None)
    plt.close(figure)
    write_whole(path, buffer.getvalue())
