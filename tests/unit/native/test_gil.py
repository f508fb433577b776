"""A program that ends while its threads are in native code ends as any other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

THREADS_AT_WORK = """
import threading
import numpy as np
from moeinf._native import crc32c

data = np.zeros(1 << 22, np.uint8)
began = threading.Barrier(9)

def work():
    began.wait()
    while True:
        crc32c(data)

for _ in range(8):
    threading.Thread(target=work, daemon=True).start()
began.wait()
print("the end of the program")
"""


def test_a_program_ends_while_its_threads_are_in_native_code() -> None:
    """Python before 3.14 ends threads that want the GIL at its end, by unwinding them."""
    done = subprocess.run([sys.executable, "-c", THREADS_AT_WORK], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the end of the program\n", "")


def test_no_binding_takes_the_gil_but_by_its_own_guards() -> None:
    bindings = Path(__file__).parents[3] / "cextensions" / "bindings"
    sources = [path for path in bindings.rglob("*") if path.is_file()]
    assert sources
    unsafe = re.compile(r"nb::gil_scoped_|PyEval_RestoreThread|PyGILState_Ensure")
    assert [path.name for path in sources if unsafe.search(path.read_text())] == ["gil.h"]
