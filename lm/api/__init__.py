"""Public interface of `import lm`: results as tables and figures, runs, trained models, ablations.

Use these names as `lm.load` and so on. Invalid input raises `lm.InputError` with the one-line message of the command of
the same name. Reading results imports no torch. During a call, user components are imported from the current folder and
from beside the files that it reads; afterwards `sys.path` is restored.
"""

from lm.api.results import Ladder as Ladder
from lm.api.results import Results as Results
from lm.api.results import figure as figure
from lm.api.results import load as load
from lm.api.training import Run as Run
from lm.api.training import Trained as Trained
from lm.api.training import ablate as ablate
from lm.api.training import fit as fit
from lm.api.training import generate as generate
from lm.api.training import load_model as load_model
from lm.config.tree import InputError as InputError
