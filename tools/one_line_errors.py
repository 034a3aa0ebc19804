"""Import it first in a tool: an error that ends the tool is one line on standard error, never a traceback.

Exit status: 1; 130 after Ctrl-C; 141 where the reader of a pipe has gone. LETHE_TRACEBACK=1 shows the traceback.
"""

import os
import sys
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent


def words(kind, error, trace=None):
    """An error in the format of all errors: "name: expected …, found …"."""
    if isinstance(error, ModuleNotFoundError):
        return f"environment: expected the Python module {error.name}, found none; run tools/setup"
    if isinstance(error, UnicodeDecodeError):
        return f"text: expected UTF-8, found byte {error.object[error.start]:#04x} at {error.start}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'file'}: {error.strerror}"
    if isinstance(error, MemoryError):
        return "memory: expected enough, found none left"
    frames = [frame for frame in traceback.extract_tb(trace) if Path(frame.filename).is_relative_to(HERE)]
    where = f" ({Path(frames[-1].filename).relative_to(HERE.parent)}, line {frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    return text if kind.__name__ == "BadResult" else f"{kind.__name__}: {text}{where}"


def tell(kind, error, trace):
    if os.environ.get("LETHE_TRACEBACK"):
        traceback.print_exception(kind, error, trace)
    elif issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
    elif not issubclass(kind, BrokenPipeError):
        print(f"{Path(sys.argv[0]).stem}: {words(kind, error, trace)}", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # the reader has closed it
            pass
    os._exit(130 if issubclass(kind, KeyboardInterrupt) else 141 if issubclass(kind, BrokenPipeError) else 1)


if Path(sys.argv[0]).resolve().parent == HERE:  # a tool, and not a test that imports one
    sys.excepthook = tell
