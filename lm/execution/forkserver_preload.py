"""Imports of the fork server before it starts processes, which ignore Ctrl-C and the end of the terminal.

No user module is imported here: each process imports those of its first cell, and no others.
"""

import signal

signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked since the start, so that none came earlier
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

from lm.data.cache import keep_compiled_code  # noqa: E402

keep_compiled_code()  # torch reads the folder when it is imported

import gc  # noqa: E402

gc.disable()  # nearly all that follows stays allocated
import jsonargparse  # noqa: E402, F401 - the first configuration of every process needs it
import torch.utils.serialization  # noqa: E402, F401 - the first checkpoint needs it

import lm.execution.local  # noqa: E402
import lm.training.train  # noqa: E402, F401 - takes seconds, in which the server must not be interrupted
from lm.config.imported import import_all  # noqa: E402

for package in ("lm.data", "lm.model"):  # the first configuration of every process needs them
    import_all(package)

from lm.training.provenance import source_hash  # noqa: E402

source_hash()  # once for all processes

gc.enable()
gc.collect()
gc.freeze()  # so that a collection after each cell skips these objects
