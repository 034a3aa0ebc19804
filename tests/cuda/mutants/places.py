"""Where a mutant's statement is: in the C++ function of a given name, whichever file below optimized/ defines it."""

import functools
import re
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[3] / "optimized"
FOLDERS = ("cuda", "torch")
COMMENT = r"//[^\n]*|/\*.*?\*/"
LITERAL = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\''


def blanked(text, pattern):
    """The text with spaces where comments or literals match the pattern: every other character keeps its position."""
    blank = lambda found: re.sub(r"[^\n]", " ", found[0]) if re.fullmatch(pattern, found[0], re.S) else found[0]
    return re.sub(f"{LITERAL}|{COMMENT}", blank, text, flags=re.S)


def end_of(code, begin):
    """The position after the bracket that closes the one at `begin`."""
    depth = 0
    for found in re.compile(r"[([{]|[)\]}]").finditer(code, begin):
        depth += 1 if found[0] in "([{" else -1
        if depth == 0:
            return found.end()
    return len(code)


def definitions(code, name):
    """(begin, end) of each function, lambda (`const auto NAME = …`), struct, constant and macro (to its #undef) of this name."""
    for found in re.finditer(rf"\b{name}\b", code):
        before, at = code[max(0, found.start() - 120) : found.start()], found.end()
        call = re.compile(r"(<[\w\s,]*>)?\s*\(").match(code, at)
        if re.search(r"#define\s+$", before):
            yield found.start(), (code + f"#undef {name}").index(f"#undef {name}", at)
        elif re.search(r"\bstruct\s+(alignas\(\d+\)\s*)?$", before) and (brace := re.compile(r"[^;{]*\{").match(code, at)):
            yield found.start(), end_of(code, brace.end() - 1)
        elif re.search(r"\bauto\s+$", before) and re.match(r"\s*=\s*\[", code[at : at + 20]):
            yield found.start(), end_of(code, code.index("{", at))
        elif re.search(r"\bconstexpr\s[\w:<>*\s]*$", before) and re.match(r"\s*=", code[at : at + 20]):
            yield found.start(), code.index(";", at)
        elif call and (body := re.compile(r"(\s|const\b|noexcept\b|->[\w\s:<>*]+)*\{").match(code, end_of(code, call.end() - 1))):
            yield found.start(), end_of(code, body.end() - 1)


def spans(code, path):
    """(begin, end) of what a path names: `function`, or `Outer::function`, inside Outer or qualified by it."""
    outer, _, name = path.rpartition("::")
    if not outer:
        return list(definitions(code, name))
    around = spans(code, outer)
    qualified = re.compile(rf"\b{outer.rpartition('::')[2]}(<[\w\s,]*>)?::$")
    return [(begin, end) for begin, end in definitions(code, name)
            if any(first < begin < last for first, last in around) or qualified.search(code[max(0, begin - 120) : begin])]


@functools.cache
def sources():
    """[(path below optimized, text)]"""
    paths = sorted(path for folder in FOLDERS for path in (SOURCES / folder).rglob("*") if path.suffix in (".cu", ".cuh", ".cpp", ".hpp"))
    return [(str(path.relative_to(SOURCES)), path.read_text()) for path in paths]


@functools.cache
def without_comments(text):
    return blanked(text, COMMENT)


@functools.cache
def without_comments_and_literals(text):
    return blanked(text, f"{COMMENT}|{LITERAL}")


def pattern_of(statement):
    """Matches the statement whatever white space and comments stand between its tokens."""
    tokens = re.findall(r"\w+|[^\w\s]", statement)
    between = [r"\s+" if first[-1].isalnum() and second[0].isalnum() else r"\s*" for first, second in zip(tokens, tokens[1:])]
    pattern = "".join(re.escape(token) + space for token, space in zip(tokens, [*between, ""]))
    return re.compile(r"(?<!\w)" * tokens[0].isalnum() + pattern + r"(?!\w)" * tokens[-1].isalnum())


@functools.cache
def find(function, statement):
    """(how many definitions `function` names, [(file, begin, end)] of the statement in them)"""
    count, places, pattern = 0, set(), pattern_of(statement)
    for file, text in sources():
        if function.rpartition("::")[2] not in text:
            continue
        for begin, end in spans(without_comments_and_literals(text), function):
            count += 1
            places |= {(file, *found.span()) for found in pattern.finditer(without_comments(text), begin, end)}
    return count, sorted(places)
