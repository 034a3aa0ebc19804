"""The include checker finds each kind of violation, and none in a tree that keeps the rules."""

import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import check_includes  # noqa: E402


class CheckIncludes(unittest.TestCase):
    def found(self, path: str, line: str):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / path
            file.parent.mkdir(parents=True)
            file.write_text(line + "\n")
            return list(check_includes.violations(pathlib.Path(folder)))

    def test_each_forbidden_include_is_found(self):
        for path, line in [
            ("reference/a.cpp", "#include <torch/torch.h>"),
            ("reference/a.cpp", "#include <thread>"),
            ("reference/a.cpp", "#include <omp.h>"),
            ("reference/a.cpp", '#include "optimized/cuda/attention.hpp"'),
            ("optimized/cuda/a.cu", "#include <Eigen/Core>"),
            ("optimized/cuda/a.cu", '#include "reference/forgetting_attention.hpp"'),
            ("optimized/cuda/gate/a.cuh", '#include "optimized/cuda/hopper/bias_step.cuh"'),
            ("optimized/cuda/gate/a.cuh", '#include "optimized/cuda/hopper/ptx/barrier.cuh"'),
            ("optimized/cuda/tile/a.cuh", '#include "optimized/cuda/hopper/ptx/fragment.cuh"'),
            ("optimized/cuda/a.cu", '#include "optimized/torch/implementations.hpp"'),
            ("optimized/cpu/a.cpp", '#include "optimized/torch/implementations.hpp"'),
            ("optimized/cpu/a.cpp", "#include <torch/library.h>"),
            ("optimized/operators/a.hpp", '#include "optimized/cpu/operators.hpp"'),
            ("optimized/portable/a.cpp", "#include <torch/library.h>"),
            ("optimized/torch/a.cpp", "#include <Eigen/Core>"),
            ("optimized/torch/a.cpp", '#include "reference/head.hpp"'),
            ("experiments/models/a.cpp", '#include "tests/support/a.hpp"'),
            ("experiments/evaluation/a.cpp", '#include "experiments/claims/verdict.hpp"'),
            ("experiments/commands/a.cpp", '#include "experiments/papers/forgetting_transformer/rows.hpp"'),
            ("experiments/claims/a.cpp", '#include "experiments/papers/forgetting_transformer/rows.hpp"'),
            ("experiments/papers/throughput/a.cpp", '#include "experiments/papers/forgetting_transformer/rows.hpp"'),
            ("experiments/papers/forgetting/a.cpp", '#include "experiments/papers/forgetting_transformer/rows.hpp"'),
            ("optimized/torch/a.cpp", '#include "../kernels.hpp"'),
        ]:
            with self.subTest(path=path, line=line):
                self.assertTrue(self.found(path, line))

    def test_a_violation_planted_in_each_folder_is_found(self):
        planted = {"reference": ("omp.h", "optimized/gate.hpp"), "optimized/cuda": ("torch/torch.h", "optimized/torch/operators.hpp"),
                   "optimized/layers": ("Eigen/Core", "optimized/gate.hpp"),
                   "optimized/operators": ("torch/library.h", "optimized/cpu/operators.hpp"),
                   "optimized/cpu": ("torch/library.h", "optimized/torch/operators.hpp"),
                   "optimized/portable": ("torch/library.h", "optimized/torch/operators.hpp"),
                   "optimized/torch": ("nlohmann/json.hpp", "experiments/files.hpp"), "optimized": ("Eigen/Core", "experiments/files.hpp"),
                   "experiments": ("gtest/gtest.h", "tests/support/heads.hpp")}
        self.assertEqual(planted.keys(), check_includes.RULES.keys())
        for folder, (system, ours) in planted.items():
            with self.subTest(folder):
                file = f"{folder}/a.cpp"
                self.assertEqual(self.found(file, f"#include <{system}>"), [f"{file}:1: expected no <{system}> in this folder"])
                found, = self.found(file, f'#include "{ours}"')
                self.assertRegex(found, rf'^{file}:1: expected an include of .*, found "{ours}"$')
        for shared, families in check_includes.SHARED.items():
            for family in families:
                with self.subTest(shared, family=family):
                    self.assertEqual(self.found(f"{shared}/a.cuh", f'#include "{family}/tiles.cuh"'),
                                     [f'{shared}/a.cuh:1: expected no kernel family and no instruction of one in {shared}, found '
                                      f'"{family}/tiles.cuh"'])

    def test_what_the_rules_allow_passes(self):
        for path, line in [
            ("reference/a.cpp", "#include <Eigen/Core>"),
            ("reference/a.cpp", "#include <vector>"),
            ("optimized/cuda/a.cu", '#include "reference/problem.hpp"'),
            ("optimized/cpu/a.cpp", "#include <ATen/core/Tensor.h>"),
            ("optimized/cpu/a.cpp", '#include "optimized/operators/attention.hpp"'),
            ("optimized/torch/a.cpp", "#include <torch/library.h>"),
            ("tests/a.cpp", '#include "experiments/papers/throughput/a.hpp"'),
            ("experiments/papers/throughput/b/b.cpp", '#include "experiments/papers/throughput/a.hpp"'),
            ("experiments/papers/throughput/a.cpp", '#include "experiments/claims/claim.hpp"'),
            ("experiments/commands/a.cpp", '#include "experiments/claims/registry.hpp"'),
        ]:
            with self.subTest(path=path, line=line):
                self.assertEqual(self.found(path, line), [])

    def test_the_project_keeps_its_rules(self):
        self.assertEqual(list(check_includes.violations(ROOT)), [])


if __name__ == "__main__":
    unittest.main()
