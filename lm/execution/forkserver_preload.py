"""What the fork server imports before it starts processes, which leave Ctrl-C to the command from the first moment, and
the end of its terminal too.

It imports nothing of a user's own: each process has that from its first cell on, and no other.
"""

import signal

signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # which waits from the start, so that none came before
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

from lm.data.cache import keep_compiled_code  # noqa: E402

keep_compiled_code()  # torch reads where when it is imported

import gc  # noqa: E402

gc.disable()  # nearly all of what follows stays
import jsonargparse  # noqa: E402, F401 - which the first configuration of every process would import
import torch.utils.serialization  # noqa: E402, F401 - and this the first checkpoint

import lm.execution.process  # noqa: E402, F401 - it takes seconds, in which the server is not to be interrupted either
from lm.config.imported import import_all  # noqa: E402

for package in ("lm.data", "lm.model"):  # which the first configuration of every process would import
    import_all(package)

from lm.training.provenance import source_hash  # noqa: E402

source_hash()  # once for all processes

gc.enable()
gc.collect()
gc.freeze()  # a process looks through its own objects after each cell, not through these
