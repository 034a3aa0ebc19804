"""Trainings from the outside that end early, wait, go on, and have no provenance. Run by ctest.

usage: test_command_trainings.py BINARY [unittest's own arguments]
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from command import BINARY, ROOT, TINY, CommandTest

LONG = ["6400000" if word == "512" else word for word in TINY]
SLOW = [*"--layers 2 --width 128 --heads 2 --context 64 --batch-tokens 65536 --warmup-tokens 65536 --tokens 6553600".split()]  # seconds a step


class Trainings(CommandTest):
    """Long trainings that end early, and trainings without provenance."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = temporary.name

    def begun(self, *arguments: str, before: int = 0) -> tuple[subprocess.Popen, Path]:
        """A training that has logged steps, more than `before` of them, and its folder."""
        process = subprocess.Popen([BINARY, "--threads", "1", "--root", self.root, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True)
        self.addCleanup(self.end, process)
        for _ in range(3000):
            for log in Path(self.root).glob("artefacts/models/*/log.jsonl"):
                if log.read_text().count("\n") > before + 2:
                    return process, log.parent
            time.sleep(0.1)
        self.fail("no step within five minutes")

    @staticmethod
    def end(process: subprocess.Popen) -> None:
        process.kill()
        with process:
            pass

    def test_that_a_signal_ends_save_a_checkpoint_first(self):
        steps = [0]
        for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            process, folder = self.begun("train", *LONG, before=steps[-1])
            process.send_signal(number)
            _, said = process.communicate(timeout=60)
            self.assertEqual(process.returncode, status, said)
            saved = re.search(rf"(?m)^lethe: {number.name}: step (\d+) of 50000 is saved in (.*); the same call goes on there$", said)
            self.assertTrue(saved, said)
            self.assertEqual(Path(saved[2]), folder / "checkpoint.pt")
            steps.append(int(saved[1]))
            self.assertEqual((folder / "log.jsonl").read_text().count("\n"), steps[-1])
        self.assertGreater(steps[2], steps[1])

    def test_that_one_request_of_two_signals_ends_save_a_checkpoint(self):
        process, _ = self.begun("train", *SLOW, before=-2)
        process.send_signal(signal.SIGTERM)
        while "SIGTERM: ends after the current step" not in process.stderr.readline():
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)  # as timeout(1) does
        time.sleep(0.6)
        process.send_signal(signal.SIGINT)  # as a farm's worker gets both, one of them from a terminal
        _, said = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 143, said)
        self.assertRegex(said, r"(?m)^lethe: SIGTERM: step \d+ of 100 is saved in ")

    def test_that_a_second_request_ends_end_at_once(self):
        process, _ = self.begun("train", *SLOW, before=-2)
        process.send_signal(signal.SIGTERM)
        while "SIGTERM: ends after the current step" not in process.stderr.readline():
            self.assertIsNone(process.poll())
        time.sleep(0.6)
        self.assertIsNone(process.poll(), "the step took too short for this test")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=60), -signal.SIGTERM)

    def test_by_two_processes_save_a_checkpoint_too(self):
        process, folder = self.begun("train", *LONG, "--processes", "2")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 143, said)  # of the first process, which was told to stop
        saved = re.search(r"(?m)^lethe: SIGTERM: step (\d+) of 50000 is saved in ", said)
        self.assertTrue(saved, said)
        self.assertEqual((folder / "log.jsonl").read_text().count("\n"), int(saved[1]))

    def test_of_a_job_go_on_inside_a_training(self):
        (Path(self.root) / "experiments").symlink_to(ROOT / "experiments")
        process, folder = self.begun("run", "ablations", "--scale", "quick")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 143, said)
        self.assertIn("is saved in ", said)
        before = (folder / "log.jsonl").read_text().count("\n")
        self.begun("run", "ablations", "--scale", "quick", before=before)
        times = [json.loads(line)["seconds"] for line in (folder / "log.jsonl").read_text().splitlines()[: before + 1]]
        self.assertEqual(times, sorted(times))

    def test_that_go_on_meanwhile_are_never_called_broken(self):
        sys.path.insert(0, str(ROOT / "tools"))
        from report.trainings import check_begun_log
        process, folder = self.begun("train", *LONG)  # a checkpoint every second step
        for _ in range(500):
            check_begun_log(folder)
        for _ in range(20):
            self.assertRegex(self.done("--root", self.root, "list", "models"), rf"(?m)^  {folder.name} +training \d+ %")
        for _ in range(2):
            self.done("--root", self.root, "plot", folder.name, "--output", f"{self.root}/curve.svg")
        self.assertIsNone(process.poll())

    def test_of_an_evaluation_end_between_their_steps(self):
        folder = self.done("--root", self.root, "train", *TINY).splitlines()[-1]
        for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            process = subprocess.Popen([BINARY, "--threads", "1", "evaluate", folder, "--what", "associative_recall", "--settings",
                                        '{"steps": 1000000}'], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
            self.addCleanup(self.end, process)
            self.assertIn("associative_recall of", process.stderr.readline())
            process.send_signal(number)
            _, said = process.communicate(timeout=60)
            self.assertEqual(process.returncode, status, said)

    def test_of_a_claims_evaluation_end_between_their_steps(self):
        shutil.copytree(ROOT / "experiments/papers", Path(self.root) / "experiments/papers")
        config = Path(self.root) / "experiments/papers/forgetting_transformer/recall/config.toml"
        before, smoke = config.read_text().split("[smoke.task]")
        config.write_text(f"{before}[smoke.task]{smoke.replace('steps = 2', 'steps = 1000000')}")
        process = subprocess.Popen([BINARY, "--threads", "1", "--root", self.root, "run", "recall", "--scale", "smoke"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)  # fmt: skip
        self.addCleanup(self.end, process)
        models, since = 0, time.monotonic()
        while models < 2 or time.monotonic() < since + 5:  # trainings take less; after them comes an evaluation of a million steps
            self.assertIsNone(process.poll())
            if models != (now := len(list(Path(self.root).glob("artefacts/models/*/done.json")))):
                models, since = now, time.monotonic()
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 143, said)
        self.assertFalse(list(Path(self.root).glob("artefacts/results/*/*.csv")))

    def test_wait_for_another_process_and_name_it(self):
        first, folder = self.begun("train", *LONG)
        second = subprocess.Popen([BINARY, "--threads", "1", "--root", self.root, "train", *LONG], stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.end, second)
        said = ""
        while "waiting" not in said:
            said = second.stderr.readline()
            self.assertIsNone(second.poll())
        self.assertEqual(said, f"lethe: waiting for {folder}, which process {first.pid} is training\n")
        second.send_signal(signal.SIGINT)
        self.assertIn("SIGINT", second.communicate(timeout=60)[1])
        self.assertEqual(second.returncode, 130)
        self.assertIsNone(first.poll())

    def test_that_an_error_ends_are_failed_until_they_go_on(self):
        call = [BINARY, "--threads", "1", "--root", self.root, "train", *TINY]
        first = subprocess.run(call, capture_output=True, text=True, errors="replace", timeout=300)
        self.assertEqual(first.returncode, 0, first.stderr)
        folder = Path(first.stdout.splitlines()[-1])
        for path in [*folder.glob("*.json"), *folder.glob("checkpoint*")]:
            path.unlink()
        (folder / "checkpoint.next.pt").mkdir()  # no checkpoint can be written
        failed = subprocess.run(call, capture_output=True, text=True, timeout=300)
        self.assertEqual(failed.returncode, 1, failed.stderr)
        self.assertIn("checkpoint.next.pt: expected a file, found a folder\n", failed.stderr)
        listed = self.done("--root", self.root, "list", "models")
        self.assertRegex(listed, rf"(?m)^  {folder.name} +failed \d+ %: {folder}/checkpoint.next.pt: expected a file, found a folder ")
        (folder / "checkpoint.next.pt").rmdir()
        self.assertEqual(subprocess.run(call, capture_output=True, timeout=300).returncode, 0)
        self.assertRegex(self.done("--root", self.root, "list", "models"), rf"(?m)^  {folder.name} +finished ")
        self.assertFalse((folder / "failed.json").exists())

    def test_without_a_commit_finish_with_one_warning(self):
        def checkout(name, *commands):
            folder = Path(self.root) / name
            folder.mkdir()
            for command in commands:
                subprocess.run(["git", "-C", str(folder), *command.split()], check=True, capture_output=True)
            return folder

        named = "init -q", "-c user.name=a -c user.email=b commit -q --allow-empty -m first"
        for words, folder, environment in (
            ("none around", checkout("tarball"), {"LETHE_COMMIT": ""}),
            ("", checkout("named"), {"LETHE_COMMIT": "f" * 40}),
            ("a checkout that git refuses", checkout("no_commit", "init -q"), {}),
            ("a checkout that git refuses", checkout("foreign", *named), {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}),
            ("no git program", checkout("without_git", *named), {"PATH": self.path_without_git()}),
            ("", checkout("whole", *named), {}),
        ):
            with self.subTest(folder.name):
                result = subprocess.run([BINARY, "--threads", "1", "--root", folder, "train", *TINY], capture_output=True, text=True,
                                        env=os.environ | environment, timeout=300)  # fmt: skip
                self.assertEqual(result.returncode, 0, result.stderr)
                (done,) = folder.glob("artefacts/models/*/done.json")
                certificate = json.loads(done.read_text())
                self.assertEqual(certificate["commit"] == "unknown", bool(words))
                built = Path(BINARY).with_name("lethe.commit")
                self.assertEqual(certificate.get("built"), built.read_text().strip() if built.exists() else None)
                commit = environment.get("LETHE_COMMIT")
                if commit:
                    self.assertEqual(certificate["commit"], commit)
                self.assertEqual(certificate["dirty"] is None, bool(words or commit))
                warnings = [line for line in result.stderr.splitlines() if line.startswith("lethe: commit")]
                self.assertEqual(len(warnings), 1 if words else 0, result.stderr)
                self.assertTrue(not words or f"lethe: commit: expected that of a checkout, found {words}" in warnings[0], warnings)
                self.assertNotIn("fatal", result.stderr)

    def path_without_git(self) -> str:
        """A folder with the programs that a training runs, and no git."""
        programs = Path(self.root) / "programs"
        programs.mkdir()
        for name in ("sh", "python3", "bible"):
            if found := shutil.which(name):
                (programs / name).symlink_to(found)
        return str(programs)


if __name__ == "__main__":
    unittest.main()
