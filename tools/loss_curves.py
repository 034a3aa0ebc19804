#!/usr/bin/env python3
"""The suite's fused operators beside the same model composed of PyTorch's own: the losses of the same training steps.

usage: tools/loss_curves.py [--build build/cuda] [--case 125m:4096:fox-pro …] [--steps 300] [--device cuda] [--output FILE.json]

From the same weights both take AdamW's steps on the same texts, of a Markov chain whose symbols have four successors: the loss falls from that of the
vocabulary towards ln 4. On a GPU in bfloat16 with float32 weights, on the CPU in float32. Fused is `lethe bench`; composed is examples/fox.py, not
compiled, of which attention alone is our operator (with a forget gate; else PyTorch's). The means of every 20 steps may be 0.01 nats apart.

Exit status: 0 equal, 1 not, 2 where something is missing.
"""
import one_line_errors  # noqa: F401  (first: an error is one line)
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from compare_training import SIZES, mlp_width

ROOT = pathlib.Path(__file__).resolve().parents[1]
SIZES = {**SIZES, "tiny": (2, 64, 2)}
BATCHES, WARM_UP, LEARNING_RATE = 8, 3, 3e-4  # WARM_UP: steps that `lethe bench --serve` takes before it is ready
WINDOW, APART = 20, 0.01
SYMBOLS, SUCCESSORS = 2048, 4


def text_of(torch, vocabulary, rows, length):
    """[rows, length+1] of the chain, whose start and steps are drawn from one seed."""
    generator = torch.Generator().manual_seed(1)
    symbols = min(SYMBOLS, vocabulary)
    successors = torch.randint(symbols, (symbols, SUCCESSORS), generator=generator)
    choices = torch.randint(SUCCESSORS, (rows, length), generator=generator)
    columns = [torch.randint(symbols, (rows,), generator=generator)]
    for t in range(length):
        columns.append(successors[columns[-1], choices[:, t]])
    return torch.stack(columns, 1)


def fused(options, case, weights):
    size, length, architecture = case
    layers, width, heads = SIZES[size]
    command = [f"{options.build}/bin/lethe", "bench", "--serve", "--architecture", architecture, "--layers", layers, "--width", width, "--heads",
               heads,
               "--context", length, "--batch-tokens", options.batch_tokens, "--device", options.device, "--learning-rate", LEARNING_RATE, "--weights",
               weights,
               "--set", f"vocabulary={options.vocabulary}", "--set", f"compute_dtype={'bfloat16' if options.device == 'cuda' else 'float32'}"]
    run = subprocess.run(list(map(str, command)), input=f"losses {options.steps}\n", capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"loss_curves: {(run.stderr.strip().splitlines() or ['lethe bench failed'])[-1]}")
    return json.loads(run.stdout.splitlines()[1])


def in_groups(model):
    """Parameters as the suite's AdamW has them: matrices alone decay."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() != 2]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]


def composed(torch, options, model, text):
    device = options.device
    model.to(device)
    batches = [(one[:, :-1].contiguous().to(device), one[:, 1:].contiguous().to(device)) for one in text.chunk(BATCHES)]
    optimizer = torch.optim.AdamW(in_groups(model), lr=LEARNING_RATE, betas=(0.9, 0.95))
    losses = []
    for step in range(WARM_UP + options.steps):
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = model.losses(*batches[step % BATCHES]).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses[WARM_UP:]


def compare(torch, fox, options, text_of_case):
    size, length, architecture = text_of_case.split(":")
    case = size, int(length), architecture
    layers, width, heads = SIZES[size]
    pro, forgets = architecture.endswith("pro"), architecture.startswith("fox")
    torch.manual_seed(0)
    model = fox.LanguageModel(fox.Config(options.vocabulary, layers, width, heads, mlp_width(width, pro), pro, forgets))
    text = text_of(torch, options.vocabulary, BATCHES * options.batch_tokens // case[1], case[1])
    with tempfile.TemporaryDirectory() as folder:
        from safetensors.torch import save_file

        save_file(dict(model.state_dict(), text=text), f"{folder}/weights.safetensors")
        ours = fused(options, case, f"{folder}/weights.safetensors")
    theirs = composed(torch, options, model, text)
    mean = lambda losses, first: sum(losses[first:first + WINDOW]) / len(losses[first:first + WINDOW])
    apart = max(abs(mean(ours, first) - mean(theirs, first)) for first in range(0, options.steps, WINDOW))
    return {"case": text_of_case, "fused": ours, "composed": theirs, "apart": apart, "equal": apart <= APART}  # NaN is not equal


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(ROOT / "build/cuda"))
    parser.add_argument("--case", nargs="+", default=["125m:4096:fox-pro", "125m:4096:fox-llama", "125m:4096:transformer-llama"],
                        help="SIZE:LENGTH:MODEL, as of tools/compare_training.py, without ACP")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-tokens", type=int, default=32768)
    parser.add_argument("--vocabulary", type=int, default=50304)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--output", help="JSON file of all losses")
    options = parser.parse_args()
    for text in options.case:
        size, length, architecture = (*text.split(":"), "", "", "")[:3]
        if size not in SIZES or not length.isdecimal() or not int(length) or architecture not in ("fox-pro", "fox-llama", "transformer-llama"):
            sys.exit(f"loss_curves: --case: expected SIZE:LENGTH:MODEL such as 125m:4096:fox-pro, found {text}")
        if options.batch_tokens % int(length):
            sys.exit(f"loss_curves: --batch-tokens: expected a multiple of {length}, found {options.batch_tokens}")
    import torch

    libraries = sorted(pathlib.Path(options.build).rglob("liblethe_torch.so"))
    for holds, what in ((options.device == "cpu" or torch.cuda.is_available(), "a CUDA GPU"),
                        (libraries, f"liblethe_torch.so below {options.build}")):
        if not holds:
            print(f"loss_curves: expected {what}, found none", file=sys.stderr)
            sys.exit(2)
    torch.ops.load_library(str(libraries[0]))
    sys.path.insert(0, str(ROOT / "examples"))
    import fox

    results = []
    for text in options.case:
        results.append(compare(torch, fox, options, text))
        found = results[-1]
        print(f"{text}: {options.steps} steps from {found['fused'][0]:.3f} to {found['fused'][-1]:.3f} nats; means of {WINDOW} at most "
              f"{found['apart']:.4f} apart", flush=True)
        if options.output:
            pathlib.Path(options.output).write_text(json.dumps({"device": options.device, "steps": options.steps, "results": results}, indent=1)
                                                    + "\n")
    sys.exit(not all(found["equal"] for found in results))


if __name__ == "__main__":
    main()
