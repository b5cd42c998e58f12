"""Where an error comes from: the file and the line of what a user wrote."""

import sysconfig
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHOICES = ("data/", "model/", "training/objective.py", "training/optim.py", "training/schedule.py")
"""The parts of lm whose classes are choices, to which users add their own."""

INSTALLED = tuple({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")})
"""Where Python and the packages lie that are installed."""


def origin(error: BaseException) -> str:
    """` (my_parts.py:9)`: the innermost line of a user's code that an error passed, or an empty string.

    A component of lm itself counts where no code outside lm was passed and the error is no ValueError, by which it
    refuses its arguments in words of its own.
    """
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    inside = [(path, line) for path, line in frames if path.is_relative_to(ROOT)]
    users = [one for one in frames if one not in inside and _is_written(one[0])]
    if not users and not isinstance(error, ValueError):
        users = [(path, line) for path, line in inside if path.relative_to(ROOT).as_posix().startswith(CHOICES)]
    return f" ({_shown(users[-1][0])}:{users[-1][1]})" if users else ""


def _is_written(path: Path) -> bool:
    """Whether a file is code of nobody's library; what Python makes up has no file."""
    installed = any(path.is_relative_to(folder) for folder in INSTALLED)
    return path.is_file() and not installed and not {"site-packages", "dist-packages"} & set(path.parts)


def _shown(path: Path) -> str:
    """The path as seen from the current folder, or from that of the package."""
    for folder in (Path.cwd(), ROOT.parent):
        if path.is_relative_to(folder):
            return str(path.relative_to(folder))
    return str(path)
