"""Instructions of a step of each kernel's main loop, per pipe and architecture: what predict_gpus.py counts.

A row: (implementation, direction, head dim): (FLOPs of a pair in units of the head dim, {pattern of a loop's kernel: such FLOPs that it computes}).
The forward's instances for windows are not meant. The FLOPs of a pair that a call asks for are 4 or 10; two kernels compute 14.
"""
import json
import re
import subprocess
from collections import Counter

from check_kernels import find_cuobjdump, instructions_of
from check_resources import resources_of

# Instructions of a pipe; those of shared memory by cycles of a quarter of a multiprocessor for a warp's: 128 bytes a cycle for the four quarters.
FP32 = ("FADD", "FMUL", "FFMA", "IMAD", "IMUL")
SPECIAL = ("MUFU",)
SHARED = {"LDSM": 16, "STSM": 16, "LDGSTS": 16, "SHFL": 4, "LDS": 4, "STS": 4, "RED": 4, "REDG": 4, "ATOMS": 4}
WIDTHS = {".64": 2, ".128": 4, "x2": 2, "x4": 4}  # of an LDS, STS or REDG

# Directions. The backward: the wide kernel with as many stages as it has anywhere.
ONE_STAGE, TWO, FUSED = "backward, one stage", "backward in two kernels", "backward, fused"

DIMS = (64, 96, 128, 256)
WIDE = r"ampere\w*backward_wideI13__nv_bfloat16NS0_9WideSizesILi{}ELi{}E"
KEYS = r"ampere\w*backward_keysI13__nv_bfloat16NS0_10{}SizesILi{}EEELb{}ELb{}ELb{}E"
QUERIES = r"ampere\w*backward_queriesI13__nv_bfloat16Li{}E"
OURS = {("lethe", "forward", dim): (4, {rf"ampere\w*forward_tilesI13__nv_bfloat16NS0_12ForwardSizesILi{dim}EEELb0E": 4}) for dim in DIMS} | {
    ("lethe", "backward", dim): (10, {WIDE.format(dim, 1 if dim == 256 else 2): 10}) for dim in DIMS} | {
    ("lethe", ONE_STAGE, dim): (10, {WIDE.format(dim, 1): 10}) for dim in (64, 128)} | {
    ("lethe", FUSED, 96): (10, {KEYS.format("Fused", 96, 1, 1, 1): 10}),
    ("lethe", TWO, 128): (10, {KEYS.format("Sweep", 128, 1, 1, 0): 8, QUERIES.format(128): 6}),
    ("lethe", TWO, 256): (10, {KEYS.format("Sweep", 256, 1, 0, 0): 6, KEYS.format("Sweep", 256, 0, 1, 0): 4, QUERIES.format(256): 6})}

# FlashAttention-2's instances on an A100 and a Hopper GPU; SMALL: those that it has for an L40S, whose CTAs have less shared memory.
SMALL = ", small tiles"
FLASH_FORWARD = r"flash_fwd_kernel\w*Li{}ELi{}ELi{}ELi4ELb0ELb0E\w*bfloat16\w*EELb0ELb1ELb0ELb0ELb1ELb1ELb0ELb0E"  # head dim, tile, warps; causal
FLASH_BACKWARD = r"seqk_parallel\w*Li{}ELi{}ELi{}ELi8ELi{}ELi{}ELi{}ELb{}ELb0E\w*bfloat16\w*EELb0ELb1ELb0ELb0ELb1ELb1ELb0E"
FLASH = {("flash_attention_2", direction, dim): (flops, {pattern.format(dim, *sizes): flops}) for flops, pattern, direction, dim, sizes in (
    (4, FLASH_FORWARD, "forward", 64, (128, 128)), (4, FLASH_FORWARD, "forward", 96, (128, 64)), (4, FLASH_FORWARD, "forward", 128, (128, 64)),
    (4, FLASH_FORWARD, "forward" + SMALL, 96, (64, 64)), (4, FLASH_FORWARD, "forward" + SMALL, 128, (64, 64)),
    (10, FLASH_BACKWARD, "backward", 64, (128, 128, 4, 4, 4, 0)), (10, FLASH_BACKWARD, "backward", 96, (64, 128, 2, 4, 4, 1)),
    (10, FLASH_BACKWARD, "backward", 128, (64, 128, 2, 4, 2, 0)),
    (10, FLASH_BACKWARD, "backward" + SMALL, 64, (64, 128, 2, 4, 4, 1)), (10, FLASH_BACKWARD, "backward" + SMALL, 128, (64, 64, 4, 2, 2, 1)))}

# A share of the warps that skips products of a step, here the fused backward's for dQ: 128 keys, of whose eight warps six have sixteen of 96 columns.
SKIPPED = {KEYS.format("Fused", 96, 1, 1, 1): 0.25}


def main_loop(instructions, over_products=True):
    """The body of the backward branch that holds products, most densely, and exponentials, and no other such; its forward branches are taken, over
    copies too, over products unless that is False."""
    index = {address: i for i, (address, _) in enumerate(instructions)}
    target_of = lambda text: (found := re.search(r"\bBRA\b.* 0x([0-9a-f]+)", text)) and index.get(int(found[1], 16))
    spans = []
    for i, (_, text) in enumerate(instructions):
        begin = target_of(text)
        if begin is None or begin >= i:
            continue
        body = [t for _, t in instructions[begin : i + 1]]
        if any("HMMA" in t for t in body) and any("MUFU.EX2" in t for t in body) and not any(re.search(r"\bEXIT\b", t) for t in body):
            spans.append((begin, i))
    inner = [s for s in spans if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in spans)]
    if not inner:
        return None
    begin, end = max(inner, key=lambda s: sum("HMMA" in t for _, t in instructions[s[0] : s[1] + 1]) / (s[1] - s[0]))
    path, at = [], begin
    while at <= end:
        text = instructions[at][1]
        path.append(text)
        target = target_of(text)
        taken = target is not None and at < target <= end and text.startswith("@")
        if taken and not over_products:
            taken = not any("HMMA" in t for _, t in instructions[at:target])
        at = target if taken else at + 1
    return path


def pipes_of(path):
    """Instructions of a step by pipe; those of shared memory in cycles."""
    counts = Counter(issue=len(path))
    for text in path:
        name = re.sub(r"^@!?U?P\w+\s+", "", text).split()[0]
        base = name.split(".")[0]
        if base == "HMMA":
            counts["tensor"] += 1
        elif base in FP32:
            counts["fp32"] += 1
        elif base in SPECIAL:
            counts["special"] += 1
        elif base in SHARED:
            width = base in ("LDS", "STS", "REDG") and re.search(r"(\.64|\.128|x2|x4)\b", name)
            counts["shared"] += SHARED[base] * (WIDTHS[width[1]] if width else 1)
        elif not base.startswith("U") and base not in ("BRA", "BAR", "LDGDEPBAR", "DEPBAR", "LDL", "STL", "LDG", "STG", "LDC", "NOP", "BSSY",
                                                       "BSYNC"):
            counts["alu"] += 1
    return dict(counts)


def mean_pipes(instructions, skipped=None):
    """pipes_of the main loop, the mean over warps where a share skips products."""
    least = pipes_of(main_loop(instructions))
    if skipped is None:
        return least
    most = pipes_of(main_loop(instructions, over_products=False))
    return {pipe: skipped * least.get(pipe, 0) + (1 - skipped) * most[pipe] for pipe in most}


def dumps_of(file, patterns, cuobjdump):
    """(architecture, {kernel: instructions}) of the machine code of the kernels that match."""
    run = lambda *arguments: subprocess.run([cuobjdump, *arguments, str(file)], capture_output=True, text=True, check=True).stdout
    names = {}
    for architecture, name, _ in resources_of(run("--dump-resource-usage")):
        if architecture in ("80", "90") and any(re.search(pattern, name) for pattern in patterns):
            names.setdefault(architecture, set()).add(name)
    for architecture, those in names.items():
        yield architecture, instructions_of(run("--gpu-architecture", f"sm_{architecture}", "--dump-sass", "--function", ",".join(sorted(those))))


def count(file, sources, cuobjdump):
    """Into a file: rows of the kernels of each (OURS or FLASH, library); of others those that are there stay."""
    if (cuobjdump := find_cuobjdump(cuobjdump)) is None:
        raise SystemExit("cuobjdump: expected on the path, in the CUDA toolkit or beside Triton, found none")
    found = {}
    for kernels, library in sources:
        patterns = {pattern for _, loops in kernels.values() for pattern in loops}
        for architecture, functions in dumps_of(library, patterns, cuobjdump):
            for pattern in patterns:
                for name, instructions in functions.items():
                    if re.search(pattern, name) and main_loop(instructions):
                        found.setdefault(pattern, {})[architecture] = mean_pipes(instructions, SKIPPED.get(pattern))
    rows = [{"implementation": implementation, "direction": direction, "head_dim": dim, "flops": flops,
             "loops": [{"flops": part, "counts": found.get(pattern, {})} for pattern, part in loops.items()]}
            for kernels, _ in sources for (implementation, direction, dim), (flops, loops) in kernels.items()]
    for row in rows:
        for loop in row["loops"]:
            if set(loop["counts"]) != {"80", "90"}:
                raise SystemExit(f"{row['implementation']} {row['direction']} {row['head_dim']}: expected loops of sm_80 and sm_90, found "
                                 f"{sorted(loop['counts'])}")
    counted = {row["implementation"] for row in rows}
    kept = [row for row in json.loads(file.read_text()) if row["implementation"] not in counted] if file.exists() else []
    file.write_text(json.dumps(kept + rows, indent=1) + "\n")
