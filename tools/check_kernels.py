#!/usr/bin/env python3
"""What the compiler made of the CUDA kernels, held against a written budget.

usage: check_kernels.py compile COMMAND…      runs nvcc (with -Xptxas -v) and fails where ptxas spilled more registers than allowed,
                                              or serialised wgmma (C7510 to C7518), or said of no kernel how it is
       check_kernels.py sass LIBRARY [--cuobjdump PATH] [--in-build]
                                              fails where a main loop has grown, moves more into uniform registers, goes to local
                                              memory more often, or has its exponentials moved out from under the product

Without cuobjdump the second exits with 77, which ctest counts as skipped; as a step of the build it says so and passes (where cuobjdump
fails, too), lists only what is over budget, and removes the library that is. The budgets are those of one nvcc: with another CMake builds
without both, and says so, unless -DLETHE_KERNEL_BUDGETS=ON.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

SKIPPED = 77
NVCC = "13.0"  # whose budgets these are; read by CMake, too
WAY_OUT = f"the budgets are those of nvcc {NVCC} (-DLETHE_KERNEL_BUDGETS=OFF builds without)"

# Bytes a kernel may spill, by a pattern of its mangled name. The spills lie in the warps that load and hand out tiles, which have 24 to
# 40 registers, and where LOOPS allows accesses of local memory. Lb1E is a forward's second launch.
SPILLS = [
    (r"7forwardI\w+Lb1E", 288),
    (r"7forwardI\w+Li64E", 184),
    (r"7forwardI\w+Li128E", 112),
    (r"14backward_tilesI\w+Li64E", 224),
    (r"14backward_tilesI\w+Li128E", 272),
]

# Under which product a step's exponentials run, told by how many of the loop's waits for products lie before them.
UNDER_GRAD_WEIGHT = 0  # backward: dPᵀ, the loop's first product, until the first wait, which is for it
UNDER_OUTPUT = 1  # forward: P·V of the block before, behind the wait for S, until the next, which is for P·V

# The main loops: the innermost that hold products. A kernel has as many as it has budgets here, both in order of size: at most so many
# instructions (what a step may skip included, the code behind the kernel's end where a wait spins not), at least so many exponentials
# under the product, which is all that a thread has, at most so many moves into uniform registers, which a product's descriptors must
# lie in: with nine the backward took 1.07 as long; and at most so many accesses of local memory: with some of both it took 1.03 to 1.06 as
# long. One per cent more instructions are allowed than were counted.
LOOPS = [
    # a block that all rows see whole; one that is masked, with two exponentials more where the maximum moves
    (r"7forwardI13__nv_bfloat16Li64ELb0E", UNDER_OUTPUT, [(319, 64, 1, 0), (703, 66, 1, 17)]),
    (r"7forwardI6__halfLi64ELb0E", UNDER_OUTPUT, [(319, 64, 1, 0), (701, 66, 1, 15)]),
    (r"7forwardI13__nv_bfloat16Li128ELb0E", UNDER_OUTPUT, [(332, 64, 1, 0), (740, 66, 1, 0)]),
    (r"7forwardI6__halfLi128ELb0E", UNDER_OUTPUT, [(332, 64, 1, 0), (730, 66, 1, 0)]),
    # the second launch, for tiles that overflowed or have strong gates: the maximum may move in every block
    (r"7forwardI13__nv_bfloat16Li64ELb1E", UNDER_OUTPUT, [(518, 66, 1, 2), (1493, 66, 4, 45)]),
    (r"7forwardI6__halfLi64ELb1E", UNDER_OUTPUT, [(518, 66, 1, 2), (1473, 66, 4, 45)]),
    (r"7forwardI13__nv_bfloat16Li128ELb1E", UNDER_OUTPUT, [(559, 66, 1, 0), (1436, 66, 4, 0)]),
    (r"7forwardI6__halfLi128ELb1E", UNDER_OUTPUT, [(559, 66, 1, 0), (1410, 66, 4, 0)]),
    # at 64 one loop for both warpgroups; at 128 that of the one that does not sum the rows of dS, and of the one that does
    (r"14backward_tilesI\w+Li64ELb0E", UNDER_GRAD_WEIGHT, [(450, 64, 0, 0)]),
    (r"14backward_tilesI\w+Li128ELb0E", UNDER_GRAD_WEIGHT, [(334, 32, 0, 0), (342, 32, 0, 0)]),
    # with sums of dS in float, one loop for both warpgroups; a step takes one of two ways, for rows apart or in groups
    (r"14backward_tilesI\w+Li64ELb1E", UNDER_GRAD_WEIGHT, [(777, 64, 0, 0)]),
    (r"14backward_tilesI\w+Li128ELb1E", UNDER_GRAD_WEIGHT, [(493, 32, 0, 0)]),
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
    if not run.returncode and not properties:
        complaints.append("ptxas: expected its word on each kernel (-Xptxas -v), found none")
    for complaint in complaints:
        print(f"check_kernels: {complaint}", file=sys.stderr)
    if complaints:
        print(f"check_kernels: {WAY_OUT}", file=sys.stderr)
    return run.returncode or int(bool(complaints))


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
    """Those behind the body's first product and `waits` of its waits for products, and before the next wait."""
    first = next(i for i, text in enumerate(body) if "HGMMA" in text)
    count = passed = 0
    for text in body[first:]:
        passed += "WARPGROUP.DEPBAR" in text
        count += passed == waits and "MUFU.EX2" in text
    return count if passed > waits else 0


def keeps_budgets(kernels, table, say_all=True):
    """Whether each kernel of the table is there and has the loops that it may have; says of each loop, or of those that have not, what was
    found."""
    good = True
    for row in table:
        if not any(re.search(row[0], name) for name in kernels):
            print(f"{row[0]}: expected a kernel of this name, found none")
            good = False
    for name, instructions in kernels.items():
        row = allowed(table, name)
        if row is None:
            continue
        waits, budgets = row
        loops = innermost_loops(instructions)
        if len(loops) != len(budgets):
            print(f"{name}: expected {len(budgets)} innermost loops of products, found {len(loops)}, of {[len(b) for b in loops]} instructions")
            good = False
        for body, (most, least, moves_allowed, local_allowed) in zip(loops, budgets):
            slots, under, moves = len(body), exponentials_under_product(body, waits), sum("R2UR" in text for text in body)
            local = sum(bool(re.search(r"\b(LDL|STL)\b", text)) for text in body)
            kept = slots <= most and under >= least and moves <= moves_allowed and local <= local_allowed
            if say_all or not kept:
                print(f"{name}: {slots} instructions a block (at most {most}), {under} exponentials under the product (at least {least}), "
                      f"{moves} moves into uniform registers (at most {moves_allowed}), {local} accesses of local memory (at most {local_allowed})"
                      f"{'' if kept else '  OVER BUDGET'}")
            good &= kept
    return good


def check_sass(library, cuobjdump, in_build):
    dump = subprocess.run([cuobjdump, "--dump-sass", library], capture_output=True, text=True)
    if dump.returncode:
        print(f"{cuobjdump}: expected machine code, found {dump.stderr.strip()}; the kernels' loops were not counted")
        return int(not in_build)
    if keeps_budgets(instructions_of(dump.stdout), LOOPS, say_all=not in_build):
        return 0
    if in_build:
        pathlib.Path(library).unlink()  # or the next build would find it made
        print(f"check_kernels: expected loops within their budgets, found others; {WAY_OUT}")
    return 1


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
    parser.add_argument("--in-build", action="store_true")
    arguments = parser.parse_args()
    cuobjdump = find_cuobjdump(arguments.cuobjdump)
    if cuobjdump is None:
        print("cuobjdump: expected on the path, in the CUDA toolkit or beside Triton, found none; the kernels' loops were not counted")
        return 0 if arguments.in_build else SKIPPED
    return check_sass(arguments.library, cuobjdump, arguments.in_build)


if __name__ == "__main__":
    sys.exit(main())
