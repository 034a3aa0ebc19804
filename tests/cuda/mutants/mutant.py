"""A change of one statement of one function, written by hand or generated from a row of a table."""

import functools
from dataclasses import dataclass

from . import places

FAMILIES = ("ampere", "hopper")  # folders of optimized/cuda


@dataclass(frozen=True)
class Mutant:
    name: str
    suite: str
    function: str = ""  # or a struct, a constant, a macro (places.definitions); empty: the sources as they are
    statement: str = ""  # as few tokens of it as are found `count` times in the function
    new: str = ""
    more: tuple = ()  # ((statement, new), …) of the same function, where one change alone would hide the hazard
    count: int = 1
    hangs: bool = False  # its tests do not end, which detects it where none fails earlier
    gpus: int = 1  # that its tests need
    family: str = "hopper"  # whose folder is searched, beside what all families share
    breaks: bool = True  # False: a delay, with which the tests of its suite must pass

    @functools.cached_property
    def changed(self):
        """(file below optimized, its changed text)"""
        edits = []
        for statement, new in ((self.statement, self.new), *self.more):
            functions, found = places.find(self.function, statement)
            found = [place for place in found
                     if not any(place[0].startswith(f"cuda/{family}/") for family in FAMILIES if family != self.family)]
            if not functions:
                raise ValueError(f"{self.name}: expected a function {self.function} in optimized/cuda or optimized/torch, found none")
            if len(found) != self.count or len({file for file, _, _ in found}) != 1:
                where = ", ".join(sorted({file for file, _, _ in found}))
                raise ValueError(f"{self.name}: expected {self.count} of `{statement}` in {self.function}, found {len(found)}"
                                 f"{where and ' in '}{where}")
            edits += [(*place, new) for place in found]
        file = edits[0][0]
        text = dict(places.sources())[file]
        for _, begin, end, new in sorted(edits, reverse=True):
            text = text[:begin] + new + text[end:]
        return file, text

    @property
    def file(self):
        return self.changed[0] if self.function else ""


def replaced(statement, part, new):
    found = [match.span() for match in places.pattern_of(part).finditer(statement)]
    if len(found) != 1:
        raise ValueError(f"`{statement}`: expected 1 of `{part}`, found {len(found)}")
    return statement[: found[0][0]] + new + statement[found[0][1] :]


# The kinds of generated mutants: from a statement to what replaces it.
def dropped(statement):
    return "{}"


def swapped(part, other):
    """An index, operand or constant for another."""
    return lambda statement: replaced(statement, part, other)


def one_more(bound):
    return swapped(bound, f"{bound} + 1")


def never(condition):
    return swapped(condition, "false")


def inclusive(statement):
    """< for <=, > for >=, and the other way round."""
    comparison = next(sign for sign in ("<=", ">=", "<", ">") if sign in statement)
    return replaced(statement, comparison, comparison[0] if "=" in comparison else f"{comparison}=")


def generated(suite, *rows):
    """Mutants of rows (name, function, statement, kind[, further members of Mutant])."""
    return [Mutant(name, suite, function, statement, kind(statement), **dict(*members)) for name, function, statement, kind, *members in rows]
