"""What does not fit into an A100 or an L40S is detected in what ptxas has recorded, which is written by hand here."""

import pathlib
import sys
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import check_resources  # noqa: E402


def dump(name="forward_tilesI6__half", architecture="80", registers=255, stack=0, shared=0, local=0):
    return (f"\nFatbin elf code:\n================\narch = sm_{architecture}\ncode version = [1,8]\n\nResource usage:\n Common:\n  GLOBAL:0\n"
            f" Function {name}:\n  REG:{registers} STACK:{stack} SHARED:{shared} LOCAL:{local} CONSTANT[0]:896 TEXTURE:0 SURFACE:0 SAMPLER:0\n")


def ptx(name="forward_tilesI6__half", bounds=".maxntid 128, 1, 1\n.minnctapersm 2\n"):
    return f"\n.version 9.0\n.target sm_80\n.visible .entry {name}(\n.param .align 8 .b8 {name}_param_0[152]\n)\n{bounds}{{\nret;\n\n}}\n"


class CheckResources(unittest.TestCase):
    def complaints(self, text, local=(), code="", wanted=()):
        with unittest.mock.patch.object(check_resources, "LOCAL", list(local)):
            return check_resources.complaints_about(check_resources.resources_of(text), check_resources.threads_of(code), wanted)

    def test_all_that_fits_passes(self):
        self.assertEqual(self.complaints(dump() + dump(architecture="90", shared=1024) + dump(name="prepare", registers=40)), [])
        self.assertEqual(self.complaints(dump(stack=72), [("forward_tiles", 72)]), [])

    def test_every_architecture_and_kernel_is_read(self):
        found = check_resources.resources_of(dump() + dump(architecture="120", name="backward_keys", registers=168))
        self.assertEqual([(architecture, name, used["REG"]) for architecture, name, used in found],
                         [("80", "forward_tilesI6__half", 255), ("120", "backward_keys", 168)])

    def test_local_memory_over_its_limit_is_found(self):
        self.assertIn("expected at most 72 bytes of local memory, found 80", self.complaints(dump(stack=80), [("forward_tiles", 72)])[0])
        self.assertIn("expected at most 0 bytes of local memory, found 8", self.complaints(dump(local=8))[0])

    def test_shared_memory_beyond_an_l40s_is_found(self):
        self.assertIn("bytes of shared memory, found 101377", self.complaints(dump(shared=99 * 1024 + 1))[0])
        self.assertEqual(self.complaints(dump(shared=100 * 1024, architecture="90")), [])

    def test_registers_beyond_a_multiprocessor_are_found(self):
        self.assertIn("found 67584", self.complaints(dump(registers=257))[0])
        self.assertEqual(self.complaints(dump(name="sweep", registers=168), code=ptx("sweep", ".maxntid 128, 1, 1\n.minnctapersm 3\n")), [])
        self.assertIn("expected at most 65536 registers of 384 threads, found 67584",
                      self.complaints(dump(name="sweep", registers=169), code=ptx("sweep", ".maxntid 64, 2, 1\n.minnctapersm 3\n"))[0])

    def test_launch_bounds_are_read_from_ptx(self):
        code = ptx() + ptx("sum", ".maxntid 32, 32, 1\n") + ptx("add", "") + ".func helper(\n)\n.maxntid 64, 1, 1\n{\n}\n"
        self.assertEqual(check_resources.threads_of(code), {"forward_tilesI6__half": 256, "sum": 1024, "add": 1024})

    def test_a_library_without_its_kernels_is_found(self):
        self.assertEqual(self.complaints(dump(), wanted=["forward_tiles"]), [])
        self.assertEqual(self.complaints(dump(), wanted=["layers"]), ["kernels: expected layers, found none"])

    def test_a_budget_without_a_kernel_is_found(self):
        self.assertEqual(self.complaints(dump(), [("sweep", 8)]), ["kernels: expected sweep, found none"])


if __name__ == "__main__":
    unittest.main()
