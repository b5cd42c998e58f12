"""What the fork server imports before it starts processes, which leave Ctrl-C to the command from the first moment."""

import signal

signal.signal(signal.SIGINT, signal.SIG_IGN)

import jsonargparse  # noqa: E402, F401 - which the first configuration of every process would import
import torch.utils.serialization  # noqa: E402, F401 - and this the first checkpoint

import lm.training.train  # noqa: E402, F401 - it takes seconds, in which the server is not to be interrupted either
