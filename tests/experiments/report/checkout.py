"""A folder with one claim's results, for the tests of the report."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(SOURCE / "tools"))

from report.results import COLUMNS, load_machine  # noqa: E402
from report.tables import claim_page  # noqa: E402

CERTIFICATE = {
    "experiment": "forgetting_transformer", "claim": "ablations", "title": "What each row loses", "scale": "quick",
    "dataset": {"name": "bible", "content": "0123456789abcdef"}, "commit": "c" * 40, "dirty": False, "command_line": "lethe run",
    "time": "2026-01-01T00:00:00Z", "machine": {"name": "m", "processor": "a processor", "cores": 2},
    "versions": {"torch": "2.11.0", "compiler": "g++ 12"}, "verdict": "trend reproduced", "key": "k",
    "comparisons": [{
        "statement": "FoX (Pro) is better than FoX (LLaMA)", "source": "FoX Table 3", "unit": "nats", "headline": True,
        "expected": {"low": None, "high": None, "direction": 1}, "paper": 0.08, "measured": 0.1, "band": 0.02,
        "verdict": "trend reproduced",
    }],
}


def row(variant, seed, value):
    return f"forgetting_transformer,ablations,{variant},lethe,cpu,float32,4,256,3,32,32,{seed},perplexity,1,{value},0,4"


class Checkout:
    """A folder with one claim's results and README.md."""

    def __init__(self, folder):
        self.root = Path(folder)
        self.results = self.root / "results"
        self.machine = self.results / "m"
        self.machine.mkdir(parents=True)
        paper = self.root / "experiments/papers/forgetting_transformer/ablations"
        paper.mkdir(parents=True)
        for name in ("paper.csv", "config.toml"):
            (paper / name).write_text((SOURCE / "experiments/papers/forgetting_transformer/ablations" / name).read_text())
        rows = [row("FoX (Pro)", 0, 8.0), row("FoX (Pro)", 1, 8.2), row("FoX (LLaMA)", 0, 9.0)]
        (self.machine / "ablations.csv").write_text("\n".join([",".join(COLUMNS), *rows, ""]))
        (self.machine / "ablations.json").write_text(json.dumps(CERTIFICATE))
        (self.root / "README.md").write_text("before\n<!-- table:m/ablations -->\nold\n<!-- /table -->\nafter\n")

    def run(self, tool, *arguments):
        command = [sys.executable, str(SOURCE / "tools" / tool), "--root", str(self.root), *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    def make_whole(self):
        """The output of report.py without its figures (this claim has too few rows for them)."""
        from report.tables import index
        claim = load_machine(self.root, self.machine)[0]
        (self.machine / "ablations.md").write_text(claim_page(claim))
        (self.results / "README.md").write_text(index(self.root, self.results))
        self.run("report.py", "--tables")


class WithCheckout(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.checkout = Checkout(folder.name)
