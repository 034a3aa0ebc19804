"""The rows of tools/compare_training.py and training_grid.py: processes that take training steps on command. A row that fails, or gives no answer in
time, has an error, and the others go on.
"""
import json
import os
import queue
import random
import subprocess
import tempfile
import threading
import time

from long_work import telling_what_is_long

PATIENCE = 15  # seconds until the first line about work that is long


class Row:
    """A process that prints "ready" and its figures in JSON after its first steps, then the seconds of N steps for every line "go N" that it reads.

    limit  seconds until it is ready, and until any later answer
    """

    def __init__(self, name, command, environment=None, case="", limit=1800.0):
        self.name, self.case, self.limit = name, case, limit
        self.times, self.error, self.figures = [], None, {}
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment)
        self.lines = queue.SimpleQueue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        with self.process.stdout as output:
            for line in output:
                self.lines.put(line)
        self.lines.put(None)

    def said(self):
        """The last line of its standard error, read without moving the place at which the process writes."""
        size = os.fstat(self.log.fileno()).st_size
        lines = os.pread(self.log.fileno(), 4096, max(0, size - 4096)).decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def answer(self, what, begin=""):
        """The rest of its next line that begins so. If none comes in time or can come, the process is killed, `error` gives the reason, and this is
        None."""
        deadline = time.monotonic() + self.limit
        with telling_what_is_long(f"{self.case} {self.name}, {what}", PATIENCE, self.said):
            while True:
                try:
                    line = self.lines.get(timeout=max(0.0, deadline - time.monotonic()))
                except queue.Empty:
                    self.error = f"expected {what} within {self.limit:g} s, found none: {self.said() or 'no message'}"
                    break
                if line is None:
                    self.process.wait()
                    self.error = f"ended before {what}: {self.said() or 'no message'}"
                    break
                if line.startswith(begin):
                    return line.removeprefix(begin)
        self.process.kill()
        return None

    def wait_until_ready(self):
        figures = self.answer("its first step", "ready ")
        if figures is not None:
            self.figures = json.loads(figures)

    def ask(self, line, what):
        """Its answer to a line; None if the row fails."""
        try:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        except OSError:  # it has ended: so does its output
            pass
        return self.answer(what)

    def take(self, count):
        """Seconds a step, as the mean of `count` steps; None if the row fails."""
        seconds = self.ask(f"go {count}", f"the end of {count} steps")
        try:
            return None if seconds is None else float(seconds) / count
        except ValueError:
            self.error = f"expected the seconds of {count} steps, found {seconds.strip()[:80]}"
            self.process.kill()
            return None

    def rest(self):
        """The bytes that are free on the GPU once it has given back what its next step takes again; None if the row fails."""
        figures = self.ask("rest", "its memory")
        return None if figures is None else json.loads(figures)["free_bytes"]

    def end(self):
        try:
            self.process.stdin.close()
        except OSError:
            pass
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def times_in_turn(rows, rounds, take):
    """{row: its times}: `take(row)` of each row in every round, in a new random order; a row of which it is None is left out."""
    times = {row: [] for row in rows}
    for _ in range(rounds):
        for row in random.sample(list(times), len(times)):
            seconds = take(row)
            if seconds is None:
                del times[row]
            else:
                times[row].append(seconds)
    return times


def measure(rows, rounds, slot):
    """Appends a time a round to each row that works: the seconds a step over about `slot` seconds, the rows in turn."""
    counts = {}
    for row in rows:
        seconds = row.take(2) if row.error is None else None
        if seconds is not None:
            counts[row] = max(1, round(slot / seconds))
    for row, times in times_in_turn(counts, rounds, lambda row: row.take(counts[row])).items():
        row.times += times
