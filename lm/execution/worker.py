"""What Lightning starts for the second and later processes of a multi-device cell: `worker.py WORK EXECUTION`."""

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    from lm.training.train import Execution, assist

    assist(Path(sys.argv[1]), Execution(**json.loads(sys.argv[2])))
