"""Public interface of `import lm`: results as tables and figures, runs, trained models, ablations.

All names are at hand as `lm.load` and so on. What cannot be used raises `lm.InputError`, whose message is the one line
that the command of the same name would print. Reading results imports no torch. While a call lasts, a user's own
components are found in the current folder and beside the files that it reads; then `sys.path` is what it was.
"""

from lm.api.ablations import ablate as ablate
from lm.api.figures import figure as figure
from lm.api.results import Ladder as Ladder
from lm.api.results import Results as Results
from lm.api.results import load as load
from lm.api.runs import Run as Run
from lm.api.runs import Trained as Trained
from lm.api.runs import fit as fit
from lm.api.runs import load_model as load_model
from lm.config.tree import InputError as InputError
