"""What Lightning starts for the second and later processes of a multi-device cell: `worker.py WORK EXECUTION`."""

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    from lm.trainer import Execution, train

    train(Path(sys.argv[1]), lambda step, steps, loss: None, Execution(**json.loads(sys.argv[2])))
