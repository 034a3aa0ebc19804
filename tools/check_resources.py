#!/usr/bin/env python3
"""Registers, shared and local memory of the kernels for every GPU, within what an A100 and an L40S have: a test of what is built, of label `kernels`.

usage: check_resources.py LIBRARY [--nvcc VERSION] [--cuobjdump PATH]

Reads what ptxas has recorded for each kernel and architecture of LIBRARY. Both GPUs have 65536 registers a multiprocessor; a CTA has at most 99 KB of
shared memory on an L40S. What a launch asks for besides is held to that by static_assert beside the launch. Exits with 77, which ctest counts as
skipped, without cuobjdump and where VERSION, of the nvcc that built the library, is not the one whose budgets these are.
"""
import one_line_errors  # noqa: F401  (first: an error is one line)

import argparse
import re
import subprocess
import sys

from check_kernels import NVCC, SKIPPED, allowed, find_cuobjdump

REGISTERS, SHARED = 65536, 99 * 1024
THREADS = 256  # of the CTAs that a kernel of matrix products has on a multiprocessor, two of 128 or one of 256: its __launch_bounds__
PRODUCTS = r"forward_tiles|backward_keys|backward_queries|backward_wide"
OF_CUDA = 1024  # bytes that CUDA reserves from compute capability 9.0 on

# Bytes of a kernel's local memory, its spills included, by a pattern of its mangled name; 0 where none matches. As counted in the code of 8.0, which
# both GPUs run, 9.0 and 12.0: the most are float32's forward at head dim 128 and the wide backward at 128, both on 8.0, and the keys' kernel at 64,
# which only the fixed order has where there is shared memory for the wide one, on 12.0.
LOCAL = [(r"ampere\w*forward_tilesIf\w*SizesILi128E", 480), (r"ampere\w*backward_wide\w*SizesILi128E", 296),
         (r"ampere\w*backward_keys\w*SweepSizesILi64E", 280),
         (r"ampere\w*(forward_tiles|backward_(keys|queries|wide))", 264), (r"scan_(norms_)?and_bound", 64)]


def resources_of(dump):
    """[(architecture, kernel, {"REG": …, "STACK": …, "SHARED": …, "LOCAL": …})]"""
    found = []
    for part in re.split(r"(?=^arch = )", dump, flags=re.M):
        architecture = re.match(r"arch = sm_(\w+)", part)
        for name, numbers in re.findall(r"Function (\S+):\s*\n\s*(REG:.*)", part):
            found.append((architecture[1] if architecture else "", name, {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", numbers)}))
    return found


def complaints_about(resources):
    """What of the kernels does not fit, in words."""
    complaints = [] if any(re.search(PRODUCTS, name) for _, name, _ in resources) else [f"kernels: expected {PRODUCTS}, found none"]
    for architecture, name, used in resources:
        place = f"sm_{architecture} {name}"
        if re.search(PRODUCTS, name) and (registers := (used["REG"] + 7) // 8 * 8 * THREADS) > REGISTERS:
            complaints.append(f"{place}: expected at most {REGISTERS} registers of {THREADS} threads, found {registers}")
        if used["SHARED"] > SHARED + OF_CUDA * (int(re.match(r"\d+", architecture)[0]) >= 90):
            complaints.append(f"{place}: expected at most {SHARED} bytes of shared memory, found {used['SHARED']}")
        limit, local = (allowed(LOCAL, name) or (0,))[0], used["STACK"] + used["LOCAL"]
        if local > limit:
            complaints.append(f"{place}: expected at most {limit} bytes of local memory, found {local}")
    return complaints


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1])
    parser.add_argument("library")
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
    dump = subprocess.run([cuobjdump, "--dump-resource-usage", arguments.library], capture_output=True, text=True)
    if dump.returncode:
        print(f"{cuobjdump}: expected machine code, found {dump.stderr.strip()}")
        return 1
    resources = resources_of(dump.stdout)
    for architecture, name, used in resources:
        if re.search(PRODUCTS, name):
            print(f"sm_{architecture} {name}: {used['REG']} registers, {used['STACK'] + used['LOCAL']} bytes of local memory")
    complaints = complaints_about(resources)
    print(*complaints, sep="\n")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
