#!/usr/bin/env python3
"""Registers, shared and local memory of the kernels for every GPU, within what an A100 and an L40S have: a test of what is built, of label `kernels`.

usage: check_resources.py LIBRARY… [--nvcc VERSION] [--cuobjdump PATH]

Reads what ptxas has recorded for each kernel and architecture of the libraries, and its __launch_bounds__ in their PTX. Both GPUs have 65536
registers a multiprocessor; a CTA has at most 99 KB of shared memory on an L40S. What a launch asks for besides is held to that by static_assert
beside the launch, or to what the GPUs have on which optimized/coverage.cpp lets it run. Exits with 77, which ctest counts as skipped, without
cuobjdump and where VERSION, of the nvcc that built the libraries, is not the one whose budgets these are.
"""
import one_line_errors  # noqa: F401  (first: an error is one line)

import argparse
import math
import re
import subprocess
import sys

from check_kernels import NVCC, SKIPPED, allowed, find_cuobjdump

REGISTERS, SHARED = 65536, 99 * 1024
THREADS = 256  # where a library has no PTX: of the CTAs that a kernel of matrix products has on a multiprocessor, two of 128 or one of 256
MOST_THREADS = 1024  # of a CTA without __launch_bounds__
PRODUCTS = r"forward_tiles|backward_keys|backward_queries|backward_wide"
OF_CUDA = 1024  # bytes that CUDA reserves from compute capability 9.0 on
KERNELS = [PRODUCTS, r"matrix_state\w*vector_gradient", r"layers\w*cross_entropy"]  # one of each library

# Bytes of a kernel's local memory, its spills included, by a pattern of its mangled name; 0 where none matches. As counted in the code of 8.0, which
# both GPUs run, 9.0 and, of attention, 12.0, where a driver assembles the other libraries. All are spills of kernels with all the registers of their
# __launch_bounds__, but the scan's.
LOCAL = [
    # The most are float32's forward at head dim 128 and the wide backward at 128, both on 8.0, and the keys' kernel at 64, which only the fixed order
    # has where there is shared memory for the wide one, on 12.0.
    (r"ampere\w*forward_tilesIf\w*SizesILi128E", 480),
    (r"ampere\w*backward_wide\w*SizesILi128E", 296),
    (r"ampere\w*backward_keys\w*SweepSizesILi64E", 280),
    (r"ampere\w*(forward_tiles|backward_(keys|queries|wide))", 264),
    (r"scan_(norms_)?and_bound", 64),
    # The matrix state. The delta rule's on 8.0 alone: on 9.0 it has kernels by wgmma.
    (r"matrix_state\w*15delta_gradients", 232),
    (r"matrix_state\w*14delta_reversed\w+Li64E", 160),
    (r"matrix_state\w*12delta_chunks\w+Li64E", 48),
    (r"matrix_state\w*5sweepI\w+Li256E\w+RoleE1ELb1E", 80),  # dq with a gate
    (r"matrix_state\w*5sweepI\w+Li64ELi64E\w+RoleE0E", 56),  # three CTAs a multiprocessor
    (r"matrix_state\w*5sweepI", 32),
    (r"matrix_state\w*15fused_gradients\w+Lb1E", 16),
    (r"matrix_state\w*12vector_sweepI\w+Li32ELb1E", 16),
    (r"matrix_state\w*12vector_pairs", 64),
    (r"matrix_state\w*15vector_gradient", 24),
    (r"matrix_state\w*18vector_side_states\w+Lb1E", 16),  # three CTAs of six warps a multiprocessor
    (r"matrix_state\w*12vector_sides\w+Lb1E", 72),
    (r"matrix_state\w*18reverse_delta_keys\w+Li128E", 72),
    (r"matrix_state\w*19delta_key_gradients", 48),
    (r"matrix_state\w*(16sweep|18prepare)_delta_keys", 8),
    (r"matrix_state\w*4scanILi(64|128)ELi64E", 32),  # an array of a thread's numbers: kRowPiece of ScanShape
    # q, k, v and gates of a layer, with its shifts
    (r"layers\w*attention_inputs\w*15backward_kernel\w+Lb1E", 32),
]


def resources_of(dump):
    """[(architecture, kernel, {"REG": …, "STACK": …, "SHARED": …, "LOCAL": …})]"""
    found = []
    for part in re.split(r"(?=^arch = )", dump, flags=re.M):
        architecture = re.match(r"arch = sm_(\w+)", part)
        for name, numbers in re.findall(r"Function (\S+):\s*\n\s*(REG:.*)", part):
            found.append((architecture[1] if architecture else "", name, {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", numbers)}))
    return found


def threads_of(dump):
    """{kernel: the threads that its __launch_bounds__ put on a multiprocessor}, of a dump of PTX."""
    found = {}
    for name, directives in re.findall(r"^(?:\.(?:visible|weak) )?\.entry (\w+)\([^)]*\)\s*((?:\.\w+ [\d, ]+\n)*)", dump, flags=re.M):
        bounds = {word: [int(number) for number in numbers.split(",")] for word, numbers in re.findall(r"\.(\w+) ([\d, ]+)\n", directives)}
        found[name] = math.prod(bounds.get("maxntid", [MOST_THREADS])) * bounds.get("minnctapersm", [1])[0]
    return found


def complaints_about(resources, threads, wanted):
    """What of the kernels does not fit, in words; threads: threads_of() their PTX. Each kernel that `wanted` and the budgets name must be there."""
    complaints = [f"kernels: expected {pattern}, found none" for pattern in (*wanted, *(row[0] for row in LOCAL))
                  if not any(re.search(pattern, name) for _, name, _ in resources)]
    for architecture, name, used in resources:
        place = f"sm_{architecture} {name}"
        own = threads.get(name, THREADS if re.search(PRODUCTS, name) else 0)
        if (registers := (used["REG"] + 7) // 8 * 8 * own) > REGISTERS:
            complaints.append(f"{place}: expected at most {REGISTERS} registers of {own} threads, found {registers}")
        if used["SHARED"] > SHARED + OF_CUDA * (int(re.match(r"\d+", architecture)[0]) >= 90):
            complaints.append(f"{place}: expected at most {SHARED} bytes of shared memory, found {used['SHARED']}")
        limit, local = (allowed(LOCAL, name) or (0,))[0], used["STACK"] + used["LOCAL"]
        if local > limit:
            complaints.append(f"{place}: expected at most {limit} bytes of local memory, found {local}")
    return complaints


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
    resources, threads = [], {}
    for library in arguments.libraries:
        dumps = [subprocess.run([cuobjdump, option, library], capture_output=True, text=True) for option in ("--dump-resource-usage", "--dump-ptx")]
        for dump, wanted in zip(dumps, ("machine code", "PTX")):
            if dump.returncode:
                print(f"{cuobjdump}: expected {wanted} of {library}, found {dump.stderr.strip()}")
                return 1
        resources += resources_of(dumps[0].stdout)
        threads |= threads_of(dumps[1].stdout)
    for architecture, name, used in resources:
        if re.search(PRODUCTS, name):
            print(f"sm_{architecture} {name}: {used['REG']} registers, {used['STACK'] + used['LOCAL']} bytes of local memory")
    print(f"{len(resources)} kernels, __launch_bounds__ of {sum(name in threads for _, name, _ in resources)}")
    complaints = complaints_about(resources, threads, KERNELS)
    print(*complaints, sep="\n")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
