from lm.api import InputError as InputError
from lm.api import Ladder as Ladder
from lm.api import Results as Results
from lm.api import Run as Run
from lm.api import Trained as Trained
from lm.api import ablate as ablate
from lm.api import figure as figure
from lm.api import fit as fit
from lm.api import generate as generate
from lm.api import load as load
from lm.api import load_model as load_model

__all__: list[str]
__version__: str
