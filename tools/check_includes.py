#!/usr/bin/env python3
"""Checks which folder includes which (README of the project, "The house"): prints every include that its folder may not have.

usage: tools/check_includes.py [root]     exit status 1 where there is one
"""

import one_line_errors  # noqa: F401  (first: an error is one line)

import pathlib
import re
import sys

# folder -> (a pattern that its #include <…> may not match, the folders of ours that its #include "…" may name). Of the standard library nothing that
# runs in parallel; a name with a slash or a dot is of another library.
NOT_STD_OR_EIGEN = r"(?!Eigen/).*[/.].*|thread|mutex|shared_mutex|atomic|future|condition_variable|semaphore|barrier|latch|execution"
RULES = {
    "reference": (NOT_STD_OR_EIGEN, ["reference"]),
    "optimized/cuda": (r"(Eigen|torch|ATen|c10|nlohmann|CLI|toml|libfccp|gtest|benchmark)\b.*",
                       ["optimized/cuda", "optimized/layers", "optimized/coverage.hpp", "optimized/gate.hpp", "optimized/kept_states.hpp",
                        "reference/problem.hpp"]),
    # The arguments of kernels of both devices, as plain data.
    "optimized/layers": (NOT_STD_OR_EIGEN + "|Eigen/.*", ["optimized/layers", "reference/problem.hpp"]),
    # ATen, but not the Torch binding: neither ours nor Torch's.
    "optimized/operators": (r"(Eigen|torch|nlohmann|CLI|toml|libfccp|gtest|benchmark)\b.*", ["optimized/operators", "optimized/gate.hpp"]),
    "optimized/cpu": (r"(Eigen|torch|nlohmann|CLI|toml|libfccp|gtest|benchmark)\b.*",
                      ["optimized/cpu", "optimized/operators", "optimized/layers", "optimized/gate.hpp"]),
    "optimized/portable": (r"(Eigen|torch|nlohmann|CLI|toml|libfccp|gtest|benchmark)\b.*",
                           ["optimized/portable", "optimized/operators", "optimized/gate.hpp"]),
    "optimized/torch": (r"(Eigen|nlohmann|CLI|toml|libfccp|gtest|benchmark)\b.*",
                        ["optimized/torch", "optimized/operators", "optimized/cpu", "optimized/cuda", "optimized/portable",
                         "optimized/layers", "optimized/coverage.hpp", "optimized/kept_states.hpp", "reference/problem.hpp"]),
    "optimized": (r"Eigen\b.*", ["optimized", "reference/problem.hpp"]),
    "experiments": (r"gtest\b.*", ["experiments", "optimized", "reference"]),
}
# The folders that all kernel families share name no family's instructions: folder -> the folders that its #include "…" may not name.
SHARED = {
    "optimized/cuda/gate": ["optimized/cuda/ampere", "optimized/cuda/hopper", "optimized/cuda/ptx"],
    "optimized/cuda/tile": ["optimized/cuda/ampere", "optimized/cuda/hopper", "optimized/cuda/ptx"],
    "optimized/cuda/ptx": ["optimized/cuda/ampere", "optimized/cuda/hopper"],
}
# A paper's folder is included only by itself and the tests; the code that all claims share, by papers and commands.
PAPERS = "experiments/papers"
CLAIMS = "experiments/claims"
MAY_NAME_CLAIMS = (CLAIMS, PAPERS, "experiments/commands", "experiments/lethe.cpp", "tests")
SUFFIXES = {".hpp", ".cpp", ".cu", ".cuh", ".h"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:<([^>]+)>|"([^"]+)")')


def below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def rule_for(path: str):
    """The rule of the longest matching folder, or None (tests may include everything)."""
    folders = [folder for folder in RULES if below(path, folder)]
    return RULES[max(folders, key=len)] if folders else None


def paper_of(path: str) -> str:
    """experiments/papers/PAPER of a path below it."""
    return "/".join(path.split("/")[:3])


def violations(root: pathlib.Path):
    for file in sorted(root.rglob("*")):
        path = file.relative_to(root).as_posix()
        if file.suffix not in SUFFIXES or path.startswith((".", "build/", "artefacts/", "results/", "carry/")):
            continue
        rule = rule_for(path)
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            system, ours = match.groups()
            where = f"{path}:{number}"
            if ours and ".." in ours:
                yield f'{where}: expected a path from the root, found "{ours}"'
            if ours and below(ours, PAPERS) and not (below(path, paper_of(ours)) or below(path, "tests")):
                yield f'{where}: expected only {paper_of(ours)} to include it, found "{ours}"'
            if ours and below(ours, CLAIMS) and not any(below(path, folder) for folder in MAY_NAME_CLAIMS):
                yield f'{where}: expected only papers and commands to include {CLAIMS}, found "{ours}"'
            for shared, families in SHARED.items():
                if ours and below(path, shared) and any(below(ours, family) for family in families):
                    yield f'{where}: expected no kernel family and no instruction of one in {shared}, found "{ours}"'
            if rule is None:
                continue
            forbidden, allowed = rule
            if system and re.fullmatch(forbidden, system):
                yield f"{where}: expected no <{system}> in this folder"
            if ours and not any(below(ours, folder) for folder in allowed):
                yield f'{where}: expected an include of {", ".join(allowed)}, found "{ours}"'


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    if not (root / "CMakeLists.txt").is_file():
        print(f"check_includes: root: expected a checkout, found {root}", file=sys.stderr)
        return 2
    found = list(violations(root))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
