"""Trainings in several processes and on several machines: deadlines, parts, bundles, and data without a network. Run by ctest.

usage: test_farm.py LETHE [unittest arguments]
"""

import csv
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(SOURCE / "tools"))
from sealed_json import sealed  # noqa: E402
CLAIM = ("savings", "--scale", "smoke")  # three runs
CONTINUES = 75


class Machine:
    """A checkout of its own; the corpus is prepared once."""

    def __init__(self, folder: Path, data: Path):
        self.root = folder
        self.models = folder / "artefacts/models"
        self.models.mkdir(parents=True)
        (folder / "experiments").symlink_to(SOURCE / "experiments")
        data.mkdir(exist_ok=True)
        (folder / "artefacts/data").symlink_to(data)

    def start(self, *arguments: str) -> subprocess.Popen:
        return subprocess.Popen([LETHE, "--root", self.root, "--threads", "1", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def call(self, *arguments: str) -> subprocess.CompletedProcess:
        process = self.start(*arguments)
        stdout, stderr = process.communicate(timeout=300)
        return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)

    def done(self, *arguments: str) -> str:
        result = self.call(*arguments)
        if result.returncode != 0:
            raise AssertionError(f"{arguments} ended with {result.returncode}: {result.stderr}")
        return result.stdout

    def artefacts(self, file: str = "done.json") -> set[str]:
        return {path.parent.name for path in self.models.glob(f"*/{file}")}

    def steps(self) -> list[int]:
        """The logged steps of each model."""
        return sorted(len(path.read_text().splitlines()) for path in self.models.glob("*/log.jsonl"))

    def measurements(self) -> set[str]:
        return {f"{path.parent.parent.name}/{path.name}" for path in self.models.glob("*/measured/*.json")}

    def records(self) -> dict:
        """The claim's numbers, times apart."""
        (file,) = self.root.glob("artefacts/results/*/savings.csv")
        with file.open() as text:
            return {(row["variant"], row["implementation"], row["length"], row["metric"]): float(row["value"])
                    for row in csv.DictReader(text) if row["metric"] in ("pruned_share", "loss")}


class Machines(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = Path(temporary.name)
        Machine(cls.folder / "preparing", cls.folder / "data").done("data", "prepare", "bible")

    def machine(self, name: str) -> Machine:
        return Machine(self.folder / f"{self.id().rsplit('.', 1)[1]}-{name}", self.folder / "data")

    def refused(self, result: subprocess.CompletedProcess, status: int, *words: str) -> None:
        self.assertEqual(result.returncode, status, result.stderr)
        errors = [line for line in result.stderr.splitlines() if line.startswith("lethe: ") and not line.startswith("lethe: commit: ")]
        self.assertEqual(len(errors), 1, result.stderr)
        for word in words:
            self.assertIn(word, errors[0])


class Deadlines(Machines):
    def test_end_a_training_after_its_checkpoint_and_the_same_call_goes_on(self):
        tiny = "train --layers 1 --width 16 --heads 2 --context 32 --batch-tokens 128 --warmup-tokens 128 --tokens 512 --set mlp_multiple=16".split()
        whole, stopped = self.machine("whole"), self.machine("stopped")
        whole.done(*tiny)
        for step in (1, 2, 3):
            result = stopped.call(*tiny, "--until", "0")
            self.refused(result, CONTINUES, "continues", f"step {step} of 4 is saved")
            self.assertEqual((stopped.artefacts(), stopped.steps()), (set(), [step]))
        stopped.done(*tiny, "--until", "1000")
        losses = [[json.loads(line)["loss"] for line in next(machine.models.glob("*/log.jsonl")).read_text().splitlines()]
                  for machine in (whole, stopped)]
        self.assertEqual(*losses)

    def test_end_a_job_in_one_process_and_in_several(self):
        machine = self.machine("one")
        self.refused(machine.call("run", *CLAIM, "--processes", "2", "--until", "0"), CONTINUES, "continues: 3 of 3 runs", "seed 0")
        self.assertEqual(machine.steps(), [])
        result = machine.call("run", *CLAIM, "--only", "1/3", "--until", "0")
        self.assertEqual((result.returncode, machine.artefacts()), (CONTINUES, set()), result.stderr)
        self.assertEqual(machine.steps(), [1])
        machine.done("run", *CLAIM, "--processes", "2", "--until", "1000")
        self.assertEqual(len(machine.artefacts()), 3)
        self.assertEqual(len(machine.records()), 6)


class Farms(Machines):
    def test_train_and_measure_what_one_process_does(self):
        alone, farm = self.machine("alone"), self.machine("farm")
        alone.done("run", *CLAIM)
        farm.done("run", *CLAIM, "--processes", "3")
        self.assertEqual(farm.artefacts(), alone.artefacts())
        self.assertEqual(farm.measurements(), alone.measurements())
        self.assertEqual(farm.records(), alone.records())
        for name in farm.measurements():  # of those weights, and of no other training of the run
            model, file = name.split("/")
            hashes = {json.loads((farm.models / model / path).read_text())["weights_sha256"] for path in ("done.json", f"measured/{file}")}
            self.assertEqual(len(hashes), 1)

    def test_that_are_ended_end_their_trainings_after_a_checkpoint(self):
        machine = self.machine("one")
        farm = machine.start("run", "ablations", "--scale", "quick", "--processes", "2")
        while farm.poll() is None and [steps >= 3 for steps in machine.steps()] != [True, True]:
            time.sleep(0.05)
        farm.send_signal(signal.SIGTERM)
        _, stderr = farm.communicate(timeout=120)
        self.assertEqual(farm.returncode, 128 + signal.SIGTERM, stderr)
        self.assertEqual(machine.artefacts(), set())
        self.assertEqual(len(machine.artefacts("checkpoint.pt")), 2, stderr)  # there before the farm's end: no worker is left

    def test_go_on_where_one_run_fails_and_name_it(self):
        machine = self.machine("one")
        blocked = sorted(self.names(machine))[0]
        (machine.models / blocked).write_text("a file in place of the folder")
        result = machine.call("run", *CLAIM, "--processes", "1")
        self.assertEqual(result.returncode, 1)
        self.assertIn("lethe: failed: 1 of 3 runs (FoX (Pro)", result.stderr)
        self.assertEqual(len(machine.artefacts()), 2)

    def names(self, machine: Machine) -> set[str]:
        other = self.machine("names")
        for part in ("1/3", "2/3", "3/3"):
            other.call("run", *CLAIM, "--only", part, "--until", "0")
        return other.artefacts("run.json")

    def test_train_the_run_of_a_label_with_its_context_and_seed(self):
        machine = self.machine("one")
        for label in ("FoX (Pro) with ACP, context 64, seed 0", "FoX (Pro) with ACP, context 128, seed 0"):
            machine.done("run", *CLAIM, "--only", label)
        runs = [json.loads((machine.models / name / "run.json").read_text()) for name in machine.artefacts()]
        self.assertEqual(sorted((run["label"], run["training"]["context_length"]) for run in runs),
                         [("FoX (Pro) with ACP", 64), ("FoX (Pro) with ACP", 128)])
        machine.done("run", *CLAIM, "--only", "FoX (Pro) without ACP")
        self.assertEqual(len(machine.artefacts()), 3)

    def test_refuse_gpus_that_are_not_there_and_runs_that_need_none(self):
        machine = self.machine("one")
        self.refused(machine.call("run", *CLAIM, "--gpus", "2"), 2, "--gpus: expected a scale whose runs have the device cuda, found smoke")
        self.refused(machine.call("run", *CLAIM, "--gpus", "2", "--processes", "2"), 2, "excludes")
        for part in ("0/3", "4/3", "no such label", "FoX (Pro) with ACP, context 64, seed 1"):
            self.refused(machine.call("run", *CLAIM, "--only", part), 2, "--only: expected K/N", f"found {part}")


class Bundles(Machines):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.first = Machine(cls.folder / "first", cls.folder / "data")
        cls.second = Machine(cls.folder / "second", cls.folder / "data")
        cls.whole = Machine(cls.folder / "whole", cls.folder / "data")
        cls.first.done("run", *CLAIM, "--processes", "2", "--only", "1/2")
        cls.second.done("run", *CLAIM, "--only", "2/2")
        cls.whole.done("run", *CLAIM)
        cls.files = []
        for machine in (cls.first, cls.second):
            file = machine.root / "bundle.tar.xz"
            machine.done("bundle", "--to", str(file))
            cls.files.append(str(file))
        cls.parts = [(machine.artefacts(), machine.measurements()) for machine in (cls.first, cls.second)]
        cls.tables = [*cls.first.root.glob("results/*/*"), *cls.second.root.glob("results/*/*")]

    def unpacked(self) -> Path:
        folder = self.folder / self.id()
        folder.mkdir()
        subprocess.run(["tar", "-xJf", self.files[0], "-C", folder], check=True)
        return folder

    def repacked(self, folder: Path) -> str:
        file = str(folder) + ".tar.xz"
        subprocess.run(["tar", "-cJf", file, "-C", folder, "."], check=True)
        return file

    def change(self, file: Path, **members):
        """Sealed again: a whole file with other members."""
        whole = json.loads(file.read_text()) | members
        del whole["sha256"]
        file.write_text(sealed(whole))

    def without(self, file: Path, member: str):
        whole = json.loads(file.read_text())
        file.write_text(sealed({name: value for name, value in whole.items() if name not in ("sha256", member)}))

    def test_of_parts_are_parts_of_the_runs(self):
        (first, of_first), (second, of_second) = self.parts
        self.assertEqual((len(first), len(second)), (2, 1))
        self.assertEqual(first | second, self.whole.artefacts())
        self.assertEqual(of_first | of_second, self.whole.measurements())
        self.assertEqual(self.tables, [])

    def test_give_the_claim_on_a_machine_without_weights(self):
        table = self.machine("table")
        self.assertIn("imported 3 models", table.done("bundle", "import", *self.files))
        table.done("run", *CLAIM)
        self.assertEqual(table.records(), self.whole.records())
        self.assertEqual(table.artefacts("checkpoint.pt"), set())
        self.assertEqual(table.artefacts(), self.whole.artefacts())
        self.assertIn("imported 0 models and 0 measurements", table.done("bundle", "import", *self.files))
        for name in table.artefacts():
            self.assertEqual(json.loads((table.models / name / "done.json").read_text())["weights"], "absent")
            self.refused(table.call("evaluate", name), 2, name, "expected its weights, found them absent")

    def test_leave_weights_that_are_there(self):
        self.first.done("bundle", "import", *self.files)
        self.assertEqual(len(self.first.artefacts("checkpoint.pt")), 2)
        self.first.done("run", *CLAIM)
        self.assertEqual(self.first.records(), self.whole.records())

    def test_with_a_name_of_another_identity_are_refused_as_a_whole(self):
        folder, table = self.unpacked(), self.machine("table")
        (name, _) = sorted(path.name for path in (folder / "models").iterdir())
        (folder / "models" / name).rename(folder / "models" / ("0" * 16))
        runs = json.loads((folder / "bundle.json").read_text())["runs"]
        self.change(folder / "bundle.json", runs=[run | {"name": "0" * 16 if run["name"] == name else run["name"]} for run in runs])
        self.refused(table.call("bundle", "import", self.repacked(folder)), 2, "0" * 16, name)
        self.assertEqual(table.artefacts("run.json"), set())

    def test_that_are_damaged_are_refused_by_the_file(self):
        table = self.machine("table")
        for damaged in ("log.jsonl", "done.json", "measured"):
            with self.subTest(damaged):
                folder = self.folder / f"damaged {damaged}"
                folder.mkdir()
                subprocess.run(["tar", "-xJf", self.files[0], "-C", folder], check=True)
                file = next((folder / "models").glob("*/measured/*.json" if damaged == "measured" else f"*/{damaged}"))
                file.write_text(file.read_text().replace("1", "2", 1))
                result = table.call("bundle", "import", self.repacked(folder))
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(file.name, result.stderr)
                self.assertEqual(table.artefacts("run.json"), set())
                self.assertNotIn("/lethe-", result.stderr, "the folder that it was unpacked in")
        for absent in ("bundle.json", "log.jsonl", "run.json"):
            with self.subTest(absent=absent):
                folder = self.folder / f"without {absent}"
                folder.mkdir()
                subprocess.run(["tar", "-xJf", self.files[0], "-C", folder], check=True)
                next(folder.rglob(absent)).unlink()
                bundle = self.repacked(folder)
                result = table.call("bundle", "import", bundle)
                self.assertRegex(result.stderr, rf"^lethe: {bundle}: .*{absent}: cannot be (read|used): No such file or directory\n$")
        (loop := self.folder / "loop.tar.xz").symlink_to(loop)
        for place, found in ((self.folder / "nowhere", "cannot be read: No such file or directory"),
                             (loop, "cannot be read: Too many levels of symbolic links"), (self.folder, "expected a file, found a folder")):
            result = table.call("bundle", "import", str(place))
            self.assertEqual((result.returncode, result.stderr), (1, f"lethe: {place}: {found}\n"))
        cut = self.folder / "cut.tar.xz"
        cut.write_bytes(Path(self.files[0]).read_bytes()[:-100])
        self.refused(table.call("bundle", "import", str(cut)), 1, "cut.tar.xz: expected a tar.xz archive")

    def test_that_lack_members_or_are_of_other_weights_are_refused_by_the_file(self):
        table = self.machine("table")
        for number, (spoil, message) in enumerate((
            (lambda model: self.change(next(model.glob("measured/*.json")), weights_sha256="0" * 64),
             "expected a measurement of the weights .*, found one of 0{64}"),
            (lambda model: self.without(model / "done.json", "machine"),
             "done.json: expected machine, found none"),
            (lambda model: self.without(next(model.glob("measured/*.json")), "value"), "expected value, found none"),
            (shutil.rmtree, "expected the model [0-9a-f]{16}, which bundle.json names, found none"),
            (lambda model: self.change(model.parents[1] / "bundle.json", runs=[]), "expected runs in bundle.json, found none"),
        )):
            with self.subTest(message):
                folder = self.folder / f"spoilt {number}"
                folder.mkdir()
                subprocess.run(["tar", "-xJf", self.files[0], "-C", folder], check=True)
                spoil(sorted((folder / "models").iterdir())[0])
                result = table.call("bundle", "import", self.repacked(folder))
                self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
                self.assertRegex(result.stderr, message)
                self.assertEqual(table.artefacts("run.json"), set())

    def test_are_packed_of_whole_measurements_of_these_weights_alone(self):
        machine = self.machine("packing")
        machine.done("bundle", "import", *self.files)
        name = sorted(machine.artefacts())[0]
        first, *_ = sorted((machine.models / name / "measured").glob("*.json"))
        first.with_suffix(".json.new").write_text("{")  # as a writer leaves that was ended
        machine.done("bundle", name, name, "--to", str(self.folder / "once.tar.xz"))
        self.assertIn("imported 1 models", self.machine("other").done("bundle", "import", str(self.folder / "once.tar.xz")))
        whole = first.read_text()
        self.change(first, weights_sha256="0" * 64)
        self.assertIn(": 1 models", machine.done("bundle", name, "--to", str(self.folder / "without.tar.xz")))
        listed = subprocess.run(["tar", "-tJf", self.folder / "without.tar.xz"], check=True, capture_output=True, text=True).stdout
        self.assertNotIn(first.name, listed)
        self.assertIn("0 models and 1 measurements", machine.done("bundle", "import", *self.files), "in the place of the other's")
        self.assertEqual(json.loads(first.read_text()), json.loads(whole))
        first.write_text(whole[:-20])
        self.refused(machine.call("bundle", name, "--to", str(self.folder / "never.tar.xz")), 2, first.name)
        self.assertFalse((self.folder / "never.tar.xz").exists())

    def test_keep_another_training_of_a_run_beside_it(self):
        folder, table, third = self.unpacked(), self.machine("table"), self.machine("third")
        done = next((folder / "models").glob("*/done.json"))
        for file in (done, *done.parent.glob("measured/*.json")):
            self.change(file, weights_sha256="0" * 64)
        again, name = self.repacked(folder), done.parent.name
        for machine, files in ((table, (self.files[0], again)), (third, (str(self.folder / "both.tar.xz"),))):
            machine.done("bundle", "import", *files)
            ours, other = machine.models / name, machine.models / name / "others/1" / name
            self.assertNotEqual(json.loads((ours / "done.json").read_text())["weights_sha256"], "0" * 64)
            self.assertEqual(json.loads((other / "done.json").read_text())["weights_sha256"], "0" * 64)
            self.assertEqual({path.name for path in other.glob("measured/*")}, {path.name for path in ours.glob("measured/*")})
            self.assertEqual(len(list(machine.models.rglob("done.json"))), 3)
            self.assertIn("imported 0 models and 0 measurements", machine.done("bundle", "import", *files))
            self.assertIn(": 3 models", machine.done("bundle", "--to", str(self.folder / "both.tar.xz")))

    def test_without_a_hash_of_weights_are_told_apart_by_what_their_end_recorded(self):
        folder, table = self.unpacked(), self.machine("table")
        done = next((folder / "models").glob("*/done.json"))
        members = json.loads(done.read_text())
        for absent in ("sha256", "weights_sha256"):
            del members[absent]
        for seconds, trainings in ((members["seconds"], 2), (members["seconds"] + 1, 3), (members["seconds"], 3)):
            done.write_text(sealed(members | {"seconds": seconds}))
            table.done("bundle", "import", self.repacked(folder))
            self.assertEqual(len(list(table.models.rglob("done.json"))), trainings)

    def test_name_no_folder_of_their_machine(self):
        for file in self.unpacked().rglob("*.json*"):
            self.assertNotIn(str(self.folder), file.read_text(), file.name)

    def test_of_nothing_are_refused(self):
        self.refused(self.machine("empty").call("bundle"), 2, "bundle: expected a trained model")


class Data(Machines):
    def setUp(self):
        self.texts = self.folder / self.id() / "texts"
        self.texts.mkdir(parents=True)
        for name in "abc":
            (self.texts / f"{name}.txt").write_text(f"The text of {name}. " * 200)
        self.here = self.machine("here")
        self.parts = self.folder / self.id() / "parts"
        self.list = Path(self.here.done("data", "pack", str(self.texts), "--part-bytes", "500", "--to", str(self.parts)).strip())
        there = Machine(self.folder / self.id() / "there", self.folder / self.id() / "data")
        self.unpack = lambda: there.call("data", "unpack", str(self.list))
        self.unpacked = self.folder / self.id() / "data"

    def test_in_parts_is_the_same_elsewhere(self):
        parts = sorted(self.parts.glob("*.part"))
        self.assertGreater(len(parts), 1)
        self.assertTrue(all(part.stat().st_size <= 500 for part in parts))
        result = self.unpack()
        self.assertEqual(result.returncode, 0, result.stderr)
        content = next(line for line in self.here.done("data", "show", str(self.texts)).splitlines() if "content" in line)
        self.assertIn(content, result.stdout)
        self.assertEqual(self.unpack().stdout, result.stdout)

    def test_with_a_part_that_is_damaged_or_absent_is_refused(self):
        part = sorted(self.parts.glob("*.part"))[1]
        bytes_of_part = part.read_bytes()
        part.write_bytes(bytes_of_part[:-1] + bytes([bytes_of_part[-1] ^ 1]))
        self.refused(self.unpack(), 1, part.name, "SHA-256")
        part.unlink()
        self.refused(self.unpack(), 1, part.name)
        self.assertNotIn("/lethe-", self.unpack().stderr)
        self.assertEqual(list(self.unpacked.iterdir()), [])


if __name__ == "__main__":
    LETHE = Path(sys.argv.pop(1)).resolve()
    unittest.main()
