#!/usr/bin/env python3
"""What the compiler made of the CUDA kernels, held against a written budget.

usage: check_kernels.py compile COMMAND…      runs nvcc (with -Xptxas -v) and fails where ptxas spilled more registers than allowed,
                                              or serialised wgmma (C7510 to C7518)
       check_kernels.py sass LIBRARY [--cuobjdump PATH]
                                              fails where a main loop has grown, or its exponentials moved out from under the product

Without cuobjdump the second exits with 77, which ctest counts as skipped.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

SKIPPED = 77

# Bytes a kernel may spill, by a pattern of its mangled name. The spills lie in the warps that load and hand out tiles, which have 24 to
# 40 registers, and in blocks that hold the diagonal or a cut: a few a tile.
SPILLS = [
    (r"7forwardI\w+Li64E", 152),
    (r"7forwardI\w+Li128E", 88),
    (r"14backward_tilesI", 80),
]

# The shortest loop of products: at most so many instructions; at least so many exponentials between the wait for the first product
# and the wait for the second (the backward pass orders its products otherwise).
LOOPS = [
    (r"7forwardI13__nv_bfloat16Li64ELb0E", 325, 60),
    (r"7forwardI6__halfLi64ELb0E", 325, 60),
    (r"7forwardI13__nv_bfloat16Li128ELb0E", 335, 60),
    (r"7forwardI6__halfLi128ELb0E", 335, 60),
    (r"14backward_tilesI\w+Li64E", 790, 0),
    (r"14backward_tilesI\w+Li128E", 540, 0),
]


def allowed(table, name):
    return next((row[1:] for row in table if re.search(row[0], name)), None)


def check_compilation(command):
    """The compiler's exit status, or 1 where its messages break the budget."""
    run = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    sys.stderr.write(run.stderr)
    complaints = re.findall(r".*\(C751[0-8]\).*", run.stderr)
    properties = re.findall(r"Function properties for (\S+)\n.*?(\d+) bytes spill stores", run.stderr)
    for name, stored in properties:
        limit = (allowed(SPILLS, name) or (0,))[0]
        if int(stored) > limit:
            complaints.append(f"{name}: expected at most {limit} bytes of spills, found {stored}")
    for complaint in complaints:
        print(f"check_kernels: {complaint}", file=sys.stderr)
    return run.returncode or int(bool(complaints))


def instructions_of(library, cuobjdump):
    """Kernel name → [(address, text)]."""
    dump = subprocess.run([cuobjdump, "--dump-sass", library], capture_output=True, text=True, check=True).stdout
    kernels = {}
    for part in dump.split("Function : ")[1:]:
        name = part.split("\n", 1)[0].strip()
        lines = re.findall(r"/\*([0-9a-f]{4,6})\*/\s+(.*?);", part)
        kernels[name] = [(int(address, 16), text) for address, text in lines]
    return kernels


def innermost_loops(instructions):
    """Bodies of backward branches that hold matrix products and no other such loop."""
    index = {address: i for i, (address, _) in enumerate(instructions)}
    spans = []
    for i, (_, text) in enumerate(instructions):
        target = re.search(r"BRA(?:\.\w+)* 0x([0-9a-f]+)", text)
        begin = index.get(int(target.group(1), 16)) if target else None
        if begin is not None and begin < i and any("HGMMA" in t for _, t in instructions[begin:i]):
            spans.append((begin, i + 1))
    inner = [s for s in spans if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in spans)]
    return [[text for _, text in instructions[b:e]] for b, e in inner]


def exponentials_under_product(body):
    waits = [i for i, text in enumerate(body) if "WARPGROUP.DEPBAR" in text]
    return sum("MUFU.EX2" in text for text in body[waits[0]:waits[1]]) if len(waits) > 1 else 0


def check_sass(library, cuobjdump):
    failed, met = False, set()
    for name, instructions in instructions_of(library, cuobjdump).items():
        budget = allowed(LOOPS, name)
        if budget is None:
            continue
        loops = innermost_loops(instructions)
        if not loops:
            print(f"{name}: expected a loop of matrix products, found none")
            failed = True
            continue
        body = min(loops, key=len)
        slots, under = len(body), exponentials_under_product(body)
        good = slots <= budget[0] and under >= budget[1]
        print(f"{name}: {slots} instructions a block (at most {budget[0]}), {under} exponentials under the product (at least {budget[1]})"
              f"{'' if good else '  OVER BUDGET'}")
        failed |= not good
        met |= {row[0] for row in LOOPS if re.search(row[0], name)}
    for row in LOOPS:
        if row[0] not in met:
            print(f"{row[0]}: expected a kernel of this name, found none")
            failed = True
    return int(failed)


def find_cuobjdump(given):
    beside = pathlib.Path(sys.prefix).glob("lib/python*/site-packages/triton/backends/nvidia/bin/cuobjdump")
    candidates = [given, shutil.which("cuobjdump"), "/usr/local/cuda/bin/cuobjdump", *map(str, beside)]
    return next((path for path in candidates if path and os.access(path, os.X_OK)), None)


def main():
    if sys.argv[1:2] == ["compile"]:
        return check_compilation(sys.argv[2:])
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1])
    parser.add_argument("mode", choices=["sass"])
    parser.add_argument("library")
    parser.add_argument("--cuobjdump")
    arguments = parser.parse_args()
    cuobjdump = find_cuobjdump(arguments.cuobjdump)
    if cuobjdump is None:
        print("cuobjdump: expected on the path, in the CUDA toolkit or beside Triton, found none")
        return SKIPPED
    return check_sass(arguments.library, cuobjdump)


if __name__ == "__main__":
    sys.exit(main())
