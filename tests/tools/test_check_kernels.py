"""The kernels' budget: which loops it holds, and that a loop that breaks it is found out. Of machine code written by hand."""

import contextlib
import io
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import check_kernels  # noqa: E402

PRODUCT, EXPONENTIAL, WAIT = "HGMMA.64x64x16.F32 R24, R4, gdesc[UR4], R24", "@!P1 MUFU.EX2 R5, R5", "WARPGROUP.DEPBAR.LE gsb0, 0x1"
FORWARD = [PRODUCT, PRODUCT, WAIT, EXPONENTIAL, EXPONENTIAL, WAIT]
BACKWARD = [PRODUCT, EXPONENTIAL, PRODUCT, EXPONENTIAL, WAIT, PRODUCT, WAIT]


def kernel(*parts):
    """As cuobjdump writes it. A part is an instruction, or the body of a loop: a list, that a branch back to its begin follows."""
    lines = []

    def add(part):
        if isinstance(part, str):
            lines.append(part)
            return
        begin = len(lines)
        for inner in part:
            add(inner)
        lines.append(f"@P0 BRA 0x{16 * begin:x}")

    for part in parts:
        add(part)
    code = "".join(f"        /*{16 * i:04x}*/    {text} ;   /* 0x0000000000007918 */\n" for i, text in enumerate(lines))
    return check_kernels.instructions_of("\tFunction : kernel\n" + code)


class CheckKernels(unittest.TestCase):
    def broken(self, kernels, waits, budgets, pattern="kernel"):
        """What is said of a budget that is broken; None of one that is kept."""
        with contextlib.redirect_stdout(io.StringIO()) as said:
            kept = check_kernels.keeps_budgets(kernels, [(pattern, waits, budgets)])
        return None if kept else said.getvalue()

    def test_innermost_loops_of_products_are_held_the_shortest_first(self):
        spin, end = ["SYNCS.PHASECHK R1"], "BRA 0x0"  # the last from behind the kernel's end, where a wait spins
        instructions = kernel("PREEXIT", spin, [[*FORWARD, "NOP"], spin, FORWARD], "@P0 EXIT", "EXIT", spin, end)["kernel"]
        self.assertEqual([len(body) for body in check_kernels.innermost_loops(instructions)], [7, 8])

    def test_a_budget_that_is_just_kept_passes(self):
        self.assertIsNone(self.broken(kernel(FORWARD), check_kernels.UNDER_OUTPUT, [(7, 2)]))
        self.assertIsNone(self.broken(kernel(BACKWARD), check_kernels.UNDER_GRAD_WEIGHT, [(8, 2)]))

    def test_each_loop_may_have_grown(self):
        loops = kernel([*FORWARD, "NOP"], FORWARD)
        self.assertIsNone(self.broken(loops, check_kernels.UNDER_OUTPUT, [(7, 2), (8, 2)]))
        self.assertIn("7 instructions a block (at most 6)", self.broken(loops, check_kernels.UNDER_OUTPUT, [(6, 2), (8, 2)]))
        self.assertIn("8 instructions a block (at most 7)", self.broken(loops, check_kernels.UNDER_OUTPUT, [(7, 2), (7, 2)]))

    def test_an_exponential_elsewhere_is_missed_under_the_product(self):
        for body, waits in [
            ([PRODUCT, PRODUCT, WAIT, EXPONENTIAL, WAIT, EXPONENTIAL], check_kernels.UNDER_OUTPUT),
            ([PRODUCT, EXPONENTIAL, PRODUCT, WAIT, EXPONENTIAL, WAIT], check_kernels.UNDER_OUTPUT),
            ([EXPONENTIAL, PRODUCT, EXPONENTIAL, PRODUCT, WAIT, WAIT], check_kernels.UNDER_GRAD_WEIGHT),
            ([PRODUCT, EXPONENTIAL, PRODUCT, WAIT, EXPONENTIAL, WAIT], check_kernels.UNDER_GRAD_WEIGHT),
        ]:
            with self.subTest(body=body, waits=waits):
                self.assertIn("1 exponentials under the product (at least 2)", self.broken(kernel(body), waits, [(7, 2)]))

    def test_exponentials_that_no_wait_follows_are_under_no_product(self):
        body = [PRODUCT, EXPONENTIAL, EXPONENTIAL]
        self.assertIn("0 exponentials", self.broken(kernel(body), check_kernels.UNDER_GRAD_WEIGHT, [(4, 2)]))

    def test_a_loop_or_a_kernel_too_few_or_too_many_is_found(self):
        said = self.broken(kernel(FORWARD, FORWARD), check_kernels.UNDER_OUTPUT, [(7, 2)])
        self.assertIn("expected 1 innermost loops of products, found 2, of [7, 7] instructions", said)
        self.assertIn("found 0", self.broken(kernel("EXIT"), check_kernels.UNDER_OUTPUT, [(7, 2)]))
        self.assertIn("expected a kernel of this name", self.broken(kernel(FORWARD), check_kernels.UNDER_OUTPUT, [(7, 2)], pattern="other"))


if __name__ == "__main__":
    unittest.main()
