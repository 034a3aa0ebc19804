"""Tables of a machine's speeds: training steps, and the kernels for every GPU and of the linear family against their bounds."""

import json
import shutil
import unittest

from checkout import WithCheckout  # first: it finds tools/report
from report.matrix_state import matrix_state_page
from report.portable import portable_page
from report.results import BadResult
from report.tables import readme_table


class SpeedTables(WithCheckout):
    def test_speeds_of_training_come_from_the_newest_file_and_ratios_from_one(self):
        def write(name, date, *results):
            rows = [{"case": case, "row": row, "error": None, "tokens_per_second": speed} | more for case, row, speed, more in results]
            (self.checkout.machine / f"{name}.json").write_text(json.dumps({"date": date, "results": rows}))
        fox, large = "125m:4096:fox-pro", "760m:16384:fox-pro+acp"
        write("training_step", "2026-01-02", (fox, "lethe", 300.0, {}), (fox, "compiled", 200.0, {}))
        write("training_step_b", "2026-01-01", (fox, "lethe", 100.0, {}), (fox, "official", 40.0, {}), (fox, "2 GPUs", 190.0, {}))
        write("training_step_c", "2026-01-03", (large, "lethe", 50.0, {"peak_bytes": 60 << 30}))
        rows = readme_table(self.checkout.root, self.checkout.results, "m", "training").splitlines()
        self.assertEqual([rows[0], *rows[2:]], [
            "| model, parameters, context | tokens/s | × compiled by PyTorch | × official code | two GPUs × one | GiB |",
            "| FoX (Pro), 125M, 4096 | 300 | 1.50 | 2.50 | 1.90 |  |", "| FoX (Pro), pruned, 760M, 16384 | 50 |  |  |  | 60 |"])

    def test_the_portable_kernels_are_told_beside_their_bounds(self):
        about = {"title": "window", "row": "window", "family": "portable", "head_dim": 64, "dtype": "bfloat16", "batch": 1, "tokens": 16384,
                 "heads": 32}
        line = about | {"direction": "forward", "milliseconds": 1.25, "beside": "full", "beside_milliseconds": 4.0, "work": 0.25, "ratio": 1.25,
                        "ratio_spread": 0.012, "at_most": True, "must": 1.2, "aim": 1.1, "reached": "no", "left_out": {"cuDNN": "not here"},
                        "error": None}
        beside = line | {"title": "dims", "row": "dims", "direction": "backward", "work": 1.0, "at_most": False, "must": 0.8, "aim": 1.0,
                         "reached": "aim"}
        unbounded = beside | {"title": "flash", "row": "flash", "must": None, "aim": None, "reached": ""}
        path = self.checkout.machine / "portable.json"
        found = {"gpu": "NVIDIA H100", "driver": "580", "torch": "2.11.0", "commit": "d" * 40, "dirty": None, "date": "2026-01-02", "length": 16384,
                 "rounds": 9,
                 "rows": [line, beside, unbounded, about | {"title": "float32", "error": "values: expected a | b"}]}
        path.write_text(json.dumps(found))
        rows = readme_table(self.checkout.root, self.checkout.results, "m", "portable").splitlines()
        self.assertEqual(rows[0], "| row | case | direction | ms | beside, ms | work over theirs | ratio | must, aim | reached |")
        self.assertEqual(rows[2:], [
            "| window | D = 64, portable | forward | 1.250 | full, 4.000 | 0.2500 | 1.250 ± 0.012 | ≤ 1.2, ≤ 1.1 | no |",
            "| dims | D = 64, portable | backward | 1.250 | full, 4.000 |  | 1.250 ± 0.012 | ≥ 0.8, ≥ 1.0 | aim |",
            "| flash | D = 64, portable | backward | 1.250 | full, 4.000 |  | 1.250 ± 0.012 |  |  |",
            "| float32 | D = 64, portable | error: values: expected a \\| b |  |  |  |  |  |  |"])
        said = [{"gpu": "A100", "implementation": "lethe", "direction": direction, "head_dim": 64, "low_tflops": low, "high_tflops": high, "kind": kind}
                for direction, low, high, kind in (("forward", "100", "120", "prediction"), ("backward, fused", "90", "90", "measured"))]
        short = lambda: readme_table(self.checkout.root, self.checkout.results, "m", "portable.short").splitlines()
        self.assertEqual(short(), ["| head dim | backward, × FlashAttention-2 |", "|---|---|", "| 64 | 1.250 |"])
        (self.checkout.results / "predictions").mkdir()
        (self.checkout.results / "predictions/predictions.json").write_text(json.dumps(said))
        self.assertEqual(short(), ["| head dim | backward, × FlashAttention-2 | A100, TFLOP/s |", "|---|---|---|",
                                   "| 64 | 1.250 | 100 to 120; 90 (prediction, measured) |"])
        shutil.rmtree(self.checkout.results / "predictions")
        page = portable_page(path)
        for words in ("dddddddddddd (as told)", "NVIDIA H100", "9 rounds", "window, D = 64: 1 × 16384 × 32", "window, D = 64, cuDNN: not here",
                      "A row without must and aim compares"):
            self.assertIn(words, page)
        self.assertIn("portable.md: expected it beside the data", self.checkout.run("check_results.py").stdout)
        self.checkout.run("report.py")
        self.assertEqual(path.with_suffix(".md").read_text(), page)
        self.assertIn("[portable](m/portable.md)", (self.checkout.results / "README.md").read_text())
        del line["ratio"]
        path.write_text(json.dumps(found))
        with self.assertRaisesRegex(BadResult, "window D = 64, portable: expected ratio, found none"):
            portable_page(path)

    def test_the_linear_family_is_told_beside_the_bytes_it_moves(self):
        line = {"case": "delta", "batch": 8, "tokens": 4096, "heads": 24, "rows": 64, "columns": 64, "gates": "usual", "direction": "forward",
                "microseconds": 200.0,
                "floor_microseconds": 96.0, "share": 0.48, "must": 0.45, "aim": 0.65, "reached": "must"}
        other = {name: value for name, value in line.items() if name not in ("must", "aim", "reached")} | {"direction": "backward"}
        found = {"gpu": "NVIDIA H100", "driver": "580", "torch": "2.11.0", "commit": "d" * 40, "dirty": None, "date": "2026-01-02", "rounds": 9,
                 "copy_gigabytes_per_second": 3012.4, "rows": [line, other]}
        path = self.checkout.machine / "matrix_state.json"
        path.write_text(json.dumps(found))
        rows = readme_table(self.checkout.root, self.checkout.results, "m", "matrix_state").splitlines()
        self.assertEqual([rows[0], *rows[2:]], [
            "| case | B × T × H, K × V | gates | direction | µs | floor, µs | share | must, aim | reached |",
            "| delta | 8 × 4096 × 24, 64 × 64 | usual | forward | 200.0 | 96.00 | 0.48 | ≥ 0.45, ≥ 0.65 | must |",
            "| delta | 8 × 4096 × 24, 64 × 64 | usual | backward | 200.0 | 96.00 | 0.48 |  |  |"])
        for words in ("3012 GB/s", "dddddddddddd (as told)", "9 rounds"):
            self.assertIn(words, matrix_state_page(path))
        self.assertIn("matrix_state.md: expected it beside the data", self.checkout.run("check_results.py").stdout)
        self.checkout.run("report.py")
        self.assertIn("[matrix_state](m/matrix_state.md)", (self.checkout.results / "README.md").read_text())
        found["rows"] = [line | {"ratio": 2.5, "rival": "chunk_delta_rule"}, other]
        path.write_text(json.dumps(found))
        self.assertIn("| must | 2.50, chunk_delta_rule |\n", readme_table(self.checkout.root, self.checkout.results, "m", "matrix_state"))
        rivals = self.checkout.machine / "matrix_state_rivals.json"
        rivals.write_text(json.dumps(found | {"fla": "0.5.2", "triton": "3.7.1",
                                              "rows": [*found["rows"], other | {"no_time_of": ["chunk_kda: ValueError: wrong"]}]}))
        page = matrix_state_page(rivals)
        for words in ("# matrix_state_rivals", "flash-linear-attention 0.5.2 with Triton 3.7.1",
                      "No time of FLA's, delta, usual gates, backward: chunk_kda: ValueError: wrong.\n"):
            self.assertIn(words, page)
        self.assertNotIn("× FLA:", matrix_state_page(path))
        of = lambda package, name, time: {"rival": name, "rival_package": package, "rival_microseconds": time, "ratio": time / 200,
                                          "rival_error": 0.0031, "rival_error_of": "values"}
        both = [of("flashinfer", "chunk_gated_delta_rule", 150.0), of("fla", "chunk_delta_rule", 500.0)]
        failed = other | {"no_time_of": ["mamba: ValueError: wrong"]} | of("fla", "chunk_delta_rule", 500.0)
        packages = {"triton": "3.7.1", "packages": {"fla": "0.5.2", "flashinfer": "0.6.9"}, "not_at_hand": {"flash_qla": "ModuleNotFoundError: no"}}
        rivals.write_text(json.dumps(found | packages | {"rows": [line | both[0] | {"rivals": both}, failed]}))
        page = matrix_state_page(rivals)
        for words in ("| × fastest rival |", "| 0.75, flashinfer: chunk_gated_delta_rule |", "Rivals: fla 0.5.2, flashinfer 0.6.9; Triton 3.7.1.",
                      "| delta | usual | forward | flashinfer: chunk_gated_delta_rule | 150.0, × 0.75 | 0.31 % of values |",
                      "| chunk_delta_rule | 500.0, × 2.50 |",
                      "No time, delta, usual gates, backward: mamba: ValueError: wrong.\n", "Not at hand: flash_qla: ModuleNotFoundError: no.\n"):
            self.assertIn(words, page)
        self.assertIn("matrix_state_rivals.md: expected it beside the data", self.checkout.run("check_results.py").stdout)
        rivals.unlink()
        del other["share"]
        path.write_text(json.dumps(found | {"rows": [other]}))
        with self.assertRaisesRegex(BadResult, "delta: expected share, found none"):
            matrix_state_page(path)


if __name__ == "__main__":
    unittest.main()
