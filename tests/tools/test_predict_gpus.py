"""The predictions' arithmetic, on machine code written by hand: instructions a pipe, the two models, and that a model finds itself again."""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import predict_gpus  # noqa: E402

STEP = ["HMMA.16816.F32.BF16 R4, R8, R12, R4", "@!P1 MUFU.EX2 R5, R5", "FMUL.FTZ R6, R6, R7", "FADD R6, R6, R7", "LDSM.16.M88.4 R8, [R2]",
        "FMNMX R1, R2, R3, !PT", "LDS.64 R4, [R2]", "UIADD3 UR4, UR5, 0x1, URZ", "BAR.SYNC 0x0"]


def code(*bodies):
    """Loops one after another, in instructions of 16 bytes."""
    lines = []
    for body in bodies:
        begin = 16 * len(lines)
        lines += [*body, f"@P0 BRA 0x{begin:x}"]
    return [(16 * i, text) for i, text in enumerate([*lines, "EXIT"])]


class PredictGpus(unittest.TestCase):
    def test_the_main_loop_holds_products_and_exponentials(self):
        products = [text for text in STEP if "MUFU" not in text]
        self.assertEqual(predict_gpus.main_loop(code(products, STEP, ["NOP"]))[:-1], STEP)
        self.assertIsNone(predict_gpus.main_loop(code(products)))

    def test_a_step_leaves_out_what_it_may_skip(self):
        body = [*STEP[:2], f"@P1 BRA 0x{16 * 5:x}", "FSEL R1, R1, R2, P2", "FSEL R1, R1, R2, P2", *STEP[2:]]
        path = predict_gpus.main_loop(code(body))
        self.assertFalse(any("FSEL" in text for text in path))
        self.assertEqual(len(path), len(STEP) + 2)

    def test_each_instruction_is_counted_at_its_pipe(self):
        self.assertEqual(predict_gpus.pipes_of(STEP), {"issue": 9, "tensor": 1, "special": 1, "fp32": 2, "shared": 16 + 8, "alu": 1})

    def test_models_are_the_busiest_pipe_and_the_tensor_pipe_with_the_next(self):
        counts = {"issue": 1601, "fp32": 729, "alu": 368, "shared": 1324, "tensor": 256, "special": 132}
        self.assertEqual(predict_gpus.cycles(counts, "80", 8), (2048, 2048 + 1458))
        self.assertEqual(predict_gpus.cycles(counts, "90", 4), (1601, 1024 + 1345))
        self.assertEqual(predict_gpus.cycles(counts, "89", 16), (4096, 4096 + 1345))

    def test_a_gpu_at_full_efficiency_has_its_rate_of_products(self):
        counts = {"issue": 10, "tensor": 10}
        row = {"flops": 4, "loops": [{"flops": 4, "counts": {"80": counts}}]}
        overlapped, in_turn = predict_gpus.speed(row, [1, 1], "A100 SXM", 1.41)
        self.assertAlmostEqual(overlapped, 311.9, delta=0.1)
        self.assertAlmostEqual(in_turn, overlapped)

    def test_a_figure_follows_from_the_efficiency_measured_beside_it(self):
        counts = {"issue": 1000, "tensor": 250, "fp32": 500}
        rows = [{"implementation": name, "direction": direction, "head_dim": dim, "flops": flops, "loops": [{"flops": flops, "counts": {"80": counts, "90": counts}}]}
                for name in ("lethe", "flash_attention_2") for direction, flops in (("forward", 4), ("backward", 10)) for dim in (64, 128)]
        measured = {"multiprocessors": 132, "cycles_of_a_product": 5.0, "rows": [
            {"implementation": r["implementation"], "direction": r["direction"], "head_dim": r["head_dim"], "heads": 1, "length": 16384, "ghz": 1.5,
             "ms": 1.0 if r["implementation"] == "lethe" else 2.0} for r in rows]}
        found, check, efficiencies = predict_gpus.predictions(rows, measured)
        speeds = {row[:4]: row[4] for row in found}
        for dim in (64, 128):  # half the time, twice the speed, on every GPU
            for gpu in predict_gpus.GPUS:
                self.assertAlmostEqual(speeds[gpu, "lethe", "forward", dim][0], 2 * speeds[gpu, "flash_attention_2", "forward", dim][0])
            self.assertAlmostEqual(efficiencies["lethe", "forward", dim][0], 2 * efficiencies["flash_attention_2", "forward", dim][0])
        self.assertEqual(set(check), {64, 128})
        pairs = 16384 * 16385 / 2 * 64
        here = 4 * pairs / 1e-3 * 1e-12  # TFLOP/s measured; 8 cycles of a product for 5, and the clocks and multiprocessors of both
        expected = here * (1250 / 2000) * (108 * 1.41) / (132 * 1.5)
        self.assertAlmostEqual(speeds["A100 SXM", "lethe", "forward", 64][0], expected, delta=1e-6 * expected)


if __name__ == "__main__":
    unittest.main()
