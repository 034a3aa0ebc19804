"""A trained model of Lethe as a model of lm-evaluation-harness: `lethe evaluate --what requests` answers its log-likelihood requests.

    python examples/lethe_lm_eval.py --model lethe --model_args model=3f2a --tasks lambada_openai,piqa

Options in --model_args: model, a trained model's folder, name or its begin; lethe, the command (default: this checkout's build/cpu/bin/lethe);
length, tokens that the model reads at most (default: its training length). Needs lm-eval 0.4 or later. Generation tasks are refused.
"""
import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

COMMAND = Path(__file__).resolve().parents[1] / "build/cpu/bin/lethe"


@register_model("lethe")
class Lethe(LM):
    def __init__(self, model, lethe=COMMAND, length=None, device=None, **_):
        super().__init__()
        self.command = [str(lethe), "evaluate", str(model), "--what", "requests", "--device", str(device or "cpu")]
        self.settings = {} if length is None else {"length": int(length)}

    def loglikelihood(self, requests, **_):
        """[(Σ log p of the continuation, whether greedy decoding writes it)]"""
        return self.answers(request.args for request in requests)

    def loglikelihood_rolling(self, requests, **_):
        """[Σ log p of the text after the begin token]"""
        return [log_likelihood for log_likelihood, _ in self.answers(("", request.args[0]) for request in requests)]

    def generate_until(self, requests, **_):
        sys.exit("lethe: expected a log-likelihood task, found one that generates text")

    def answers(self, pairs):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "requests.jsonl.gz"
            with gzip.open(file, "wt", encoding="utf-8") as lines:
                for context, continuation in pairs:
                    lines.write(json.dumps({"context": context, "continuation": continuation}) + "\n")
            call = [*self.command, "--raw", folder, "--settings", json.dumps({"file": str(file), **self.settings})]
            done = subprocess.run(call, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            if done.returncode != 0:
                sys.exit(done.stderr.strip() or f"lethe: expected status 0, found {done.returncode}")
            (results,) = Path(folder).glob("*.requests.jsonl")
            lines = results.read_text(encoding="utf-8").splitlines()[1:]  # the first says what was measured
        found = sorted((json.loads(line) for line in lines), key=lambda answer: answer["line"])
        return [(answer["log_likelihood"], answer["greedy"]) for answer in found]


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
