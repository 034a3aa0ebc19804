"""The predictions' arithmetic, on machine code written by hand: instructions a pipe, the two models, and that a model finds itself again."""

import json
import pathlib
import sys
import tempfile
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

    def test_stores_and_additions_of_9_0_cost_what_those_of_8_0_do(self):
        older = ["STS R1, [R2]"] * 4 + ["RED.E.ADD.F32.FTZ.RN.STRONG.GPU [R2], R1"] * 4
        newer = ["STSM.16.M88.4 [R2], R4", "REDG.E.ADD.F32x4.FTZ.RN.STRONG.GPU [R2], R4"]
        self.assertEqual(predict_gpus.pipes_of(older)["shared"], 32)
        self.assertEqual(predict_gpus.pipes_of(newer), {"issue": 2, "shared": 32})
        self.assertEqual(predict_gpus.pipes_of(["REDG.E.ADD.F32.FTZ.RN.STRONG.GPU [R2], R4"])["shared"], 4)

    def test_a_window_has_instances_that_are_not_counted(self):
        pattern, = predict_gpus.OURS["lethe", "forward", 64][1]
        name = "_ZN5lethe6ampere13forward_tilesI13__nv_bfloat16NS0_12ForwardSizesILi64EEELb{}EEEvNS0_17ForwardParametersE"
        self.assertRegex(name.format(0), pattern)
        self.assertNotRegex(name.format(1), pattern)

    def test_a_gpu_has_the_backward_that_fits_its_shared_memory(self):
        counts = {"issue": 1000, "tensor": 250}
        row = lambda name, direction, dim: {"implementation": name, "direction": direction, "head_dim": dim}
        measured = [row("lethe", direction, dim) for direction in ("backward", predict_gpus.TWO) for dim in (64, 128)]
        measured += [row("flash_attention_2", direction, dim) for direction in ("forward", "backward") for dim in (64, 128)]
        rows = [r | {"flops": 10, "loops": [{"flops": 10, "counts": {"80": counts, "90": counts}}]} for r in measured]
        found, _, _ = predict_gpus.predictions(rows, {"multiprocessors": 132, "cycles_of_a_product": 5.0, "rows": [
            r | {"heads": 1, "length": 16384, "ghz": None, "ms": 1.0} for r in measured]})
        self.assertEqual({(gpu, direction, dim) for gpu, name, direction, dim, *_ in found if name == "lethe"},
                         {("A100 SXM", "backward", 64), ("A100 SXM", predict_gpus.TWO, 128)} | {("L40S", predict_gpus.TWO, dim) for dim in (64, 128)})

    def test_times_come_from_the_gate_rows_of_portable(self):
        line = {"row": "gate", "family": "portable", "head_dim": 64, "heads": 32, "tokens": 16384, "direction": "backward", "milliseconds": 2.0,
                "others": {"FlashAttention-2": 3.0}, "error": None}
        about = {"gpu": "NVIDIA H200", "torch": "2.11.0", "commit": "0" * 40, "date": "2026-11-28T00:00:00Z"}
        before = {"gpu": "NVIDIA H200", "torch": "2.11.0", "multiprocessors": 132, "cycles_of_a_product": 6.0, "rows": []}
        with tempfile.TemporaryDirectory() as folder:
            files = [pathlib.Path(folder) / name for name in ("portable.json", "portable_switches.json", "other.json")]
            files[0].write_text(json.dumps(about | {"rows": [line, line | {"row": "window"}, line | {"family": "hopper"}, line | {"error": "wrong"}]}))
            files[1].write_text(json.dumps(about | {"rows": [line | {"switches": switches} for switches in ({}, {"WIDE64": 0}, {"WIDE": 0})]}))
            files[2].write_text(json.dumps(about | {"gpu": "NVIDIA H100", "rows": []}))
            found = predict_gpus.from_portable(before, files[:2])
            with self.assertRaisesRegex(SystemExit, "expected NVIDIA H200.*found NVIDIA H100"):
                predict_gpus.from_portable(before, files[2:])
        self.assertEqual([(r["implementation"], r["direction"], r["ms"]) for r in found["rows"]],
                         [("lethe", "backward", 2.0), ("flash_attention_2", "backward", 3.0), ("lethe", predict_gpus.TWO, 2.0)])
        self.assertEqual(found["cycles_of_a_product"], 6.0)

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
