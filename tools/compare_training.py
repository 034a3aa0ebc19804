#!/usr/bin/env python3
"""Training steps per second beside PyTorch's, on one GPU: the same weights, the same tokens, the same losses, then the time of each in turn.

usage: tools/compare_training.py [--build build/cuda] [--case 125m:4096:fox-pro …] [--gpus 2 4] [--prompts 125m:16384:fox-pro …] [--rounds 9]
                                 [--slot 2.0] [--output FILE.json]
       tools/compare_training.py --fla .peers/flash-linear-attention --case 125m:4096:mamba2 125m:4096:hgrn2 125m:4096:gla … [--output FILE.json]

A row is a process that takes steps on command, so that only one works at a time; the order is random in every round, the figure the median (760m, of
which two do not fit: one row after another). A step is forward, backward, clipping and AdamW on 32768 tokens in bfloat16 with float32 master weights.
A row whose loss is not within 0.5 % of the first row's of its model, or whose gradient norm is not within 1 %, has no time. A row or case that fails
costs the others nothing, and a row that gives no answer for --row-limit seconds is ended; what takes long is named on standard error.

  lethe        this suite: lethe bench
  compiled     the same model in PyTorch under torch.compile (examples/fox.py): cuDNN's attention, or our operator where there are gates
  official     FoX in the official code, where it lies in --peer (see tools/parity.py): torch.compile's rival's step around its Triton kernels
  N GPUs       with --gpus: lethe bench --gpus N, as many tokens a GPU
  fla          a recurrent model in FLA (tools/fla_models.py), with bfloat16 copies of float32 weights, all its fusions, and the kernels it says
  fla-compiled the same under torch.compile
  fla-gla      FLA's Mamba-2 by FLA's own kernels, under torch.compile, where --rows names it
"""
import one_line_errors  # first: an error is one line
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

from fla_models import ARCHITECTURES as RECURRENT, fla_model, fla_step, import_fla, our_state, tell_what_triton_compiles, with_triton
from long_work import telling_what_is_long
from official_fox import import_official, official_model
from report.files import write_whole
from training_rows import PATIENCE, Row, measure

ROOT = pathlib.Path(__file__).resolve().parents[1]
SIZES = {"125m": (12, 768, 12), "360m": (24, 1024, 16), "760m": (24, 1536, 24)}  # layers, width, heads
LARGE = {"760m"}  # two of them do not fit a GPU of 140 GiB
OFFICIAL_TOKENS = {"760m": 16384}  # of a micro-batch, as in the official configurations; else all
VOCABULARY, TOKENS = 50304, 32768
FLA_ROWS = ("fla", "fla-compiled", "fla-gla")
LOG_TOLERANCE = -10.0


def mlp_width(width, pro):
    return 256 * -(-int(width * (3.5 if pro else 4) * 2 / 3) // 256)


class Case:
    """A model, a length, and its gates: transformer-llama, fox-llama, fox-pro, or fox-pro+acp; or a recurrent one of fla_models.py, of the checkout
    `fla`."""

    def __init__(self, text, fla=None):
        self.size, length, self.name = (*text.split(":"), "", "", "")[:3]
        self.length, self.text = int(length) if length.isdecimal() else 0, text
        self.architecture = self.name.removesuffix("+acp")
        self.prunes = self.name.endswith("+acp")
        self.pro, self.forgets = self.architecture.endswith("pro"), self.architecture.startswith("fox")
        self.recurrent, self.fla = self.name in RECURRENT, fla
        known = self.architecture in ("transformer-llama", "fox-llama", "fox-pro", *(() if self.prunes else RECURRENT))
        if text.count(":") != 2 or self.size not in SIZES or self.length < 1 or TOKENS % self.length or not known:
            raise ValueError(f"--case: expected SIZE:LENGTH:MODEL such as 125m:4096:fox-pro, found {text}")
        if self.recurrent and not fla:
            raise ValueError(f"--fla: expected a checkout of FLA, which draws the weights of {text}, found none")

    def model(self):
        import torch

        sys.path.insert(0, str(ROOT / "examples"))
        import fox

        layers, width, heads = SIZES[self.size]
        if self.recurrent:
            models = import_fla(self.fla)
            torch.manual_seed(0)
            return fla_model(models, self.name, VOCABULARY, layers, width, heads)
        torch.manual_seed(0)
        model = fox.LanguageModel(fox.Config(VOCABULARY, layers, width, heads, mlp_width(width, self.pro), self.pro, self.forgets,
                                             log_pruning_tolerance=LOG_TOLERANCE if self.prunes else None, prune_by_mass=False))
        if self.prunes:  # seven heads of ten are local
            for layer in model.model.layers:
                bias = layer.attn.fgate_proj.bias.data.fill_(9.2)
                bias[: (7 * heads + 5) // 10] = 2.25
        elif self.forgets:
            for layer in model.model.layers:
                layer.attn.fgate_proj.bias.data.zero_()
        return model

    def text_tokens(self):
        import torch

        return torch.randint(VOCABULARY, (TOKENS // self.length, self.length + 1), generator=torch.Generator().manual_seed(1))

    def write(self, path):
        from safetensors.torch import save_file

        state = self.model().state_dict()
        save_file(dict(our_state(state) if self.recurrent else state, text=self.text_tokens()), path)


def read_weights(path):
    """The state, tokens and labels, as Case.write leaves them."""
    from safetensors.torch import load_file

    state = load_file(path)
    text = state.pop("text").cuda()
    return state, text[:, :-1].contiguous(), text[:, 1:].contiguous()


def serve_compiled(case, weights, library):
    """Steps of examples/fox.py on command."""
    import torch

    torch.ops.load_library(library)
    state, tokens, labels = read_weights(weights)
    model = case.model()
    model.load_state_dict(state)
    model.cuda()

    def loss_of(tokens, labels):
        return model.losses(tokens, labels).mean()

    compiled = torch.compile(loss_of)

    def backward():
        with torch.autocast("cuda", torch.bfloat16), torch.nn.attention.sdpa_kernel(
                [torch.nn.attention.SDPBackend.CUDNN_ATTENTION, torch.nn.attention.SDPBackend.FLASH_ATTENTION], set_priority=True):
            loss = compiled(tokens, labels)
        loss.backward()
        return loss

    serve(model, backward)


def serve_official(case, weights, peer):
    """Steps of the official code on command."""
    import torch

    state, tokens, labels = read_weights(weights)
    layers, width, heads = SIZES[case.size]
    model = official_model(import_official(peer), case.pro, VOCABULARY, layers, width, heads, LOG_TOLERANCE if case.prunes else None)
    model.load_state_dict(state)
    model.cuda().train()
    sequences = max(1, OFFICIAL_TOKENS.get(case.size, TOKENS) // case.length)
    pieces = list(zip(tokens.split(sequences), labels.split(sequences)))

    def backward():
        losses = []
        for own_tokens, own_labels in pieces:
            with torch.autocast("cuda", torch.bfloat16):
                losses.append(model(own_tokens, labels=own_labels).loss.mean() / len(pieces))
            losses[-1].backward()
        return torch.stack(losses).detach().sum()

    serve(model, backward)


def serve_fla(case, weights, row):
    """Steps of FLA on command; the file has the same weights, as the seed draws them, in our shapes."""
    tell_what_triton_compiles()
    _, tokens, labels = read_weights(weights)
    masters, backward, figures = fla_step(case.model().cuda().train(), own_kernels=row == "fla-gla", compiled=row != "fla")
    serve(masters, lambda: backward(tokens, labels), figures)


def serve(model, backward, figures=None):
    """Steps on command, as `lethe bench --serve`."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step():
        backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    loss = backward().item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
    optimizer.zero_grad()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    print("ready", json.dumps({"loss": loss, "gradient_norm": norm, "tokens": TOKENS, **(figures or {})}), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line.split()[1])):
            step()
        torch.cuda.synchronize()
        print(time.perf_counter() - start, flush=True)


def runs(row, case):
    of_fla = case.recurrent and (row != "fla-gla" or case.name == "mamba2")
    return of_fla if row in FLA_ROWS else row == "lethe" or not case.recurrent and (row != "official" or case.forgets)


def commands(case, options, weights):
    """The rows of a case, by name: the processes that take its steps."""
    lethe = [*bench(case, options), "--serve", "--batch-tokens", str(TOKENS), "--learning-rate", "1e-3", "--weights", weights]
    place = lethe.index("--batch-tokens") + 1
    tool = [sys.executable, __file__]
    known = {"lethe": lethe, "compiled": [*tool, "--serve", case.text, weights, options.library],
             "official": [*tool, "--serve-official", case.text, weights, options.peer],
             **{row: [*tool, "--serve-fla", case.text, weights, row, str(case.fla)] for row in FLA_ROWS}}
    chosen = {name: command for name, command in known.items() if name in options.rows and runs(name, case)}
    return chosen | {f"{count} GPUs": [*lethe[:place], str(count * TOKENS), *lethe[place + 1:], "--gpus", str(count)] for count in options.gpus}


def run_rows(case, options, weights, rows):
    """Appends the rows of a case to `rows`, each with its times or its error."""
    with telling_what_is_long(f"{case.text}, the weights", PATIENCE):
        case.write(weights)
    for name, command in commands(case, options, weights).items():
        rows.append(Row(name, command, case=case.text, limit=options.row_limit))
        rows[-1].wait_until_ready()  # one after another: compilation and warm-up overlap no measurement
        if case.size in LARGE:  # memory for one: the rows run one after another
            measure(rows[-1:], options.rounds, options.slot)
            rows[-1].end()
    working = [row for row in rows if row.error is None]
    if case.recurrent and working and working[0].name == "lethe":
        described = subprocess.run([bench(case, options)[0], "describe", *bench(case, options)[2:]], capture_output=True, text=True,
                                   check=True).stdout
        working[0].figures["parameters"] = int(re.search(r"^ *parameters +(\d+)", described, re.MULTILINE)[1])
    for row in working[1:]:
        first = working[0].figures
        for figure, bound in (("loss", 0.005), ("gradient_norm", 0.01), ("parameters", 0.001)):
            if figure in first.keys() & row.figures.keys() and not abs(row.figures[figure] / first[figure] - 1) < bound:
                row.error = f"{figure}: expected {first[figure]:.5g} within {bound:.1%} as {working[0].name}, found {row.figures[figure]:.5g}"
    if case.size not in LARGE:
        measure(working, options.rounds, options.slot)


def compare(case, options):
    """The results of a case, a row each. An error that is not a row's own is that of all its rows: no reason to lose the other cases."""
    rows = []
    try:
        with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
            try:
                run_rows(case, options, f"{folder}/weights.safetensors", rows)
            finally:
                for row in rows:
                    row.end()
    except Exception as error:
        reason = one_line_errors.words(type(error), error, error.__traceback__)
        return [{"case": case.text, "row": name, "error": reason} for name in commands(case, options, "")]
    return [{"case": case.text, "row": row.name, "error": row.error, **row.figures, **speeds(row)} for row in rows]


def speeds(row):
    if row.error is not None or not row.times:
        return {}
    tokens = row.figures["tokens"]
    return {"tokens_per_second": tokens / statistics.median(row.times), "fastest": tokens / min(row.times), "slowest": tokens / max(row.times)}


def bench(case, options):
    """lethe bench of the case's model and gates on a GPU."""
    pruning = ["--set", f"log_pruning_tolerance={LOG_TOLERANCE}", "--gates", "bimodal"] if case.prunes else []
    return [f"{options.build}/bin/lethe", "bench", "--size", case.size, "--architecture", case.architecture, "--context", str(case.length),
            "--device", "cuda",
            "--set", "compute_dtype=bfloat16", "--set", f"vocabulary={VOCABULARY}", *pruning]


def prompt_of(case, options):
    """One prompt of the case's length, read as evaluations read it: milliseconds, and on a GPU the bytes beyond the weights."""
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        figures = pathlib.Path(folder) / "prompt.json"
        subprocess.run([*bench(case, options), "--prompt", "--batch-tokens", str(case.length), "--seconds", str(options.slot), "--json",
                        str(figures)],
                       check=True, stdout=subprocess.DEVNULL)
        return {"case": case.text, **json.loads(figures.read_text())}


def table(found):
    """The page of a comparison: a line a case, our speed over that of the same model compiled by PyTorch, and over those of the official code and
    FLA."""
    rows = {result["row"] for result in found["results"]}
    rivals = [(row, name) for row, name in (("compiled", "compiled by PyTorch"), ("official", "official code"), ("fla", "FLA")) if row in rows]
    lines = [f"# Training steps on one {found['gpu']}", "",
             f"`tools/compare_training.py` at commit {found['commit'][:12]}, {found['date'][:10]}, torch {found['torch']}, driver "
             f"{found['driver']}: medians of "
             f"{found['rounds']} rounds of {found['slot_seconds']} s in turn; a step is {found['tokens_a_step']} tokens in bfloat16, forward, "
             f"backward, clipping and "
             "AdamW. The same weights and tokens gave the same loss.", "",
             f"| model | tokens/s, lethe |{''.join(f' {name} | ratio |' for _, name in rivals)}", "|---|---|" + "---|---|" * len(rivals)]
    cases = dict.fromkeys(result["case"] for result in found["results"])
    gib = {result["case"]: f"{result['peak_bytes'] / 2**30:.1f}" for result in found["results"] if result["row"] == "lethe"
           and "peak_bytes" in result}
    if gib:
        lines[-2] += " GiB at most, lethe |"
        lines[-1] += "---|"
    speeds_of = {case: {result["row"]: result.get("tokens_per_second") for result in found["results"] if result["case"] == case} for case in cases}
    figure = lambda speed: f"{speed:.0f}" if speed else "–"
    ratio = lambda speed, other: f"{speed / other:.3f}" if speed and other else "–"
    for case, speeds in speeds_of.items():
        speeds["fla"] = max((speeds[row] for row in FLA_ROWS if speeds.get(row)), default=None)
        ours = speeds.get("lethe")
        figures = [figure(ours)] + [text for row, _ in rivals for text in (figure(speeds.get(row)), ratio(ours, speeds.get(row)))]
        figures += [gib.get(case, "–")] if gib else []
        lines.append(f"| {case.replace(':', ', ')} | {' | '.join(figures)} |")
    if "compiled" in rows:
        lines += ["", "The Transformer's rival has cuDNN's attention, FoX's our operator: `examples/fox.py` under `torch.compile`."]
    if "fla" in rows:
        lines += ["", f"FLA's speed is the highest of the rows {', '.join(row for row in FLA_ROWS if row in rows)}, which `--help` "
                      f"describes{with_triton(found['results'])}."]
    several = sorted((row for row in rows if row.endswith(" GPUs")), key=lambda row: int(row.split()[0]))
    if several:
        lines += ["", f"Data parallel, {found['tokens_a_step']} tokens a GPU and step:", "",
                  f"| model | tokens/s, one GPU | {' | '.join(f'{row} | of one' for row in several)} |", "|---|---|" + "---|---|" * len(several)]
        for case, speeds in speeds_of.items():
            one = speeds.get("lethe")
            figures = [figure(one)] + [text for row in several for text in (figure(speeds.get(row)), ratio(speeds.get(row), one))]
            lines.append(f"| {case.replace(':', ', ')} | {' | '.join(figures)} |")
    if found.get("prompts"):
        lines += ["", "One prompt, read as evaluations read it:", "", "| model | ms | GiB beyond the weights |", "|---|---|---|"]
        lines += [f"| {prompt['case'].replace(':', ', ')} | {prompt['milliseconds']:.1f} | {prompt['bytes_beyond_the_weights'] / 2**30:.2f} |"
                  for prompt in found["prompts"]]
    return "\n".join(lines) + "\n"


def certificate():
    import datetime

    import torch

    def said(*command):
        result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        return result.stdout.strip() if result.returncode == 0 else "unknown"

    commit = os.environ.get("LETHE_COMMIT") or said("git", "rev-parse", "HEAD")
    driver = said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()[0]
    return {"gpu": torch.cuda.get_device_name(), "driver": driver, "torch": torch.__version__, "commit": commit,
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "tokens_a_step": TOKENS}


def main():
    if sys.argv[1:2] == ["--serve"]:
        return serve_compiled(Case(sys.argv[2]), sys.argv[3], sys.argv[4])
    if sys.argv[1:2] == ["--serve-official"]:
        return serve_official(Case(sys.argv[2]), sys.argv[3], sys.argv[4])
    if sys.argv[1:2] == ["--serve-fla"]:
        return serve_fla(Case(sys.argv[2], sys.argv[5]), sys.argv[3], sys.argv[4])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(ROOT / "build/cuda"))
    parser.add_argument("--library", default=None, help="liblethe_torch.so (default: the build's)")
    parser.add_argument("--case", nargs="+", default=["125m:4096:transformer-llama", "125m:4096:fox-llama", "125m:4096:fox-pro",
                                                      "125m:4096:fox-pro+acp",
                                                      "760m:16384:transformer-llama", "760m:16384:fox-pro", "760m:16384:fox-pro+acp"])
    parser.add_argument("--rows", nargs="+", default=["lethe", "compiled", "official", *FLA_ROWS[:2]],
                        choices=["lethe", "compiled", "official", *FLA_ROWS])
    parser.add_argument("--gpus", nargs="+", default=[], type=int, help="also so many of them, data parallel")
    parser.add_argument("--prompts", nargs="+", default=[], metavar="CASE",
                        help="read one prompt each of such cases, too: of a length that divides a step's tokens")
    parser.add_argument("--peer", default=str(ROOT / ".peers/forgetting-transformer"), help="the official code; without it there is no such row")
    parser.add_argument("--fla", default=None, help="a checkout of FLA, for recurrent models")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--slot", type=float, default=2.0, help="seconds of a row in a round")
    parser.add_argument("--row-limit", type=float, default=1800.0, metavar="SECONDS",
                        help="for a row's first step, with compilation, and for any later answer")
    parser.add_argument("--scratch", default=None, help="a folder for the weights (default: the system's)")
    parser.add_argument("--output", default=None)
    options = parser.parse_args()
    options.library = options.library or next(iter(sorted(map(str, pathlib.Path(options.build).rglob("liblethe_torch.so")))), "")
    try:
        cases, prompts = [Case(text, options.fla) for text in options.case], [Case(text, options.fla) for text in options.prompts]
    except ValueError as error:
        sys.exit(f"compare_training: {error}")
    if options.output and not pathlib.Path(options.output).parent.is_dir():
        sys.exit(f"compare_training: --output: expected a file in a folder that exists, found {options.output}")
    if not (pathlib.Path(options.peer) / "src/forgetting_transformer").is_dir():
        options.rows = [row for row in options.rows if row != "official"]
    results, provenance = [], certificate()
    if prompts:
        provenance["prompts"] = [prompt_of(case, options) for case in prompts]
        for prompt in provenance["prompts"]:
            print(f"{prompt['case']:32}{'prompt':12}{prompt['milliseconds']:>8.1f} ms", flush=True)
    print(f"{'case':32}{'row':12}{'tokens/s':>10}{'range':>20}{'loss':>10}")
    for case in cases:
        for result in compare(case, options):
            results.append(result)
            if "tokens_per_second" in result:
                spread = f"{result['slowest']:.0f}–{result['fastest']:.0f}"
                print(f"{result['case']:32}{result['row']:12}{result['tokens_per_second']:>10.0f}{spread:>20}{result['loss']:>10.4f}"
                      f"{result.get('parameters', ''):>11}", flush=True)
            else:
                print(f"{result['case']:32}{result['row']:12}{result['error']}", flush=True)
        if options.output:
            found = {**provenance, "rounds": options.rounds, "slot_seconds": options.slot, "results": results}
            output = pathlib.Path(options.output)
            write_whole(output, json.dumps(found, indent=1) + "\n")
            write_whole(output.with_suffix(".md"), table(found))
    return int(any(result["error"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
