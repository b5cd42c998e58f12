"""Script of the second and later processes of a multi-device cell: `nonzero_rank.py WORK EXECUTION PATH`.

PATH is where the first process looks for modules, a user's own among them.
"""

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path += [folder for folder in json.loads(sys.argv[3]) if folder not in sys.path]
    from lm.training.process import Execution
    from lm.training.train import run_nonzero_rank

    run_nonzero_rank(Path(sys.argv[1]), Execution(**json.loads(sys.argv[2])))
