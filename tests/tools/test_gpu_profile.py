"""The numbers that tools/gpu_profile takes from Nsight Compute's output. No GPU: shell programs stand for it."""

import json
import os
import pathlib
import subprocess
import unittest

from shell_programs import ShellPrograms

ROOT = pathlib.Path(__file__).resolve().parents[2]
CSV = ('"ID","Kernel Name","sm__cycles.avg","sm__cycles.max","issue.sum","issue.sum.pct","device__attribute_x"\\n"","","cycle","cycle","%%","",""\\n'
       '"0","backward","1,234.5","2","40","3","4"\\n')
NCU = f"""case "$1" in --version) printf 'NVIDIA\\nVersion 1\\n'; exit ;; esac
while [ $# -gt 0 ]; do case "$1" in --log-file) log=$2 ;; regex:*) kernel=$1 ;; *.so) module=$(basename $1) ;; esac; shift; done
echo "$kernel $module" >>"$(dirname "$0")/called"
echo "$LD_LIBRARY_PATH" >"$(dirname "$0")/libraries"
printf '==PROF== attached\\n{CSV}' >"$log\""""


class Profile(ShellPrograms):
    def setUp(self):
        super().setUp()
        for name in ("benchmark_cuda_kernels", "lethe_kernels.so", "lethe_kernels_without_gate.so"):
            self.script(f"build/{name}", "true")
        self.script("bin/nvidia-smi", "echo 'NVIDIA G1'")
        self.script("bin/ncu", NCU)

    def profile(self, *arguments):
        return subprocess.run([ROOT / "tools/gpu_profile", self.folder / "build", "--output", self.folder / "out", "--commit", "abc", *arguments],
                              capture_output=True, text=True, env=os.environ | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"})

    def test_every_kernels_numbers_are_kept_with_their_units(self):
        run = self.profile()
        self.assertEqual(run.returncode, 0, run.stderr)
        content = json.loads((self.folder / "out/backward_profile.json").read_text())
        self.assertEqual((content["commit"], content["gpu"], content["ncu"]), ("abc", "NVIDIA G1", "Version 1"))
        self.assertEqual([(k["head_dim"], k["kernel"]) for k in content["kernels"]],
                         [(dim, kernel) for dim in (64, 128) for kernel in ("float sums", "16-bit sums", "no gate")])
        for kernel in content["kernels"]:
            self.assertEqual(kernel["metrics"], {"ID": [0.0, ""], "sm__cycles.avg": [1234.5, "cycle"], "issue.sum": [40.0, "%"]})
        called = (self.folder / "bin/called").read_text().splitlines()
        self.assertEqual(called[:3], ["regex:14backward_tilesI13__nv_bfloat16Li64ELb1E lethe_kernels.so",
                                      "regex:14backward_tilesI13__nv_bfloat16Li64ELb0E lethe_kernels.so",
                                      "regex:14backward_tilesI13__nv_bfloat16Li64ELb0E lethe_kernels_without_gate.so"])

    def test_libraries_beside_the_programs_are_found(self):
        self.profile()
        self.assertEqual((self.folder / "bin/libraries").read_text().split(":")[0].strip(), str((self.folder / "build").resolve()))

    def test_a_kernel_that_was_not_found_is_an_error_and_leaves_nothing(self):
        self.script("bin/ncu", NCU.replace(CSV, "no kernels were profiled"))
        run = self.profile()
        self.assertEqual(run.returncode, 1)
        self.assertIn("expected names, units and numbers of one kernel, found 0 rows", run.stderr)
        self.assertFalse((self.folder / "out").exists())

    def test_what_is_missing_is_named(self):
        (self.folder / "build/lethe_kernels.so").unlink()
        self.assertIn("expected lethe_kernels.so in", self.profile().stderr)
        self.script("bin/nvidia-smi", "exit 1")
        self.assertIn("expected a GPU", self.profile().stderr)


if __name__ == "__main__":
    unittest.main()
