"""A g++ that compiles nothing twice: what the real one has made of the same code is copied.

Most tests need folders in which torch finds nothing, and in each torch compiles the same programs: those that
try out vector instructions, its headers, kernels of the sample.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def put_first(folder: Path) -> None:
    """Have processes that are started from here on find it as `g++`; what it has made is kept in `folder`.

    Others may do the same at the same time.
    """
    real = shutil.which("g++")
    if real is None:
        return
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-IS", __file__, real, str(folder)]
    script = folder / f"g++-{os.getpid()}"
    script.write_text("#!/bin/sh\nexec " + " ".join(f"'{word}'" for word in command) + ' "$@"\n')
    script.chmod(0o755)
    with suppress(FileExistsError):  # the same file for all: keys hold its time
        os.link(script, folder / "g++")
    script.unlink()
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


def _compile(real: str, folder: Path, arguments: list[str]) -> int:
    """Run the compiler with these arguments, or copy what it has made of the same; return its exit status."""
    if "-o" not in arguments[:-1]:
        return subprocess.call([real, *arguments])
    output = arguments[arguments.index("-o") + 1]
    kept = folder / hashlib.sha256("\0".join(_without_places(arguments, output)).encode()).hexdigest()
    if not kept.exists():
        if not os.access(folder, os.W_OK):
            return subprocess.call([real, *arguments])
        with kept.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be making the same
            if not kept.exists():
                done = subprocess.run([real, *arguments], stderr=subprocess.PIPE, check=False)
                if done.returncode:
                    sys.stderr.buffer.write(done.stderr)
                    return done.returncode
                scratch = Path(tempfile.mkdtemp(dir=folder))
                shutil.copy(output, scratch / "output")
                (scratch / "warnings").write_bytes(done.stderr)
                scratch.rename(kept)
    shutil.copy(kept / "output", output)
    sys.stderr.buffer.write((kept / "warnings").read_bytes())
    return 0


def _without_places(arguments: list[str], output: str) -> Iterator[str]:
    """Yield what tells a command from others: what is in the files that it names, not where they are."""
    for argument in arguments:
        path = Path(argument)
        if argument == output:
            yield "output" + path.suffix
        elif path.is_file():
            yield path.suffix + hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            yield argument


if __name__ == "__main__":
    sys.exit(_compile(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
