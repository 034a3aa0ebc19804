"""training_grid.json of tools/training_grid.py as tables: a line a size and context, speeds beside one another, and memory and share of the limit."""

from statistics import median

from report.files import BadResult, read_json
from report.markdown import commit_words, table

TRAINING_GRID = "training_grid"
MODELS = {"fox-pro": "FoX (Pro)", "fox-pro+acp": "FoX (Pro), pruned", "transformer-llama": "Transformer (LLaMA)",
          "transformer-pro": "Transformer (Pro)"}
MEMBERS = ("tokens", "seconds_a_step", "flops_per_token", "product_flops_per_second")


def training_grid_data(folder):
    """The folder's file, where it has one: a list of one or none."""
    return [path] if (path := folder / f"{TRAINING_GRID}.json").exists() else []


def grid_cells(path):
    """The cells that have a time, by size, context and model, with their tokens a second."""
    cells = {}
    for cell in read_json(path, ("cells",))["cells"]:
        if cell.get("model") not in MODELS:
            raise BadResult(f"{path}: expected one of {', '.join(MODELS)}, found {cell.get('model')}")
        if cell["error"] is None:
            for name in MEMBERS:
                if name not in cell:
                    raise BadResult(f"{path}: {cell['size']} {cell['model']} {cell['context']}: expected {name}, found none")
            cells[cell["size"], cell["context"], cell["model"]] = cell | {"speed": cell["tokens"] / median(cell["seconds_a_step"])}
    return cells


def lines_of(path, text_of, columns):
    """A row a size and context, with what `text_of` makes of the cells of each."""
    cells = grid_cells(path)
    places = sorted({(int(size.removesuffix("m")), context) for size, context, _ in cells})
    rows = [[f"{size}M, {context}", *text_of({model: cells[f"{size}m", context, model] for model in MODELS if (f"{size}m", context, model) in cells})]
            for size, context in places]
    return table(["parameters, context", *columns], rows) if rows else "No cell has been measured yet.\n"


def training_grid_table(path):
    """Tokens a second of each model; what pruning gains, and FoX over the Transformer of its architecture."""

    def text_of(cells):
        speed = {model: cell["speed"] for model, cell in cells.items()}
        ratio = lambda one, other: f"{speed[one] / speed[other]:.3f}" if one in speed and other in speed else ""
        return [*(f"{speed[model]:.0f}" if model in speed else "" for model in MODELS), ratio("fox-pro+acp", "fox-pro"),
                ratio("fox-pro", "transformer-pro"),
                ratio("fox-pro", "transformer-llama")]

    return lines_of(path, text_of, [f"{name}, tokens/s" for name in MODELS.values()] + ["pruned × unpruned", "FoX (Pro) × Transformer (Pro)",
                                                                                        "× Transformer (LLaMA)"])


def limits_table(path):
    """Share of the limit without pruning, and GiB at most."""

    def text_of(cells):
        def text(model):
            if model not in cells:
                return ""
            cell = cells[model]
            share = 100 * cell["speed"] * cell["flops_per_token"] / cell["product_flops_per_second"]
            return f"{share:.0f} %" + (f", {cell['peak_bytes'] / 2**30:.1f}" if "peak_bytes" in cell else "")
        return [text(model) for model in MODELS]

    return lines_of(path, text_of, list(MODELS.values()))


def taken_apart(path):
    """A line a size of which not all models took turns with one another: which did, and at which contexts."""
    groups, found = {}, {}
    for (size, context, model), cell in grid_cells(path).items():
        groups.setdefault((size, context), {})[frozenset((model, *cell.get("in_turn_with", ())))] = None
    for (size, context), several in groups.items():
        if len(several) > 1:
            words = "; ".join(" and ".join(name for model, name in MODELS.items() if model in group) for group in several)
            found.setdefault((size, words), []).append(str(context))
    return "".join(f"Not in turn: {size.upper()} at {', '.join(contexts)}, one after the other {words}.\n\n"
                   for (size, words), contexts in found.items())


def training_grid_page(path):
    found = read_json(path, ("cells", "rounds", "slot_seconds", "commit", "gpu", "driver", "torch", "date", "tokens_a_step"))
    failed = [f"{cell['size']} {cell['model']} {cell['context']}: {cell['error']}" for cell in found["cells"] if cell["error"]]
    return (
        f"# Training speed by size and context\n\n{training_grid_table(path)}\nA step is {found['tokens_a_step']} tokens in bfloat16, forward, "
        f"backward, clipping and AdamW; "
        f"a cell is the median of {found['rounds']} rounds of {found['slot_seconds']} s, "
        "the models of a line in turn in every round. FoX's gates are set by hand: seven heads of ten forget within tens of tokens. What [trained "
        "gates](../nvidia-h200-gpu/savings.md) give at 125M is apart.\n\nThe share that the step's FLOPs, all pairs of its attention included, have "
        "of "
        f"one large product's in the same time, and GiB at most:\n\n{limits_table(path)}\n"
        + taken_apart(path) + "".join(f"Failed: {failure}\n\n" for failure in failed)
        + f"`tools/training_grid.py`; commit {commit_words(found['commit'], found.get('dirty'))}; {found['gpu']}, driver {found['driver']}, torch "
          f"{found['torch']}; {found['date']}.\n"
    )
