"""One place of the sources, changed."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    name: str
    suite: str
    file: str = ""  # of optimized; none: all as it is
    old: str = ""
    new: str = ""
    count: int = 1
    hangs: bool = False  # tests of it do not end, which finds it out where none fails before
    gpus: int = 1  # that its tests need
    breaks: bool = True  # or it makes warps late, which its suite's tests must bear

    def apply(self, text):
        """The file's text, changed."""
        if text.count(self.old) != self.count:
            raise ValueError(f"{self.name}: expected {self.count} of what it replaces in {self.file}, found {text.count(self.old)}")
        return text.replace(self.old, self.new)
