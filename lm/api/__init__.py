"""Public interface of `import lm`: results as tables and figures, runs, trained models, ablations.

Use these names as `lm.load` and so on. Invalid input raises `lm.InputError` with the one-line message of the command of
the same name. Reading results imports no torch. During a call, user components are imported from the current folder and
from beside the files that it reads; afterwards `sys.path` is restored.
"""

from lm.api.results import Ladder as Ladder
from lm.api.results import Results as Results
from lm.api.results import figure as figure
from lm.api.results import load as load
from lm.api.runs import Run as Run
from lm.api.runs import Trained as Trained
from lm.api.runs import ablate as ablate
from lm.api.runs import fit as fit
from lm.api.runs import load_model as load_model
from lm.config.tree import InputError as InputError
