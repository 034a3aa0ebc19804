"""Long work says on standard error that it is still at work."""
import sys
import threading
import time
from contextlib import contextmanager


@contextmanager
def telling_what_is_long(what, seconds=60, detail=lambda: ""):
    """Prints on stderr, after every `seconds`, what has not ended, and `detail`, if any: so a job that meets its limit has named its place."""
    ended = threading.Event()

    def tell():
        while not ended.wait(seconds):
            more = detail()
            print(f"{what}: no end within {time.monotonic() - begin:.0f} s{f': {more}' if more else ''}", file=sys.stderr, flush=True)

    begin = time.monotonic()
    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
