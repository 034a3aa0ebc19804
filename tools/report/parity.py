"""The page of tools/parity.py: our FoX beside the official code."""
from report.markdown import commit_words

ARCHITECTURES = {"fox-llama": "FoX (LLaMA)", "fox-pro": "FoX (Pro)"}
AT_MOST = 2.0  # times our own distance


def faults(found):
    """What of one architecture is not equal."""
    blind = [] if found["once"].get("found_with_another_epsilon", True) else ["another epsilon, which is not found"]
    return found["once"]["apart"] + blind + [name for name in ("suite", "training") if (found[name] or {}).get("apart")]


def page(result):
    """The result as Markdown."""
    scale, on_cpu = result["scale"], result["device"] == "cpu"
    exact, narrow = ("float64", "float32") if on_cpu else ("float32", "bfloat16")
    found = [result[name] for name in ARCHITECTURES]
    rows = []

    def row(title, cell):
        rows.append(f"| {title} | {' | '.join(str(cell(one)) for one in found)} |")

    def farthest(one, which):
        return f"{max(row[which] for row in one['once']['gradients'].values()):.1e}"

    def course(one, whose):
        return " → ".join(f"{one['training']['losses'][whose][step]:.4f}" for step in (0, -1))

    row("parameters, all with the official name and shape", lambda one: len(one["once"]["gradients"]))
    row("loss, official (nats)", lambda one: f"{one['once']['loss']['theirs']:.7f}")
    row("loss, ours", lambda one: f"{one['once']['loss']['ours']:.7f}")
    row(f"loss, ours in {exact}", lambda one: f"{one['once']['loss']['exact']:.7f}")
    row("farthest gradient, official to ours", lambda one: farthest(one, "between"))
    row(f"farthest gradient, official to {exact}", lambda one: farthest(one, "theirs"))
    row(f"farthest gradient, ours to {exact}", lambda one: farthest(one, "ours"))
    row("beyond rounding", lambda one: ", ".join(faults(one)) or "nothing")
    if on_cpu:
        row("gradients beyond it with ten times our epsilon",
            lambda one: f"{len(one['once']['found_with_another_epsilon'])} of {len(one['once']['gradients'])}")
    if all(one["suite"] for one in found):
        row("loss of `lethe` less official (nats)", lambda one: f"{one['suite']['differences']['loss']:+.1e}")
        row("gradient norm of `lethe` over official, − 1", lambda one: f"{one['suite']['differences']['gradient_norm']:+.1e}")
        row("loss of a model that `lethe` exported, less official", lambda one: f"{one['suite']['differences']['exported_loss']:+.1e}")
    row(f"loss over {scale['steps']} steps, official", lambda one: course(one, "theirs"))
    row(f"loss over {scale['steps']} steps, ours", lambda one: course(one, "ours"))
    means = "losses of a step" if scale["window"] == 1 else f"means of {scale['window']} steps"
    for name, title in (("ours", ""), ("lethe", " of `lethe`")):
        if all(name in one["training"]["at_most"] for one in found):
            row(f"{means}{title} at most apart", lambda one, name=name: f"{one['training']['at_most'][name]:.1e}")
    has_itself = all("itself" in one["training"] for one in found)  # results of earlier versions have none
    tuned = all(one["training"].get("again_in_last_configurations") for one in found)
    otherwise = f"sequences of a batch in reverse order{', tuned kernels in their last configuration' if tuned else ''}"
    if has_itself:
        row(f"{means}, official from itself, {otherwise}", lambda one: f"{one['training']['itself']:.1e}")
    for name, title in (("ours", "ours"), ("theirs", "official")):
        if all("from_exact" in one["training"] for one in found):
            row(f"{means}, {title} from {exact}, the first half", lambda one, name=name: f"{one['training']['from_exact'][name]:.1e}")
    of_itself = (f" or {AT_MOST:g} times as far as the official code's from itself, whichever is more; the latter was added after a run on a GPU "
                 f"whose FoX (LLaMA) was beyond the former{', the configurations after two more' if tuned else ''}" if has_itself else "")
    lines = [f"# Parity with the official code, on {'the CPU' if on_cpu else 'one GPU'}", "",
             f"`{result['command_line']}` at commit {commit_words(result['commit'], result['dirty'])}, {result['date'][:10]}, "
             f"{result['machine'].get('gpu', result['machine']['processor'])}; zhixuan-lin/forgetting-transformer at "
             f"{result['peer'][:7]}{' (as given)' if result.get('peer_is_given') else ''}; "
             f"{', '.join(' '.join(pair) for pair in result['versions'].items())}; seed {result['seed']}"
             f"{'; built of ' + result['built'][:12] if result['built'] else ''}.", "",
             f"The same weights and tokens: {scale['layers']} layers, width {scale['width']}, {scale['heads']} heads, "
             f"{scale['sequences']} × {scale['length']} tokens, {narrow}.", "",
             f"| | {' | '.join(ARCHITECTURES.values())} |", "|---|" + "---|" * len(ARCHITECTURES), *rows, "",
             f"A gradient's distance is relative; of all parameters the farthest. Beyond rounding is farther from {exact} than {AT_MOST:g} times our "
             f"distance and {scale['floor']:g}, and a course more than {scale['courses']:g} nats from ours{of_itself}."]
    if result["replaced"]:
        lines += ["", "The official kernels ran in Triton's interpreter. Other than on a GPU:", "", *(f"* {line}" for line in result["replaced"])]
    return "\n".join(lines) + "\n"
