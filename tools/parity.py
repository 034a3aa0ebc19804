#!/usr/bin/env python3
"""Parity with the official code on one GPU: the same weights and batch, loss and gradients; then training steps of both from one start.

usage: tools/parity.py [--peer .peers/forgetting-transformer] [--build build/cuda] [--steps 200] [--length 4096] [--output FILE.json]

  git clone https://github.com/zhixuan-lin/forgetting-transformer .peers/forgetting-transformer     # 883f260; it needs triton, transformers, einops, pytest

Both are 125M FoX models in bfloat16 autocast with float32 weights: theirs in their Triton kernels, ours in examples/fox.py on this suite's operator, whose
parameters have the official names. Judged against the noise of bfloat16: the distance of theirs to a float32 run of ours on the same weights may be at most twice
that of ours in bfloat16, and 0.001 more; for the loss, nats. Then both train on the same random batches with AdamW from the same weights; the
losses of each step are written, and the two courses may differ by at most 0.02 nats in the mean of the last 20 steps.

Exit status: 0 equal, 1 not, 2 where something is missing; the one line says what.
"""
import one_line_errors  # noqa: F401  (first: an error is one line)

import argparse
import json
import subprocess
import sys
from pathlib import Path

from official_fox import Missing, expect, import_official, official_model

ROOT = Path(__file__).resolve().parents[1]
VOCABULARY, LAYERS, WIDTH, HEADS, SEQUENCES = 50257, 12, 768, 12, 4
AT_MOST, FLOOR = 2.0, 1e-3  # times our own distance in bfloat16; relative, or nats
LAST, COURSES = 20, 0.02  # steps, nats


def find_library(build):
    libraries = sorted(build.rglob("liblethe_torch.so"))
    expect(libraries, f"liblethe_torch.so below {build}", "none (tools/setup --cuda, then cmake --workflow --preset cuda)")
    return libraries[0]


def import_all(options):
    """torch, our model's module and theirs."""
    theirs = import_official(options.peer)
    import torch

    expect(torch.cuda.is_available(), "a CUDA GPU", "none")
    torch.ops.load_library(str(find_library(options.build)))
    sys.path.insert(0, str(ROOT / "examples"))
    import fox

    return torch, fox, theirs


class Rivals:
    """Ours and theirs with the same weights."""

    def __init__(self, options, architecture):
        self.torch, fox, theirs = import_all(options)
        pro = architecture == "fox-pro"
        self.torch.manual_seed(0)
        config = fox.Config(VOCABULARY, LAYERS, WIDTH, HEADS, 1792 if pro else 2048, pro)
        self.ours, self.exact = fox.LanguageModel(config).cuda(), fox.LanguageModel(config).cuda()
        self.theirs = official_model(theirs, pro, VOCABULARY, LAYERS, WIDTH, HEADS).cuda()
        state = self.ours.state_dict()
        self.exact.load_state_dict(state)
        names = set(self.theirs.state_dict())
        expect(names == set(state), "the same parameter names", f"only ours {sorted(set(state) - names)[:3]}, only theirs {sorted(names - set(state))[:3]}")
        self.theirs.load_state_dict(state)
        self.theirs.train()

    def batch(self, step, length):
        generator = self.torch.Generator().manual_seed(step)
        text = self.torch.randint(VOCABULARY, (SEQUENCES, length + 1), generator=generator).cuda()
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    def loss(self, model, tokens, labels):
        if model is self.exact:
            return model.losses(tokens, labels).mean()
        with self.torch.autocast("cuda", self.torch.bfloat16):
            return (model(tokens, labels=labels).loss if model is self.theirs else model.losses(tokens, labels)).mean()

    def gradients(self, model, tokens, labels):
        model.zero_grad()
        loss = self.loss(model, tokens, labels)
        loss.backward()
        return loss.item(), {name: parameter.grad.double().flatten() for name, parameter in model.named_parameters()}


def distance(a, b):
    return ((a - b).norm() / b.norm().clamp_min(1e-30)).item()


def compare_once(rivals, length):
    """Loss and every parameter's gradient: theirs to ours, and both to float32."""
    tokens, labels = rivals.batch(0, length)
    (our_loss, ours), (their_loss, theirs), (exact_loss, exact) = (rivals.gradients(model, tokens, labels) for model in (rivals.ours, rivals.theirs, rivals.exact))
    rows = {name: {"between": distance(ours[name], theirs[name]), "ours": distance(ours[name], exact[name]), "theirs": distance(theirs[name], exact[name])}
            for name in ours}
    apart = [name for name, row in rows.items() if not row["theirs"] <= AT_MOST * row["ours"] + FLOOR]
    if not abs(their_loss - exact_loss) <= AT_MOST * abs(our_loss - exact_loss) + FLOOR:
        apart.append("loss")
    return {"loss": {"ours": our_loss, "theirs": their_loss, "float32": exact_loss}, "gradients": rows, "apart": apart}


def train_both(rivals, steps, length):
    courses = {}
    for name in ("ours", "theirs"):
        model = getattr(rivals, name)
        optimizer = rivals.torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
        losses = []
        for step in range(steps):
            loss = rivals.loss(model, *rivals.batch(step % 8, length))  # eight batches: a loss that falls
            loss.backward()
            rivals.torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        courses[name] = losses
    ends = [sum(course[-LAST:]) / len(course[-LAST:]) for course in courses.values()]
    return {"losses": courses, "difference_at_the_end": ends[0] - ends[1], "apart": not abs(ends[0] - ends[1]) <= COURSES}


def commit_of(folder):
    found = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, default=ROOT / ".peers/forgetting-transformer")
    parser.add_argument("--build", type=Path, default=ROOT / "build/cuda")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    result = {"commit": commit_of(ROOT), "peer": commit_of(options.peer), "length": options.length}
    try:
        for architecture in ("fox-llama", "fox-pro"):
            rivals = Rivals(options, architecture)
            result["gpu"] = rivals.torch.cuda.get_device_name()
            found = result[architecture] = {"once": compare_once(rivals, options.length), "training": train_both(rivals, options.steps, options.length)}
            worst = max(row["between"] for row in found["once"]["gradients"].values())
            print(f"{architecture}: loss {found['once']['loss']}, gradients at most {worst:.2e} apart, {options.steps} steps end "
                  f"{found['training']['difference_at_the_end']:+.4f} nats apart; outside the noise: {found['once']['apart'] or 'nothing'}")
    except Missing as error:
        print(f"parity: {error}", file=sys.stderr)
        sys.exit(2)
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(any(result[name]["once"]["apart"] or result[name]["training"]["apart"] for name in ("fox-llama", "fox-pro")))


if __name__ == "__main__":
    main()
