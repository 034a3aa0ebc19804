#!/usr/bin/env python3
"""The machine code of the CUDA kernels against a written budget: a test of what is built, of label `kernels`.

usage: check_kernels.py LIBRARY… [--nvcc VERSION] [--cuobjdump PATH]

Fails where a kernel spills more than allowed, its products are serialised, or a main loop has grown, moves more into uniform registers, accesses
local memory more often, or has its exponentials moved out from under the product. All is read from the machine code: that shows a serialised
product whatever ptxas reports (C7510 to C7518), by an arrival of its own. Exits with 77, which ctest counts as skipped, without
cuobjdump and where VERSION, of the nvcc that built the libraries, is not the one whose budgets these are.
"""
import one_line_errors  # noqa: F401  (first: an error is one line)

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

SKIPPED = 77
NVCC = "13.0"  # the compiler of these budgets

# Bytes that a kernel's stores to local memory write, each counted once, by a pattern of its mangled name: ptxas' spill stores, and eight bytes of the
# forward's own. They are in the warps that load, distribute or prepare tiles, which have 24 to 88 registers, and where LOOPS allows accesses of local memory.
# The first Lb1E is a forward's second launch, the second one an instance for windows and packed sequences.
SPILLS = [
    (r"7forwardI\w+Li\d+ELb1E", 296),
    (r"7forwardI\w+Li64E", 192),
    (r"7forwardI\w+Li128E", 120),
    (r"7forwardI\w+Li256E", 40),
    (r"14backward_tilesI\w+Li64ELb1ELb1E", 238),
    (r"14backward_tilesI\w+Li64E", 226),
    (r"14backward_tilesI\w+Li128E", 282),
    (r"14backward_tilesI\w+Li256E", 202),
    (r"scan_(norms_)?and_bound", 132),  # the search for the boundary by mass
    # the matrix state by wgmma: numbers of a chunk's place, and in float16 units of rows; with a normaliser first
    (r"sweep_forwardI13__nv_bfloat16\w+10NormalizerE[1-3]E", 64),
    (r"sweep_forwardI6__half\w+Li1E\w+10NormalizerE[1-3]E", 208),
    (r"sweep_forwardI6__half\w+Li2E\w+10NormalizerE[12]E", 48),
    (r"sweep_forwardI13__nv_bfloat16Lb1ELi1E", 24),
    (r"sweep_forwardI6__halfLb0ELi1E\w+ELi2E", 144),
    (r"sweep_forwardI6__halfLb\dELi1E", 56),
    (r"sweep_gradientsI\w+Li1ELb1E", 72),
    (r"sweep_gradientsI13__nv_bfloat16\w+Li2ELb1E", 204),
    (r"sweep_gradientsI6__half\w+Li2ELb1E", 284),
    (r"sweep_gradientsI\w+Lb1ELi2ELb0ELb0ELb1E", 116),  # of two tiles of columns whose states are computed again
    (r"sweep_gradientsI\w+Lb1ELi1E", 80),
    (r"sweep_gradientsI\w+Lb1ELi2E", 64),
    (r"sweep_gradientsI\w+Lb0ELi2E", 40),
    (r"head_statesI\w+Lb1ELi2ELb0ELb1E", 24),
    (r"delta_sweepI6__halfLi2ELi2ELb1ELb1E", 64),  # of float16 in the warps that prepare A
    (r"delta_sweepI6__halfLi1ELi1ELb1E", 48),
    (r"delta_sweepI6__halfLi2ELi1ELb1E", 4),
    (r"delta_sweepI\w+Li2ELi2E", 4),
    (r"delta_back_sweepI6__halfLi2ELi2E", 4),
    (r"delta_back_sweepI6__halfLi1ELi1E", 76),
    (r"delta_back_sweepI\w+Li1ELi1E", 68),
]
STORED = {None: 4, "U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}  # bytes of an STL

# The product under which a step's exponentials run, by the number of the loop's waits for products before them.
UNDER_GRAD_WEIGHT = 0  # backward: dPᵀ, the loop's first product, until the first wait, which is for it
UNDER_OUTPUT = 1  # forward: P·V of the block before, after the wait for S, until the next, which is for P·V

# The main loops: the innermost that hold products. A kernel has as many as it has budgets here, both in order of size. A budget is: at most so many
# instructions (including those that a step may skip, excluding the code after the kernel's end where a wait spins); at least so many exponentials
# under the product, which is all that a thread has; at most so many moves into uniform registers, which must hold a product's descriptors: with nine
# the backward took 1.07 as long; and at most so many accesses of local memory: with some of both it took 1.03 to 1.06 as long. One per cent more
# instructions are allowed than were counted.
LOOPS = [
    # for windows and packed sequences: the same, and between them a block whose weights are masked after the exponentials
    (r"7forwardI\w+Li64ELb0ELb1E", UNDER_OUTPUT, [(322, 64, 1, 1), (477, 64, 1, 10), (717, 66, 1, 13)]),
    (r"7forwardI\w+Li128ELb0ELb1E", UNDER_OUTPUT, [(332, 64, 1, 0), (500, 64, 1, 0), (753, 66, 1, 0)]),
    # a block that all rows see whole; one that is masked, with two exponentials more where the maximum moves. The one access at head dim 64 came with
    # the window, and costs no time (log/2026-11-26-window.md)
    (r"7forwardI13__nv_bfloat16Li64ELb0E", UNDER_OUTPUT, [(319, 64, 1, 1), (711, 66, 1, 17)]),
    (r"7forwardI6__halfLi64ELb0E", UNDER_OUTPUT, [(319, 64, 1, 1), (711, 66, 1, 17)]),
    (r"7forwardI13__nv_bfloat16Li128ELb0E", UNDER_OUTPUT, [(332, 64, 1, 0), (751, 66, 1, 0)]),
    (r"7forwardI6__halfLi128ELb0E", UNDER_OUTPUT, [(332, 64, 1, 0), (742, 66, 1, 0)]),
    # of half a block's keys
    (r"7forwardI\w+Li256ELb0E", UNDER_OUTPUT, [(237, 32, 1, 0), (617, 34, 1, 0)]),
    # the second launch, for tiles that overflowed or have strong gates: the maximum may move in every block
    (r"7forwardI13__nv_bfloat16Li64ELb1E", UNDER_OUTPUT, [(518, 66, 1, 2), (1508, 66, 4, 54)]),
    (r"7forwardI6__halfLi64ELb1E", UNDER_OUTPUT, [(518, 66, 1, 2), (1511, 66, 4, 54)]),
    (r"7forwardI13__nv_bfloat16Li128ELb1E", UNDER_OUTPUT, [(559, 66, 1, 0), (1436, 66, 4, 0)]),
    (r"7forwardI6__halfLi128ELb1E", UNDER_OUTPUT, [(559, 66, 1, 0), (1444, 66, 4, 0)]),
    (r"7forwardI\w+Li256ELb1E", UNDER_OUTPUT, [(470, 34, 1, 0), (1047, 34, 4, 2)]),
    # at 64 one loop for both warpgroups; at 128 that of the one that does not sum the rows of dS, and of the one that does
    (r"14backward_tilesI\w+Li64ELb0E", UNDER_GRAD_WEIGHT, [(450, 64, 0, 0)]),
    (r"14backward_tilesI\w+Li128ELb0E", UNDER_GRAD_WEIGHT, [(334, 32, 0, 0), (342, 32, 0, 0)]),
    # with sums of dS in float, one loop for both warpgroups; a step takes one of two ways, for rows apart or in groups
    (r"14backward_tilesI\w+Li64ELb1E", UNDER_GRAD_WEIGHT, [(777, 64, 0, 0)]),
    (r"14backward_tilesI\w+Li128ELb1E", UNDER_GRAD_WEIGHT, [(493, 32, 0, 0)]),
    # half of the queries' scores in each warpgroup
    (r"14backward_tilesI\w+Li256ELb1E", UNDER_GRAD_WEIGHT, [(424, 16, 0, 0)]),
]


def allowed(table, name):
    return next((row[1:] for row in table if re.search(row[0], name)), None)


def instructions_of(dump):
    """Kernel name → [(address, text)]."""
    kernels = {}
    for part in dump.split("Function : ")[1:]:
        name = part.split("\n", 1)[0].strip()
        lines = re.findall(r"/\*([0-9a-f]{4,6})\*/\s+(.*?);", part)
        kernels[name] = [(int(address, 16), text) for address, text in lines]
    return kernels


def innermost_loops(instructions):
    """Bodies of backward branches that hold matrix products and no other such loop, the shortest first.

    A branch back over the kernel's end makes none: it comes from where a wait spins, apart from the rest.
    """
    index = {address: i for i, (address, _) in enumerate(instructions)}
    spans = []
    for i, (_, text) in enumerate(instructions):
        target = re.search(r"\bBRA\b.* 0x([0-9a-f]+)", text)
        begin = index.get(int(target.group(1), 16)) if target else None
        if begin is None or begin >= i:
            continue
        body = [t for _, t in instructions[begin:i]]
        if any("HGMMA" in t for t in body) and not any(re.search(r"\bEXIT\b", t) for t in body):
            spans.append((begin, i + 1))
    inner = [s for s in spans if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in spans)]
    return sorted(([text for _, text in instructions[b:e]] for b, e in inner), key=len)


def exponentials_under_product(body, waits):
    """Those after the body's first product and `waits` of its waits for products, and before the next wait."""
    first = next(i for i, text in enumerate(body) if "HGMMA" in text)
    count = passed = 0
    for text in body[first:]:
        passed += "WARPGROUP.DEPBAR" in text
        count += passed == waits and "MUFU.EX2" in text
    return count if passed > waits else 0


def over_spills(name, instructions, table):
    limit = (allowed(table, name) or (0,))[0]
    stored = sum(STORED[found[1]] for _, text in instructions if (found := re.search(r"\bSTL(?:\.(\w+))?", text)))
    return [f"{name}: expected at most {limit} bytes stored to local memory, found {stored}"] if stored > limit else []


def serialised(name, instructions):
    """A pipelined kernel arrives once before all products of a batch; a serialised one before each."""
    products, arrivals = (sum(word in text for _, text in instructions) for word in ("HGMMA", "WARPGROUP.ARRIVE"))
    return [f"{name}: expected an arrival for many of its {products} products, found {arrivals}: serialised"] if 2 * arrivals > products else []


def over_loops(name, instructions, table):
    row = allowed(table, name)
    if row is None:
        return []
    (waits, budgets), loops, complaints = row, innermost_loops(instructions), []
    if len(loops) != len(budgets):
        sizes = [len(body) for body in loops]
        complaints.append(f"{name}: expected {len(budgets)} innermost loops of products, found {len(loops)}, of {sizes} instructions")
    for body, (most, least, moves_allowed, local_allowed) in zip(loops, budgets):
        slots, under, moves = len(body), exponentials_under_product(body, waits), sum("R2UR" in text for text in body)
        local = sum(bool(re.search(r"\b(LDL|STL)\b", text)) for text in body)
        found = (f"{name}: {slots} instructions a block (at most {most}), {under} exponentials under the product (at least {least}), "
                 f"{moves} moves into uniform registers (at most {moves_allowed}), {local} accesses of local memory (at most {local_allowed})")
        print(found)
        if slots > most or under < least or moves > moves_allowed or local > local_allowed:
            complaints.append(f"{found}: OVER BUDGET")
    return complaints


def complaints_about(kernels, spills, loops):
    """What of the kernels breaks the budgets, in words. Each kernel that a table names must be there."""
    complaints = [f"{row[0]}: expected a kernel of this name, found none" for row in (*spills, *loops)
                  if not any(re.search(row[0], name) for name in kernels)]
    for name, instructions in kernels.items():
        complaints += over_spills(name, instructions, spills) + serialised(name, instructions) + over_loops(name, instructions, loops)
    return complaints


def find_cuobjdump(given):
    beside = pathlib.Path(sys.prefix).glob("lib/python*/site-packages/triton/backends/nvidia/bin/cuobjdump")
    candidates = [given, shutil.which("cuobjdump"), "/usr/local/cuda/bin/cuobjdump", *map(str, beside)]
    return next((path for path in candidates if path and os.access(path, os.X_OK)), None)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1])
    parser.add_argument("libraries", nargs="+")
    parser.add_argument("--nvcc", default=NVCC)
    parser.add_argument("--cuobjdump")
    arguments = parser.parse_args()
    if not re.match(rf"{re.escape(NVCC)}(\.|$)", arguments.nvcc):
        print(f"nvcc: expected {NVCC}, whose budgets these are, found {arguments.nvcc}; nothing was checked")
        return SKIPPED
    cuobjdump = find_cuobjdump(arguments.cuobjdump)
    if cuobjdump is None:
        print("cuobjdump: expected on the path, in the CUDA toolkit or beside Triton, found none; nothing was checked")
        return SKIPPED
    kernels = {}
    for library in arguments.libraries:
        dump = subprocess.run([cuobjdump, "--dump-sass", library], capture_output=True, text=True)
        if dump.returncode:
            print(f"{cuobjdump}: expected machine code, found {dump.stderr.strip()}")
            return 1
        kernels |= instructions_of(dump.stdout)
    complaints = complaints_about(kernels, SPILLS, LOOPS)
    print(*complaints, sep="\n")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
