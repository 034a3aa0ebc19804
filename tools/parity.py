#!/usr/bin/env python3
"""Parity with the official code: its names and shapes, loss and gradients of one batch, then training steps of both from one start.

usage: tools/parity.py [--device cuda|cpu] [--peer FOLDER] [--peer-commit COMMIT] [--build build/DEVICE] [--steps N] [--length N] [--seed 0]
                       [--output FILE.json]

  git clone https://github.com/zhixuan-lin/forgetting-transformer .peers/forgetting-transformer
  git -C .peers/forgetting-transformer checkout 883f260
  tools/parity.py --device cpu --output results/MACHINE/official_parity.json     # some minutes; a page beside it

The official code is that of commit 883f260, which the result names: of its checkout, or where FOLDER is a copy without one, --peer-commit. It needs
triton, transformers, einops and pytest. Ours is examples/fox.py on this suite's operator, whose parameters have the official names.

  cuda  125M in bfloat16 autocast with float32 weights, 200 steps on 4 × 4096 tokens
  cpu   two layers in float32, 20 steps on 2 × 72 tokens; the official kernels in Triton's interpreter (tools/official_fox.py: what is replaced).
        Where `lethe` is built: its model with the official weights and as many steps, and the official model with weights that it exported

Judged against rounding. Exact is our model in float32 (cuda) or float64 (cpu). The distance of theirs to it may be at most twice that of ours, and
the scale's floor more: relative for a gradient, nats for the loss. Then both train on the same eight random batches with AdamW from the same weights;
means of a window of steps may be at most `courses` nats apart, or twice as far as those of the official code from its own with each batch's sequences
in reverse order and, on a GPU, every kernel that Triton tunes in the last of its configurations: only rounding tells these apart, as it does two
processes whose times tuned them otherwise. This was added after a run on a GPU whose FoX (LLaMA) was beyond the former, the configurations after two
more; how far both are from the exact course, of half the steps, is printed. On the CPU the same comparison must find our norms with ten times their
epsilon.

Exit status: 0 equal, 1 not, 2 where something is missing; the one line says what.
"""
import one_line_errors  # noqa: F401  (first: an error is one line)

import argparse
import datetime
import importlib.metadata
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from compare_training import mlp_width
from loss_curves import WARM_UP, in_groups
from official_fox import ON_THE_CPU, Missing, expect, import_official, last_configurations, official_model
from report.files import write_whole
from report.parity import ARCHITECTURES, AT_MOST, faults, page

ROOT = Path(__file__).resolve().parents[1]
LEARNING_RATE, BATCHES, EXPORT_STEPS = 1e-3, 8, 20
WIDEST = 768  # where matrices begin with a deviation of 0.02; narrower models have more, for products of the same size


@dataclass
class Scale:
    vocabulary: int
    layers: int
    width: int
    heads: int
    sequences: int
    length: int
    steps: int
    floor: float    # relative, or nats
    window: int     # steps
    courses: float  # nats


SCALES = {"cuda": Scale(50257, 12, 768, 12, 4, 4096, 200, floor=1e-3, window=20, courses=0.02),
          "cpu": Scale(500, 2, 128, 2, 2, 72, 20, floor=1e-5, window=1, courses=1e-4)}


def find_library(build):
    libraries = sorted(build.rglob("liblethe_torch.so"))
    expect(libraries, f"liblethe_torch.so below {build}", "none (tools/setup, then cmake --workflow --preset cpu, or cuda)")
    return libraries[0]


def import_all(options):
    """torch, our model's module and theirs."""
    import torch

    expect(options.device == "cpu" or torch.cuda.is_available(), "a CUDA GPU", "none (--device cpu is smaller and needs none)")
    theirs = import_official(options.peer, options.device)
    torch.ops.load_library(str(find_library(options.build)))
    sys.path.insert(0, str(ROOT / "examples"))
    import fox

    return torch, fox, theirs


def shapes(model):
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def unlike(ours, theirs):
    """A line a name that one of two has alone, or with another shape."""
    return [f"{name}: ours {ours.get(name, 'none')}, theirs {theirs.get(name, 'none')}"
            for name in sorted(ours | theirs) if ours.get(name) != theirs.get(name)]


class Rivals:
    """Ours, the exact one and theirs with the same weights."""

    def __init__(self, options, architecture):
        self.torch, self.fox, self.official = import_all(options)
        self.device, self.scale, self.seed, self.architecture = options.device, options.scale, options.seed, architecture
        scale, pro = options.scale, architecture == "fox-pro"
        config = self.fox.Config(scale.vocabulary, scale.layers, scale.width, scale.heads, mlp_width(scale.width, pro), pro)
        self.torch.manual_seed(options.seed)
        self.ours = self.start(self.fox.LanguageModel(config)).to(self.device)
        self.exact = self.fox.LanguageModel(config).to(self.device, self.torch.float32 if self.device == "cuda" else self.torch.float64)
        self.theirs = self.official_of(scale.vocabulary)
        found = unlike(shapes(self.ours), shapes(self.theirs))
        expect(not found, f"the official names and shapes in {architecture}", "; ".join(found[:3]))
        for model in (self.exact, self.theirs):
            model.load_state_dict(self.ours.state_dict())

    def official_of(self, vocabulary):
        of = self.scale
        return official_model(self.official, self.architecture == "fox-pro", vocabulary, of.layers, of.width, of.heads).to(self.device).train()

    def start(self, model):
        """Norms and biases unlike one another: equal ones would hide another's in their place."""
        with self.torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 2:
                    parameter.mul_(math.sqrt(WIDEST / self.scale.width))
                else:
                    parameter.add_(self.torch.randn_like(parameter), alpha=0.1)
        return model

    def text(self, step, vocabulary=None):
        generator = self.torch.Generator().manual_seed(1000 * self.seed + step)
        return self.torch.randint(vocabulary or self.scale.vocabulary, (self.scale.sequences, self.scale.length + 1), generator=generator)

    def batch(self, step):
        return self.shifted(self.text(step))

    def shifted(self, text):
        return text[:, :-1].contiguous().to(self.device), text[:, 1:].contiguous().to(self.device)

    def loss(self, model, tokens, labels):
        with self.torch.autocast(self.device, self.torch.bfloat16, enabled=self.device == "cuda" and model is not self.exact):
            return (model.losses(tokens, labels) if isinstance(model, self.fox.LanguageModel) else model(tokens, labels=labels).loss).mean()

    def gradients(self, model):
        """The first batch's loss, and every parameter's gradient."""
        model.zero_grad()
        loss = self.loss(model, *self.batch(0))
        loss.backward()
        found = {name: parameter.grad.double().flatten() for name, parameter in model.named_parameters()}
        model.zero_grad()
        return loss.item(), found


def distance(a, b):
    return ((a - b).norm() / b.norm().clamp_min(1e-30)).item()


def is_apart(ours, theirs, floor):
    """Whether theirs is farther from the exact one than rounding explains. NaN is."""
    return not theirs <= AT_MOST * ours + floor


def compare_once(rivals):
    """Loss and every parameter's gradient: theirs to ours, and both to the exact one."""
    our_loss, ours = rivals.gradients(rivals.ours)
    their_loss, theirs = rivals.gradients(rivals.theirs)
    exact_loss, exact = rivals.gradients(rivals.exact)
    rows = {name: {"shape": list(rivals.ours.get_parameter(name).shape), "between": distance(theirs[name], ours[name]),
                   "ours": distance(ours[name], exact[name]), "theirs": distance(theirs[name], exact[name])} for name in ours}
    floor = rivals.scale.floor
    apart = [name for name, row in rows.items() if is_apart(row["ours"], row["theirs"], floor)]
    if is_apart(abs(our_loss - exact_loss), abs(their_loss - exact_loss), floor):
        apart.append("loss")
    norm = math.sqrt(sum(gradient.square().sum().item() for gradient in theirs.values()))
    found = {"loss": {"ours": our_loss, "theirs": their_loss, "exact": exact_loss}, "their_gradient_norm": norm, "gradients": rows,
             "apart": apart}
    if rivals.device == "cpu":
        other = gradients_of_another_epsilon(rivals)
        found["found_with_another_epsilon"] = [name for name, row in rows.items()
                                               if is_apart(row["ours"], distance(theirs[name], other[name]), floor)]
    return found


def gradients_of_another_epsilon(rivals):
    """Of the exact model where its norms have ten times their epsilon."""
    true = rivals.fox.rms_norm
    rivals.fox.rms_norm = lambda x, weight, epsilon=1e-6: true(x, weight, 10 * epsilon)
    try:
        return rivals.gradients(rivals.exact)[1]
    finally:
        rivals.fox.rms_norm = true


class Suite:
    """The suite's own model, the program `lethe`, beside theirs."""

    def __init__(self, rivals, program):
        self.rivals, self.program = rivals, program

    def run(self, *arguments, orders=""):
        call = list(map(str, (self.program, "--threads", 1, *arguments)))
        run = subprocess.run(call, input=orders, capture_output=True, text=True)
        expect(run.returncode == 0, f"lethe {arguments[0]} to end well", (run.stderr.strip().splitlines() or ["no message"])[-1])
        return run.stdout

    def sizes(self):
        of = self.rivals.scale
        return ("--architecture", self.rivals.architecture, "--layers", of.layers, "--width", of.width, "--heads", of.heads, "--context", of.length,
                "--batch-tokens", of.sequences * of.length, "--set", "mlp_multiple=256")

    def bench(self, state, text, folder, orders=""):
        """What it says of these weights and texts: loss and gradient norm, then a line an order."""
        from safetensors.torch import save_file

        save_file(dict(state, text=text), f"{folder}/weights.safetensors")
        vocabulary = state["lm_head.weight"].shape[0]
        said = self.run("bench", "--serve", *self.sizes(), "--weights", f"{folder}/weights.safetensors", "--learning-rate", LEARNING_RATE,
                        "--set", f"vocabulary={vocabulary}", orders=orders)
        return [json.loads(line.removeprefix("ready ")) for line in said.splitlines()]

    def exported(self, folder):
        """The weights of a model that it trained on this checkout's README, under the names that it exports."""
        from safetensors.torch import load_file

        tokens = EXPORT_STEPS * self.rivals.scale.sequences * self.rivals.scale.length
        trained = self.run("--root", folder, "train", ROOT / "README.md", *self.sizes(), "--tokens", tokens, "--sample", 0).splitlines()[-1]
        self.run("--root", folder, "export", trained, "--output", f"{folder}/model.safetensors")
        return load_file(f"{folder}/model.safetensors")

    def compare(self, once):
        """Theirs in ours, the batch of `once`; then ours, exported, in theirs."""
        rivals = self.rivals
        with tempfile.TemporaryDirectory() as folder:
            (imported,) = self.bench(rivals.theirs.state_dict(), rivals.text(0), folder)
            state = self.exported(folder)
            model = rivals.official_of(len(state["lm_head.weight"]))
            model.load_state_dict(state)  # all names and shapes, or an error
            text = rivals.text(0, len(state["lm_head.weight"]))
            (exported,) = self.bench(state, text, folder)
        differences = {"loss": imported["loss"] - once["loss"]["theirs"],
                       "gradient_norm": imported["gradient_norm"] / once["their_gradient_norm"] - 1,
                       "exported_loss": exported["loss"] - rivals.loss(model, *rivals.shifted(text)).item()}
        return {"loss": imported["loss"], "gradient_norm": imported["gradient_norm"], "exported_loss": exported["loss"], "differences": differences,
                "apart": any(is_apart(0.0, abs(one), rivals.scale.floor) for one in differences.values())}

    def course(self, steps):
        """The losses of its steps from our start; the first are before it is ready, and None."""
        texts = self.rivals.torch.cat([self.rivals.text(step) for step in range(BATCHES)])
        with tempfile.TemporaryDirectory() as folder:
            _, losses = self.bench(self.rivals.ours.state_dict(), texts, folder, f"losses {steps - WARM_UP}\n")
        return [None] * WARM_UP + losses


def course(rivals, model, steps, reversed_batches=False):
    """The losses of a model's steps. Sequences in reverse order have the same mean and the same gradients, but for rounding."""
    losses = []
    optimizer = rivals.torch.optim.AdamW(in_groups(model), lr=LEARNING_RATE, betas=(0.9, 0.95))
    for step in range(steps):
        optimizer.zero_grad()
        batch = rivals.batch(step % BATCHES)  # eight batches: a loss that falls
        loss = rivals.loss(model, *(tokens.flip(0) for tokens in batch) if reversed_batches else batch)
        loss.backward()
        rivals.torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_both(rivals, steps, suite):
    """The losses of ours, theirs and the exact one, of the suite's own model where it is built, and of theirs again; theirs to the others."""
    again = rivals.official_of(rivals.scale.vocabulary)
    again.load_state_dict(rivals.ours.state_dict())
    courses = {"lethe": suite.course(steps)} if suite and steps > WARM_UP else {}
    courses |= {name: course(rivals, getattr(rivals, name), steps) for name in ("ours", "theirs")}
    courses["exact"] = course(rivals, rivals.exact, (steps + 1) // 2)  # on a GPU a step takes some five times as long
    with last_configurations():
        courses["again"] = course(rivals, again, steps, reversed_batches=True)
    return {"losses": courses, "again_in_last_configurations": rivals.device == "cuda"} | judged_courses(courses, rivals.scale)


def judged_courses(courses, scale):
    """How far the others are from theirs at most, theirs from itself, and whether that explains the others; ours and theirs from exact."""
    apart_from = lambda name, other, steps=None: largest_difference(courses[name][:steps], courses[other], scale.window)
    at_most = {name: apart_from(name, "theirs") for name in courses if name in ("ours", "lethe")}
    itself = apart_from("again", "theirs")
    limit = max(scale.courses, AT_MOST * itself) if itself < math.inf else math.nan
    from_exact = {name: apart_from(name, "exact", len(courses["exact"])) for name in ("ours", "theirs")}
    return {"at_most": at_most, "itself": itself, "from_exact": from_exact,
            "apart": any(not apart <= limit for apart in at_most.values())}


def largest_difference(ours, theirs, window):
    """Of the means of every `window` steps, without those that are None; NaN where one is."""
    apart = [a - b for a, b in zip(ours, theirs, strict=True) if a is not None]
    windows = [apart[first:first + window] for first in range(0, len(apart), window)]
    return math.nan if any(map(math.isnan, apart)) else max(abs(sum(one) / len(one)) for one in windows)


def said(folder, *command):
    found = subprocess.run(["git", "-C", str(folder), *command], capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else None


def commit_of(checkout):
    """None where the folder is no checkout: one around it would answer in its place."""
    return said(checkout, "rev-parse", "HEAD") if said(checkout, "rev-parse", "--show-prefix") == "" else None


def peer_commit(peer, given):
    """The commit of the official code: that of its checkout, else that of --peer-commit."""
    expect(given is None or re.fullmatch("[0-9a-f]{7,40}", given), "--peer-commit: 7 to 40 hexadecimal digits", given)
    found = commit_of(peer)
    expect(found or given, f"a checkout in {peer}, or the commit of its code by --peer-commit", "neither")
    expect(not (found and given) or found.startswith(given), f"{peer} at {given}, as --peer-commit has it", f"it at {found}")
    return found or given


def processor():
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown processor")


def certificate(options):
    torch = sys.modules["torch"]
    changes = said(ROOT, "status", "--porcelain", "--", ".", ":(exclude)results")
    machine = {"processor": processor(), "cores": os.cpu_count()} | ({"gpu": torch.cuda.get_device_name()} if options.device == "cuda" else {})
    return {"commit": os.environ.get("LETHE_COMMIT") or said(ROOT, "rev-parse", "HEAD") or "unknown",
            "dirty": None if changes is None else bool(changes), "peer": options.peer_commit, "peer_is_given": commit_of(options.peer) is None,
            "built": built.read_text().strip() if (built := options.build / "bin/lethe.commit").is_file() else None,
            "command_line": " ".join(["tools/parity.py", *(re.sub(r"(^|=)/.*/", r"\1", word) for word in sys.argv[1:])]),
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "machine": machine, "device": options.device,
            "versions": {name: importlib.metadata.version(name) for name in ("torch", "triton", "transformers")}, "seed": options.seed,
            "scale": asdict(options.scale), "replaced": list(ON_THE_CPU) if options.device == "cpu" else []}


def compare(options, architecture):
    rivals = Rivals(options, architecture)
    once = compare_once(rivals)
    program = options.build / "bin/lethe"
    suite = Suite(rivals, program) if options.device == "cpu" and program.is_file() else None
    return {"once": once, "suite": suite and suite.compare(once), "training": train_both(rivals, options.scale.steps, suite)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=SCALES, default="cuda")
    parser.add_argument("--peer", type=Path, default=ROOT / ".peers/forgetting-transformer")
    parser.add_argument("--peer-commit", help="of the official code, where its folder is no checkout")
    parser.add_argument("--build", type=Path, help="default: build/cuda or build/cpu")
    parser.add_argument("--steps", type=int, help="default: 200, or 20 on the CPU")
    parser.add_argument("--length", type=int, help="default: 4096, or 72 on the CPU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="JSON; a page is written beside it")
    options = parser.parse_args()
    options.build = options.build or ROOT / "build" / options.device
    options.scale = SCALES[options.device]
    options.scale = replace(options.scale, steps=options.steps or options.scale.steps, length=options.length or options.scale.length)
    if options.output and not options.output.parent.is_dir():
        sys.exit(f"parity: --output: expected a file in a folder that exists, found {options.output}")
    result = {}
    try:
        if (options.peer / "src").is_dir():  # where it isn't, the import says so
            options.peer_commit = peer_commit(options.peer, options.peer_commit)
        for architecture, title in ARCHITECTURES.items():
            found = result[architecture] = compare(options, architecture)
            farthest = max(row["between"] for row in found["once"]["gradients"].values())
            print(f"{title}: {len(found['once']['gradients'])} parameters of the official names and shapes; loss {found['once']['loss']}; "
                  f"gradients at most {farthest:.1e} apart; {options.scale.steps} steps at most "
                  f"{max(found['training']['at_most'].values()):.1e} nats apart; "
                  f"beyond rounding: {', '.join(faults(found)) or 'nothing'}", flush=True)
    except Missing as error:
        print(f"parity: {error}", file=sys.stderr)
        sys.exit(2)
    result |= certificate(options)
    for line in result["replaced"]:
        print(f"on the CPU: {line}")
    if options.output:
        write_whole(options.output, json.dumps(result, indent=1) + "\n")
        write_whole(options.output.with_suffix(".md"), page(result))
    sys.exit(any(faults(result[name]) for name in ARCHITECTURES))


if __name__ == "__main__":
    main()
