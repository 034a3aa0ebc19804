"""Tables and checks of results: generated text equals the data, and a table with other values is detected."""

import hashlib
import json
import re
import tomllib
import unittest

from checkout import CERTIFICATE, SOURCE, WithCheckout  # first: it finds tools/report
from report.benchmarks import benchmark_page
from report.curves import smoothed
from report.markdown import number, table
from report.page import page
from report.results import COLUMNS, BadResult, load_machine, read_table
from report.tables import UnknownTable, claim_page, comparisons_table, readme_table, with_tables
from report.throughput import throughput_page
from report.throughput_figures import throughput_figures


class Tables(WithCheckout):
    def test_means_over_seeds_stand_beside_the_papers_numbers(self):
        text = readme_table(self.checkout.root, self.checkout.results, "m", "ablations")
        self.assertIn("| FoX (Pro) | 6.65 | 8.10 ± 0.14 |", text)
        self.assertIn("| FoX (LLaMA) | 7.22 | 9.000 |", text)

    def test_statements_show_paper_measured_band_and_verdict(self):
        claim = load_machine(self.checkout.root, self.checkout.machine)[0]
        self.assertIn("| **FoX (Pro) is better than FoX (LLaMA)** | FoX Table 3 | 0.08 (> 0) | 0.100 ± 0.020 nats | trend reproduced |",
                      comparisons_table(claim))

    def test_a_metric_is_called_as_its_claim_says_or_as_it_is_spelled(self):
        path = self.checkout.root / "experiments/papers/forgetting_transformer/ablations/config.toml"
        claim = load_machine(self.checkout.root, self.checkout.machine)[0]
        self.assertEqual(claim.words("training_loss"), "training loss")
        path.write_text(path.read_text().replace("[claim]\n", '[claim]\nstated_by = "goal"\nwords.perplexity = "exp of the loss"\n'))
        table = readme_table(self.checkout.root, self.checkout.results, "m", "ablations")
        self.assertTrue(table.startswith("|  | goal: exp of the loss | exp of the loss ↓ |"), table)

    def test_a_withdrawn_statement_is_no_longer_counted(self):
        path = self.checkout.root / "experiments/papers/forgetting_transformer/ablations/config.toml"
        more = CERTIFICATE["comparisons"][0] | {"statement": "A line is flat by construction", "verdict": "reproduced"}
        (self.checkout.machine / "ablations.json").write_text(json.dumps(CERTIFICATE | {"comparisons": [*CERTIFICATE["comparisons"], more]}))
        counted = lambda: readme_table(self.checkout.root, self.checkout.results, "m", "papers").splitlines()[2]  # noqa: E731
        self.assertTrue(counted().endswith("| 1 trend reproduced; 1 reproduced |"), counted())
        path.write_text(path.read_text().replace("[claim]\n", '[claim]\nwithdrawn = ["A line is flat by construction"]\n'))
        self.assertTrue(counted().endswith("| 1 trend reproduced |"), counted())

    def test_claims_stand_in_the_order_of_their_folders(self):
        first = self.checkout.root / "experiments/papers/forgetting_transformer/another"
        first.mkdir()
        (first / "paper.csv").write_text(",".join([*COLUMNS, "source", "comparability"]) + "\n")
        (first / "config.toml").write_text("[claim]\norder = 1\n")
        for ending, text in (("csv", ",".join(COLUMNS) + "\n"), ("json", json.dumps(CERTIFICATE | {"claim": "another"}))):
            (self.checkout.machine / f"another.{ending}").write_text(text)
        names = [claim.name for claim in load_machine(self.checkout.root, self.checkout.machine)]
        self.assertEqual(names, ["another", "ablations"])

    def test_a_result_of_a_claim_without_a_folder_is_an_error(self):
        (self.checkout.machine / "ablations.json").write_text(json.dumps(CERTIFICATE | {"claim": "forgotten"}))
        with self.assertRaisesRegex(BadResult, "expected the claim's folder .*forgotten, found none"):
            load_machine(self.checkout.root, self.checkout.machine)

    def test_a_paper_is_one_line_of_its_claims_and_statements(self):
        row = readme_table(self.checkout.root, self.checkout.results, "m", "papers").splitlines()[2]
        self.assertEqual(row, "| forgetting transformer | **trend reproduced**: [ablations](results/m/ablations.md) | 1 trend reproduced |")

    def test_only_the_text_between_the_markers_changes(self):
        old = (self.checkout.root / "README.md").read_text()
        new = with_tables(old, self.checkout.root, self.checkout.results)
        self.assertTrue(new.startswith("before\n<!-- table:m/ablations -->\n|"))
        self.assertTrue(new.endswith("|\n<!-- /table -->\nafter\n"))
        self.assertNotIn("old", new)

    def test_a_marker_for_a_result_that_is_not_there_is_an_error(self):
        with self.assertRaises(UnknownTable):
            with_tables("<!-- table:m/nothing -->\n<!-- /table -->\n", self.checkout.root, self.checkout.results)
        with self.assertRaises(UnknownTable):
            with_tables("<!-- table:elsewhere/verdicts -->\n<!-- /table -->\n", self.checkout.root, self.checkout.results)

    def test_columns_without_entries_are_left_out(self):
        self.assertEqual(table(["a", "b", "c"], [["1", "", "2"]]), "| a | c |\n|---|---|\n| 1 | 2 |\n")

    def test_numbers_have_four_digits(self):
        shown = [number(value) for value in (0.0, 6.65, 123.456, 0.0123456, 4.5e-05, float("nan"))]
        self.assertEqual(shown, ["0", "6.650", "123.5", "0.01235", "4.5e-05", ""])
        self.assertEqual(number(367339904, "parameters"), "367,339,904")

    def test_a_number_that_is_none_is_refused_by_line_and_column(self):
        path = self.checkout.machine / "ablations.csv"
        path.write_text(path.read_text().replace("9.0", "nine"))
        with self.assertRaisesRegex(BadResult, "line 4: value: .*nine"):
            read_table(path, COLUMNS)


class Page(WithCheckout):
    def page(self, **certificate):
        (self.checkout.machine / "ablations.json").write_text(json.dumps(CERTIFICATE | certificate))
        (self.checkout.machine / "ablations.svg").write_text('<?xml version="1.0"?>\n<svg><path id="a"/><use href="#a"/></svg>\n')
        return page("m", load_machine(self.checkout.root, self.checkout.machine))

    def test_every_link_leads_to_an_identifier_of_the_page(self):
        text = self.page()
        self.assertEqual(re.findall(r' id="(.*?)"', text), ["reading", "verdicts", "ablations", "figure-ablations", "ablations-a"])
        self.assertEqual(re.findall(r'href="(.*?)"', text), ["#ablations", "#ablations", "#figure-ablations", "#ablations-a"])

    def test_tables_are_rendered_with_verdicts_as_badges(self):
        text = self.page()
        self.assertIn('<td data-title="statement"><strong>FoX (Pro) is better than FoX (LLaMA)</strong></td>', text)
        self.assertIn('<td data-title="perplexity ↓">8.10 ± 0.14</td>', text)
        self.assertIn("<code>lethe run</code>", text)
        self.assertEqual(len(re.findall(r'<span class="verdict" style="background:#\w{6}">trend reproduced</span>', text)), 4)
        self.assertNotRegex(text, r"\*\*|\| |<\?xml|&lt;")

    def test_texts_are_escaped(self):
        comparison = CERTIFICATE["comparisons"][0] | {"statement": "<script>a & b"}
        text = self.page(title="<script>", comparisons=[comparison])
        self.assertNotIn("<script>", text)
        self.assertIn("<strong>&lt;script&gt;a &amp; b</strong>", text)
        self.assertIn("<h2>&lt;script&gt;</h2>", text)


def timed(name, milliseconds, **counters):
    return {"name": name, "run_type": "iteration", "real_time": milliseconds, "time_unit": "ms", **counters}


class Benchmarks(WithCheckout):
    SIZES = "B:1/T:64/real_time"

    def write(self, runs, name="operator_cpu"):
        self.path = self.checkout.machine / f"{name}.json"
        self.path.write_text(json.dumps({
            "benchmarks": runs, "context": {"commit": "d" * 40, "dirty": "no", "num_cpus": 2, "date": "today", "processor": "a processor",
                                              "milliseconds": "10"},
        }))

    def test_the_median_of_repetitions_stands_in_the_table(self):
        self.write([timed(f"ours/forward/{self.SIZES}", value) for value in (3.0, 1.0, 8.0)] +
                   [timed(f"ours/forward_backward/{self.SIZES}", 9.0, memory_mib=5.0),
                    {**timed(f"ours/forward/{self.SIZES}_mean", 4.0), "run_type": "aggregate"}])
        text = readme_table(self.checkout.root, self.checkout.results, "m", "operator_cpu")
        self.assertEqual(text.splitlines()[0], "|  |  | forward (ms) | forward + backward (ms) | beyond the inputs (MiB) |")
        self.assertEqual(text.splitlines()[2:], ["| B = 1, T = 64 | ours | 3.000 | 9.000 | 5.000 |"])

    def test_ours_is_compared_with_torchs_own(self):
        self.write([timed(f"{name}/forward/{self.SIZES}", value)
                    for name, value in (("ours", 4.0), ("torch", 2.0), ("rule/operator", 1.0), ("rule/loop", 8.0))])
        rows = readme_table(self.checkout.root, self.checkout.results, "m", "operator_cpu").splitlines()[2:]
        self.assertEqual(rows, ["| B = 1, T = 64 | ours | 4.000 | 0.5000 |", "|  | rule, loop | 8.000 | 0.2500 |",
                                "|  | rule, operator | 1.000 | 2.000 |", "|  | torch | 2.000 |  |"])

    def test_one_that_failed_is_an_error(self):
        self.write([timed(f"ours/forward/{self.SIZES}", 0.0, error_message="too far off")])
        with self.assertRaisesRegex(BadResult, "too far off"):
            readme_table(self.checkout.root, self.checkout.results, "m", "operator_cpu")

    def test_the_gates_cost_is_with_a_gate_over_without(self):
        self.write([
            {"name": f"{direction}/D:{dim}/T:4096/{gate}/iterations:1/manual_time_{aggregate}", "run_type": "aggregate", "repetitions": 25,
             "aggregate_name": aggregate, "ms/lethe_kernels": milliseconds[i], "ratio_to/lethe_kernels_without_gate": ratio[i]}
            for direction, dim, gate, milliseconds, ratio in (
                ("forward", 128, "open", (3.0, 0.5, 2.0), (1.5, 0.02, 7.0)), ("inference", 128, "open", (2.5, 0.5, 2.0), (1.25, 0.1, 7.0)),
                ("plan", 128, "open", (0.5, 0.25, 0.75), (4.0, 0.5, 7.0)), ("forward", 128, "bimodal", (1.0, 1.0, 2.0), (0.5, 0.0, 7.0)),
                ("backward", 64, "open", (5.0, 1.0, 2.0), (1.125, 0.05, 7.0)))
            for i, aggregate in enumerate(("mean", "stddev", "median"))
        ], "operator_cuda")
        rows = readme_table(self.checkout.root, self.checkout.results, "m", "operator_cuda").splitlines()[2:]
        self.assertEqual([[cell.strip() for cell in row.strip("|").split("|")] for row in rows], [
            ["D = 64, T = 4096", "open", "", "", "", "", "5.000", "1.125 ± 0.010", ""],
            ["D = 128, T = 4096", "bimodal, pruned", "", "", "1.000", "0.5000", "", "", ""],
            ["D = 128, T = 4096", "open", "2.500", "1.250 ± 0.020", "3.000", "1.5000 ± 0.0040", "", "", "0.5000"],
        ])
        page = benchmark_page(self.path)
        self.assertIn("10 ms at a time", page)
        self.assertIn("25 repetitions", page)

    def test_a_gates_cost_told_otherwise_is_an_error(self):
        run = {"name": "forward/D:64/T:4096/open/lethe_kernels/manual_time_mean", "aggregate_name": "mean", "repetitions": 3, "real_time": 1.0}
        self.write([run], "operator_cuda")
        with self.assertRaisesRegex(BadResult, "expected ms/lethe_kernels, found none"):
            benchmark_page(self.path)
        self.assertIn("expected ms/lethe_kernels, found none", self.checkout.run("check_results.py").stdout)
        self.write([run | {"aggregate_name": "cv"}], "operator_cuda")
        with self.assertRaisesRegex(BadResult, "expected means over repetitions, found none"):
            benchmark_page(self.path)

    def test_throughput_is_told_in_ratios_to_the_fastest_of_each_kind(self):
        speeds = {  # gate, implementation: forward, backward, pruned share
            ("open", "lethe"): (600, 500, 0), ("open", "cudnn"): (500, 400, 0), ("open", "flash_attention_4"): (480, 625, 0),
            ("open", "lethe_16_bit_sums"): (600, 550, 0),
            ("bimodal", "lethe"): (800, 500, 0.6),
            ("bimodal", "lethe_pruned"): (1800, 1000, 0.6), ("bimodal", "flex_pruned_mask"): (900, 800, 0.6),
            ("bimodal", "flex_flash_pruned_mask"): (1200, 400, 0.6), ("bimodal", "flex"): (2000, 2000, 0.6),
            ("bimodal", "official_pruned"): (600, 500, 0.6),
            ("init", "lethe_pruned"): (1800, 1000, 0.9), ("init", "flex_pruned_mask"): (2000, 800, 0.9)}
        lines = ["variant,implementation,length,key_dim,metric,value"]
        for (gate, implementation), values in speeds.items():
            lines += [f"{gate},{implementation},16384,64,{metric},{value}"
                      for metric, value in zip(("forward_speed", "backward_speed", "pruned_share"), values)]
        path = self.checkout.machine / "attention_throughput.csv"
        path.write_text("\n".join(lines) + "\n")
        row = readme_table(self.checkout.root, self.checkout.results, "m", "attention_throughput").splitlines()[2]
        self.assertEqual([cell.strip() for cell in row.strip("|").split("|")],
                         ["T = 16384, D = 64", "1.200", "1.250", "1.250", "0.8000", "1.375", "0.8800", "0.6000", "0.9000", "0.8000", "1.500", "1.250",
                          "3.000", "2.000",
                          "0.9000", "1.250"])
        short = readme_table(self.checkout.root, self.checkout.results, "m", "attention_throughput.short").splitlines()[2]
        self.assertEqual([cell.strip() for cell in short.strip("|").split("|")], ["T = 16384, D = 64", "1.200", "1.250", "3.000", "2.000"])
        path.write_text(path.read_text() + "bimodal,cudnn,16384,64,pruned_share,0.7\n")
        with self.assertRaisesRegex(BadResult, "expected one pruned share, found"):
            readme_table(self.checkout.root, self.checkout.results, "m", "attention_throughput")

    def test_a_page_that_tells_something_else_is_found(self):
        self.write([timed(f"ours/forward/{self.SIZES}", 3.0)])
        found = self.checkout.run("check_results.py").stdout
        self.assertIn("operator_cpu.md: expected it beside the data", found)
        self.path.with_suffix(".md").write_text(benchmark_page(self.path))
        self.assertNotIn("operator_cpu.md", self.checkout.run("check_results.py").stdout)
        self.path.write_text(self.path.read_text().replace("3.0", "2.0"))
        self.assertIn("operator_cpu.md: differs", self.checkout.run("check_results.py").stdout)


class Precision(WithCheckout):
    LINE = "{} D{} T8192 open        values 0.2%  query 0.1%  key 0.3%  value 0.1%  log_forget {}%, of float sums {}%\n"

    def table(self, lines):
        (self.checkout.machine / "check.log").write_text("gpu     NVIDIA H200\n" + lines + "[  PASSED  ] 14 tests.\n")
        return readme_table(self.checkout.root, self.checkout.results, "m", "precision").splitlines()[2:]

    def test_the_table_has_the_largest_error_over_head_dims_and_seeds(self):
        kernels = [(dtype, dim) for dtype in ("bfloat16", "float16") for dim in (64, 128)]
        lines = "".join(self.LINE.format(*kernel, error, 0.01) for kernel in kernels for error in (0.1, kernel[1] / 1000))
        self.assertEqual(self.table(lines), ["| T = 8192, open | 0.300 | 0.010 | 0.128 | 0.300 | 0.010 | 0.128 |"])

    def test_a_log_without_every_kernel_is_an_error(self):
        with self.assertRaisesRegex(BadResult, "T = 8192, open: expected errors of every kernel"):
            self.table(self.LINE.format("bfloat16", 64, 0.1, 0.01))
        with self.assertRaisesRegex(BadResult, "expected lines of errors"):
            self.table("")


class Profile(WithCheckout):
    METRICS = {"gpc__cycles_elapsed.avg": [12.5e6, "cycle"], "smsp__inst_executed.sum": [2e9, "inst"],
               **{f"{unit}.avg.pct_of_peak_sustained_elapsed": [share, "%"] for unit, share in (
                   ("sm__pipe_tensor_cycles_active", 68), ("l1tex__data_pipe_lsu_wavefronts", 70), ("sm__issue_active", 37),
                   ("sm__inst_executed_pipe_xu", 24), ("sm__pipe_alu_cycles_active", 18), ("sm__pipe_fma_cycles_active", 14))}}

    def table(self, metrics):
        kernels = [{"head_dim": 64, "kernel": "float sums", "metrics": metrics}]
        (self.checkout.machine / "backward_profile.json").write_text(json.dumps({"kernels": kernels}))
        return readme_table(self.checkout.root, self.checkout.results, "m", "backward_profile").splitlines()[2:]

    def test_a_row_a_kernel(self):
        self.assertEqual(self.table(self.METRICS | {"another": [1, ""]}),
                         ["| D = 64, float sums | 12.50 | 2000 | 68.00 | 70.00 | 37.00 | 24.00 | 18.00 | 14.00 |"])

    def test_a_metric_that_is_missing_is_an_error(self):
        with self.assertRaisesRegex(BadResult, "D = 64, float sums: expected gpc__cycles_elapsed.avg, found none"):
            self.table({})


class Throughput(WithCheckout):
    CERTIFICATE = {"commit": "e" * 40, "dirty": False, "command_line": "compare", "time": "now", "machine": {"gpu": "a GPU"},
                   "versions": {"torch": "2.11.0"}, "left_out": {}}

    def setUp(self):
        super().setUp()
        lines = [",".join(COLUMNS)]
        for length, dim, gate in ((4096, 64, "open"), (16384, 64, "open"), (16384, 128, "open"), (16384, 128, "init")):
            for implementation, speed in (("lethe", 600), ("cudnn", 500)):
                for metric, value in (("forward_speed", speed), ("backward_speed", speed - 100), ("share_of_budget", 0.25)):
                    lines.append(f"throughput,,{gate},{implementation},cuda,bfloat16,2,{length},24,{dim},{dim},1,{metric},1,{value},0,9")
        self.path = self.checkout.machine / "attention_throughput.csv"
        self.path.write_text("\n".join(lines) + "\n")
        self.path.with_suffix(".json").write_text(json.dumps(self.CERTIFICATE))

    def test_a_page_has_its_figures_and_every_case(self):
        page = throughput_page(self.path)
        figures = throughput_figures(self.path)
        self.assertEqual(list(figures), [4096, 16384])
        self.assertEqual([len(figure.axes) for figure in figures.values()], [1, 4])
        self.assertEqual([axis.get_title("left") for axis in figures[16384].axes],
                         ["T = 16384, D = 64, open", "", "T = 16384, D = 128, open", "T = 16384, D = 128, init"])
        for length in figures:
            self.assertIn(f"(attention_throughput_{length}.svg)", page)
        self.assertEqual(page.count("| lethe | 600 | 1.20 | 500 | 1.25 | 0.25 |"), 4)
        self.assertIn("commit eeeeeeeeeeee; now; torch 2.11.0. Not installed: nothing.", page)

    def test_a_commit_that_was_told_is_said_to_be(self):
        for dirty, words in ((None, " (as told)"), (True, " with uncommitted changes")):
            self.path.with_suffix(".json").write_text(json.dumps(self.CERTIFICATE | {"dirty": dirty}))
            self.assertIn(f"commit eeeeeeeeeeee{words}; now", throughput_page(self.path))

    def test_a_page_that_tells_something_else_is_found(self):
        self.assertIn("attention_throughput.md: expected it beside the data", self.checkout.run("check_results.py").stdout)
        self.path.with_suffix(".md").write_text(throughput_page(self.path))
        self.assertNotIn("attention_throughput.md", self.checkout.run("check_results.py").stdout)
        self.path.write_text(self.path.read_text().replace("600", "700"))
        self.assertIn("attention_throughput.md: differs", self.checkout.run("check_results.py").stdout)

    def test_a_page_wants_its_certificate(self):
        self.path.with_suffix(".json").unlink()
        with self.assertRaisesRegex(BadResult, "expected its certificate attention_throughput.json"):
            throughput_page(self.path)


class Checks(WithCheckout):
    def faults(self):
        result = self.checkout.run("check_results.py")
        self.assertEqual(result.returncode, 1 if result.stdout else 0, result.stderr)
        return result.stdout

    def test_results_with_their_tables_pass(self):
        self.checkout.make_whole()
        self.assertEqual(self.faults(), "")

    def test_a_changed_number_is_found_in_every_table(self):
        self.checkout.make_whole()
        path = self.checkout.machine / "ablations.csv"
        path.write_text(path.read_text().replace("9.0", "9.1"))
        self.assertIn("ablations.md: differs", self.faults())
        self.assertIn("README.md: differs", self.faults())

    def test_a_table_changed_by_hand_is_found(self):
        self.checkout.make_whole()
        path = self.checkout.root / "README.md"
        path.write_text(path.read_text().replace("8.10 ", "7.10 "))
        self.assertIn("README.md: differs", self.faults())

    def test_numbers_without_a_certificate_are_found(self):
        self.checkout.make_whole()
        (self.checkout.machine / "ablations.json").rename(self.checkout.machine / "other.json")
        self.assertIn("expected its certificate ablations.json", self.faults())

    def test_a_page_names_another_commit_that_trained_its_models(self):
        path = self.checkout.machine / "ablations.json"
        model = {"label": "FoX (Pro)", "seed": 0, "artefact": "0" * 16, "dirty": False}
        for commits, expected in ((("c" * 40,), f"commit {'c' * 12};"), (("c" * 40, "e" * 40), f"commit {'c' * 12}, models trained at {'e' * 12};")):
            path.write_text(json.dumps(CERTIFICATE | {"runs": [model | {"commit": commit} for commit in commits]}))
            self.assertIn(expected, claim_page(load_machine(self.checkout.root, self.checkout.machine)[0]))

    def test_a_page_names_the_gpu_and_its_driver(self):
        path = self.checkout.machine / "ablations.json"
        gpu = {"name": "NVIDIA H200", "driver": "580.65.06", "clock_mhz": 1755}
        path.write_text(json.dumps(CERTIFICATE | {"machine": CERTIFICATE["machine"] | {"gpu": gpu}}))
        self.assertIn("; NVIDIA H200, driver 580.65.06; a processor, 2 cores;",
                      claim_page(load_machine(self.checkout.root, self.checkout.machine)[0]))

    def test_a_verdict_on_data_that_have_changed_is_found(self):
        data = self.checkout.root / "data.csv"
        data.write_text("1\n")
        path = self.checkout.machine / "ablations.json"
        of_data = {"name": "data.csv", "content": hashlib.sha256(b"1\n").hexdigest()}
        path.write_text(json.dumps(CERTIFICATE | {"settings": {"data": "data.csv"}, "dataset": of_data}))
        self.checkout.make_whole()
        self.assertEqual(self.faults(), "")
        data.write_text("2\n")
        self.assertIn("ablations.json: judges another data.csv than there is; run lethe run ablations", self.faults())

    def test_a_certificate_without_a_commit_is_found(self):
        self.checkout.make_whole()
        path = self.checkout.machine / "ablations.json"
        path.write_text(json.dumps({name: value for name, value in CERTIFICATE.items() if name != "commit"}))
        self.assertIn("expected commit", self.faults())

    def test_other_columns_are_found(self):
        self.checkout.make_whole()
        path = self.checkout.machine / "ablations.csv"
        path.write_text(path.read_text().replace("experiment,claim", "claim,experiment", 1))
        self.assertIn("expected the columns", self.faults())

    def test_an_empty_results_folder_passes(self):
        for path in list(self.checkout.machine.iterdir()):
            path.unlink()
        (self.checkout.root / "README.md").write_text("no tables\n")
        self.assertEqual(self.faults(), "")


class Curves(unittest.TestCase):
    def test_smoothing_cuts_its_window_at_the_ends(self):
        self.assertEqual(smoothed([1.0, 2.0, 3.0, 10.0], 3), [1.5, 2.0, 5.0, 6.5])
        self.assertEqual(smoothed([1.0, 2.0], 1), [1.0, 2.0])


class Folders(unittest.TestCase):
    def test_every_claims_folder_has_its_title_place_words_and_figure(self):
        folders = [path.parent for path in SOURCE.glob("experiments/papers/*/*/paper.csv")]
        abouts = [tomllib.loads((folder / "config.toml").read_text())["claim"] for folder in folders]
        self.assertTrue(all(about["title"] for about in abouts))
        self.assertEqual(len({about["order"] for about in abouts}), len(folders))
        self.assertTrue(all("def figure(claim):" in (folder / "figure.py").read_text() for folder in folders))


if __name__ == "__main__":
    unittest.main()
