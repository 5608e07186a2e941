"""`python -m nbcache.torch_bridge DEVICE` compiles and stores the sample that prewarming restores."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import replace

from nbcache.core.settings import Settings
from nbcache.kernel.prewarming import Slice
from nbcache.kernel.session import Session
from nbcache.parts import make_bridge
from nbcache.storage.backends.directory import DirectoryStore

_NICENESS = 19
_FLUSH_SECONDS = 60.0
_END_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def _end_with(parent: int) -> None:
    """End this process after the kernel that started it, even if that kernel was killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


def _interrupt(number: int, frame: object) -> None:
    for signal_number in _END_SIGNALS:
        signal.signal(signal_number, signal.SIG_IGN)  # `main` still stores finished graphs
    raise SystemExit(1)


def main(device: str) -> None:
    """Compile the sample for `device`. SIGTERM and SIGHUP end it early; finished graphs stay stored."""
    for number in _END_SIGNALS:
        signal.signal(number, _interrupt)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    os.nice(_NICENESS)
    settings = replace(Settings.from_env(os.environ), trace="off")  # kernels trace the sample themselves
    bridge = make_bridge()
    session = Session(settings, bridge, DirectoryStore(settings.dir))
    session.start()
    try:
        for step in bridge.prewarm(compiling_for=device):
            if isinstance(step, Slice):
                step.run()
            else:
                time.sleep(0.01)
    finally:
        session.close(_FLUSH_SECONDS)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except SystemExit:
        os._exit(1)  # threads of torch may still wait for a compiler
