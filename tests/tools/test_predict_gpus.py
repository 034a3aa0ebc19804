"""The predictions' arithmetic, on machine code written by hand: instructions a pipe, the two models, and that a model finds itself again."""

import argparse
import contextlib
import io
import json
import pathlib
import re
import sys
import tempfile
import types
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import predict_gpus  # noqa: E402
import predict_gpus_counts as counted  # noqa: E402

STEP = ["HMMA.16816.F32.BF16 R4, R8, R12, R4", "@!P1 MUFU.EX2 R5, R5", "FMUL.FTZ R6, R6, R7", "FADD R6, R6, R7", "LDSM.16.M88.4 R8, [R2]",
        "FMNMX R1, R2, R3, !PT", "LDS.64 R4, [R2]", "UIADD3 UR4, UR5, 0x1, URZ", "BAR.SYNC 0x0"]


def code(*bodies):
    """Loops one after another, in instructions of 16 bytes."""
    lines = []
    for body in bodies:
        begin = 16 * len(lines)
        lines += [*body, f"@P0 BRA 0x{begin:x}"]
    return [(16 * i, text) for i, text in enumerate([*lines, "EXIT"])]


def rows_of_every_kernel():
    counts = {"issue": 1000, "tensor": 250}
    return [{"implementation": name, "direction": direction, "head_dim": dim, "flops": 10,
             "loops": [{"flops": 10, "counts": {"80": counts, "90": counts}}]} for name, direction, dim in (*counted.OURS, *counted.FLASH)]


def times(line, milliseconds, flash, **changed):
    """A row of portable.py, forward or backward, at head dim 64 unless changed."""
    return {"row": "gate", "family": "portable", "head_dim": 64, "heads": 32, "tokens": 16384, "direction": line, "milliseconds": milliseconds,
            "others": {"FlashAttention-2": flash}, "error": None} | changed


class Page(unittest.TestCase):
    """The page of a made-up folder of results."""

    def setUp(self):
        self.results = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        rows = rows_of_every_kernel()
        timed = [r | {"heads": 1, "length": 16384, "ghz": None, "ms": 1.0} for r in rows if counted.SMALL not in r["direction"]]
        self.write("predictions/counts.json", rows)
        self.measured = {"gpu": "NVIDIA H200", "torch": "2.11.0", "multiprocessors": 132, "cycles_of_a_product": 5.0, "rows": timed}
        self.write("predictions/measured.json", self.measured)

    def write(self, name, contents):
        path = self.results / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(contents))

    def times_of(self, folder, gpu, rows, commit="a" * 40, date="2027-01-02T03:04:05Z", dirty=None):
        self.write(f"{folder}/portable.json", {"gpu": gpu, "commit": commit, "date": date, "dirty": dirty, "rows": rows})

    def page(self):
        """The text, and (low, high, kind) by GPU, implementation, direction and head dim."""
        folder = self.results / "predictions"
        with contextlib.redirect_stdout(io.StringIO()):
            predict_gpus.predict(argparse.Namespace(folder=folder, library=None, torch=None, cuobjdump=None, portable=[]))
        table = json.loads((folder / "predictions.json").read_text())
        return (folder / "predictions.md").read_text(), {(r["gpu"], r["implementation"], r["direction"], r["head_dim"]):
                                                         (r["low_tflops"], r["high_tflops"], r["kind"]) for r in table}

    def test_without_times_of_these_gpus_has_predictions_alone(self):
        self.times_of("h200", "NVIDIA H200", [times("forward", 1.0, 1.0)])
        self.times_of("a100-sxm4-80gb_mig", "NVIDIA A100-SXM4-80GB MIG 3g.40gb", [times("forward", 1.0, 1.0)])
        self.times_of("l40", "NVIDIA L40", [times("forward", 1.0, 1.0)])
        text, table = self.page()
        self.assertEqual({kind for *_, kind in table.values()}, {"prediction"})
        self.assertIn("**Every figure of this page is a prediction**", text)
        self.assertNotIn("(measured", text)

    def test_has_an_a100s_times_in_place_of_its_predictions(self):
        before = self.page()[1]
        self.times_of("a100-sxm4-80gb", "NVIDIA A100-SXM4-80GB", [
            times("forward", 4.0, 5.0), times("backward", 12.0, 11.0), times("backward", 13.0, None, head_dim=128, heads=16, others={}),
            times("forward", 1.0, 1.0, head_dim=96, error="wrong"), times("forward", 1.0, 1.0, head_dim=256, tokens=4096),
            times("forward", 1.0, 1.0, head_dim=96, family="hopper")])
        text, table = self.page()
        pairs = 16384 * 16385 / 2 * 2048
        figure = lambda flops, ms: f"{flops * pairs / ms * 1e-9:.0f}"
        expected = {("lethe", "forward", 64): figure(4, 4.0), ("flash_attention_2", "forward", 64): figure(4, 5.0),
                    ("lethe", "backward", 64): figure(10, 12.0), ("flash_attention_2", "backward", 64): figure(10, 11.0),
                    ("lethe", counted.ONE_STAGE, 128): figure(10, 13.0)}
        self.assertEqual(table, before | {("A100 SXM", *key): (number, number, "measured") for key, number in expected.items()})
        for (name, direction, dim), number in expected.items():
            self.assertIn(f"| NVIDIA A100-SXM4-80GB | {name} | {direction} | {dim} | {number} (measured, aaaaaaaaaaaa, 2027-01-02) |\n", text)
        others = len(table) - len(expected)
        self.assertEqual((text.count("(measured, "), text.count(" (prediction) |")), (len(expected), others))
        self.assertIn(f"**{len(expected)} figures of this page are measured**, on an NVIDIA A100-SXM4-80GB by `a100-sxm4-80gb/portable.json` of "
                      f"aaaaaaaaaaaa, 2027-01-02. **The other {others} are predictions**", text)
        self.assertNotIn("Every figure", text)

    def test_prefers_the_card_that_is_predicted_and_then_the_later_file(self):
        self.times_of("a100_80gb_pcie", "NVIDIA A100 80GB PCIe", [times("forward", 8.0, 8.0), times("backward", 8.0, 8.0)],
                      date="2027-03-01T00:00:00Z")
        self.times_of("a100-sxm4-40gb", "NVIDIA A100-SXM4-40GB", [times("forward", 4.0, 4.0), times("forward", 5.0, 5.0, row="flash")], commit="b" * 40)
        self.times_of("older", "NVIDIA A100-SXM4-80GB", [times("forward", 2.0, 2.0)], date="2026-12-01T00:00:00Z")
        self.times_of("l40s", "NVIDIA L40S", [times("backward", 4.0, 4.0)], commit="of a colleague", dirty=True)
        text, table = self.page()
        self.assertRegex(text, r"\| NVIDIA A100-SXM4-40GB \| lethe \| forward \| 64 \| 275 \(measured, bbbbbbbbbbbb, 2027-01-02\)")
        self.assertRegex(text, r"\| NVIDIA A100 80GB PCIe \| lethe \| backward \| 64 \| 344 \(measured, aaaaaaaaaaaa, 2027-03-01\)")
        self.assertIn("(measured, of a colleague, changed, 2027-01-02)", text)
        for key in (("lethe", counted.ONE_STAGE, 64), ("flash_attention_2", "backward" + counted.SMALL, 64)):
            self.assertEqual(table["L40S", *key][2], "measured")

    def test_refuses_to_predict_from_another_gpus_times(self):
        self.write("predictions/measured.json", self.measured | {"gpu": "NVIDIA A100-SXM4-80GB"})
        with self.assertRaisesRegex(SystemExit, r"measured.json: expected times of a Hopper GPU, .*, found those of an NVIDIA A100-SXM4-80GB$"):
            self.page()


class PredictGpus(unittest.TestCase):
    def test_measure_names_the_gpu_that_it_cannot_start_from(self):
        for there, capability, name, found in ((True, (8, 0), "NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"), (False, None, None, "none")):
            cuda = types.SimpleNamespace(is_available=lambda: there, get_device_capability=lambda: capability, get_device_name=lambda: name)
            with unittest.mock.patch.dict(sys.modules, torch=types.SimpleNamespace(cuda=cuda)), unittest.mock.patch.dict("os.environ"):
                with self.assertRaisesRegex(SystemExit, f"^GPU: expected a Hopper GPU, .* found {found}; .*portable.py$"):
                    predict_gpus.measure(argparse.Namespace(library="none.so", measured="none.json", seconds=1))

    def test_the_main_loop_holds_products_and_exponentials(self):
        products = [text for text in STEP if "MUFU" not in text]
        self.assertEqual(counted.main_loop(code(products, STEP, ["NOP"]))[:-1], STEP)
        self.assertIsNone(counted.main_loop(code(products)))

    def test_a_step_leaves_out_what_it_may_skip(self):
        body = [*STEP[:2], f"@P1 BRA 0x{16 * 5:x}", "FSEL R1, R1, R2, P2", "FSEL R1, R1, R2, P2", *STEP[2:]]
        path = counted.main_loop(code(body))
        self.assertFalse(any("FSEL" in text for text in path))
        self.assertEqual(len(path), len(STEP) + 2)

    def test_each_instruction_is_counted_at_its_pipe(self):
        self.assertEqual(counted.pipes_of(STEP), {"issue": 9, "tensor": 1, "special": 1, "fp32": 2, "shared": 16 + 8, "alu": 1})

    def test_stores_and_additions_of_9_0_cost_what_those_of_8_0_do(self):
        older = ["STS R1, [R2]"] * 4 + ["RED.E.ADD.F32.FTZ.RN.STRONG.GPU [R2], R1"] * 4
        newer = ["STSM.16.M88.4 [R2], R4", "REDG.E.ADD.F32x4.FTZ.RN.STRONG.GPU [R2], R4"]
        self.assertEqual(counted.pipes_of(older)["shared"], 32)
        self.assertEqual(counted.pipes_of(newer), {"issue": 2, "shared": 32})
        self.assertEqual(counted.pipes_of(["REDG.E.ADD.F32.FTZ.RN.STRONG.GPU [R2], R4"])["shared"], 4)

    def test_a_window_has_instances_that_are_not_counted(self):
        pattern, = counted.OURS["lethe", "forward", 64][1]
        name = "_ZN5lethe6ampere13forward_tilesI13__nv_bfloat16NS0_12ForwardSizesILi64EEELb{}EEEvNS0_17ForwardParametersE"
        self.assertRegex(name.format(0), pattern)
        self.assertNotRegex(name.format(1), pattern)

    def test_products_that_some_warps_skip_count_for_the_others(self):
        skipped = [*STEP[:2], f"@P1 BRA 0x{16 * 5:x}", "HMMA.16816.F32.BF16 R4, R8, R12, R4", "LDSM.16.M88.4 R8, [R2]", *STEP[2:]]
        self.assertEqual(counted.mean_pipes(code(skipped))["tensor"], 1)
        mean = counted.mean_pipes(code(skipped), 0.25)
        self.assertEqual((mean["tensor"], mean["shared"]), (1.75, 16 + 8 + 0.75 * 16))

    def test_each_kernel_has_a_pattern_of_its_own(self):
        name = ("_ZN5lethe6ampere52_GLOBAL__N__7fc8994c_19_backward_keys_cu_4023e4e2"
                "13backward_keysI13__nv_bfloat16NS0_10{}SizesILi{}EEELb{}ELb{}ELb{}EEEv"
                "NS0_18BackwardParametersE")
        matched = lambda row, name: [pattern for pattern in counted.OURS["lethe", *row][1] if re.search(pattern, name)]
        for keys, values in ((1, 0), (0, 1)):
            self.assertEqual(len(matched((counted.TWO, 256), name.format("Sweep", 256, keys, values, 0))), 1)
        self.assertFalse(matched((counted.TWO, 128), name.format("Sweep", 256, 1, 1, 0)))
        self.assertTrue(matched((counted.FUSED, 96), name.format("Fused", 96, 1, 1, 1)))
        wide = ("_ZN5lethe6ampere49_GLOBAL__N__4e6df9f8_16_backward_wide_cu_a21c5fb513backward_wideI13__nv_bfloat16NS0_9WideSizesILi{}ELi{}EEEEEv"
                "NS0_18BackwardParametersE")
        for dim, stages, direction in ((64, 2, "backward"), (64, 1, counted.ONE_STAGE), (128, 1, counted.ONE_STAGE), (256, 1, "backward")):
            found = [row for row in counted.OURS if matched(row[1:], wide.format(dim, stages))]
            self.assertEqual(found, [("lethe", direction, dim)])

    def test_a_gpu_has_the_kernels_that_fit_its_shared_memory(self):
        rows = rows_of_every_kernel()
        found, _, _ = predict_gpus.predictions(rows, {"multiprocessors": 132, "cycles_of_a_product": 5.0, "rows": [
            r | {"heads": 1, "length": 16384, "ghz": None, "ms": 1.0} for r in rows if counted.SMALL not in r["direction"]]})
        of = lambda gpu, name, way: {(direction, dim) for at, who, direction, dim, *_ in found if (at, who) == (gpu, name)
                                     and direction.startswith(way)}
        self.assertEqual(of("A100 SXM", "lethe", "backward"), {("backward", 64), ("backward", 96), (counted.ONE_STAGE, 128), ("backward", 256)})
        self.assertEqual(of("L40S", "lethe", "backward"), {(counted.ONE_STAGE, 64), (counted.FUSED, 96), (counted.TWO, 128), (counted.TWO, 256)})
        for gpu in predict_gpus.GPUS:
            self.assertEqual(of(gpu, "lethe", "forward"), {("forward", dim) for dim in counted.DIMS})
        for way, small in (("forward", (96, 128)), ("backward", (64, 128))):
            self.assertEqual(of("A100 SXM", "flash_attention_2", way), {(way, dim) for dim in (64, 96, 128)})
            self.assertEqual(of("L40S", "flash_attention_2", way), {(way + counted.SMALL * (dim in small), dim) for dim in (64, 96, 128)})

    def test_times_come_from_rows_of_portable_and_of_its_run_as_another_gpu(self):
        line = {"row": "gate", "family": "portable", "head_dim": 64, "heads": 32, "tokens": 16384, "direction": "backward", "milliseconds": 2.0,
                "others": {"FlashAttention-2": 3.0}, "error": None}
        about = {"gpu": "NVIDIA H200", "torch": "2.11.0", "commit": "0" * 40, "date": "2026-11-28T00:00:00Z"}
        before = {"gpu": "NVIDIA H200", "torch": "2.11.0", "multiprocessors": 132, "cycles_of_a_product": 6.0, "rows": []}
        slower = line | {"milliseconds": 2.5, "others": {"FlashAttention-2": 3.5}}
        with tempfile.TemporaryDirectory() as folder:
            files = [pathlib.Path(folder) / name for name in ("portable.json", "portable_l40s.json", "other.json")]
            files[0].write_text(json.dumps(about | {"rows": [
                line, line | {"row": "window"}, line | {"family": "hopper"}, line | {"error": "wrong"}, line | {"row": "dims", "head_dim": 32},
                line | {"row": "flash", "head_dim": 96, "milliseconds": 4.0}, slower | {"row": "dims", "head_dim": 96}]}))
            files[1].write_text(json.dumps(about | {"rows": [slower, slower | {"direction": "forward"}, slower | {"head_dim": 128}]}))
            files[2].write_text(json.dumps(about | {"gpu": "NVIDIA H100", "rows": []}))
            found = predict_gpus.from_portable(before, [str(files[0]), f"{files[1]}=L40S"])
            as_a100 = predict_gpus.from_portable(before, [f"{files[1]}=A100 SXM"])
            with self.assertRaisesRegex(SystemExit, "expected NVIDIA H200.*found NVIDIA H100"):
                predict_gpus.from_portable(before, [str(files[2])])
            with self.assertRaisesRegex(SystemExit, "expected one of A100 SXM, L40S, found A10"):
                predict_gpus.from_portable(before, [f"{files[1]}=A10"])
        times = lambda measured: [(r["implementation"], r["direction"], r["head_dim"], r["ms"]) for r in measured["rows"]]
        self.assertEqual(times(found), [("lethe", "backward", 64, 2.0), ("flash_attention_2", "backward", 64, 3.0), ("lethe", "backward", 96, 4.0),
                                        ("flash_attention_2", "backward", 96, 3.0), ("lethe", counted.ONE_STAGE, 64, 2.5),
                                        ("lethe", counted.TWO, 128, 2.5)])
        self.assertEqual(times(as_a100), [("lethe", counted.ONE_STAGE, 128, 2.5)])
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
        rows = [{"implementation": name, "direction": direction, "head_dim": dim, "flops": flops,
                 "loops": [{"flops": flops, "counts": {"80": counts, "90": counts}}]}
                for name in ("lethe", "flash_attention_2") for direction, flops in (("forward", 4), ("backward", 10)) for dim in (64, 128)]
        measured = {"multiprocessors": 132, "cycles_of_a_product": 5.0, "rows": [
            {"implementation": r["implementation"], "direction": r["direction"], "head_dim": r["head_dim"], "heads": 1, "length": 16384, "ghz": 1.5,
             "ms": 1.0 if r["implementation"] == "lethe" else 2.0} for r in rows]}
        found, check, efficiencies = predict_gpus.predictions(rows, measured)
        speeds = {row[:4]: row[4] for row in found}
        for dim in (64, 128):  # half the time, twice the speed
            for gpu in predict_gpus.GPUS if dim == 64 else ["A100 SXM"]:  # an L40S has other tiles at 128
                self.assertAlmostEqual(speeds[gpu, "lethe", "forward", dim][0], 2 * speeds[gpu, "flash_attention_2", "forward", dim][0])
            self.assertAlmostEqual(efficiencies["lethe", "forward", dim][0], 2 * efficiencies["flash_attention_2", "forward", dim][0])
        self.assertEqual(set(check), {64, 128})
        pairs = 16384 * 16385 / 2 * 64
        here = 4 * pairs / 1e-3 * 1e-12  # TFLOP/s measured; 8 cycles of a product for 5, and the clocks and multiprocessors of both
        expected = here * (1250 / 2000) * (108 * 1.41) / (132 * 1.5)
        self.assertAlmostEqual(speeds["A100 SXM", "lethe", "forward", 64][0], expected, delta=1e-6 * expected)


if __name__ == "__main__":
    unittest.main()
