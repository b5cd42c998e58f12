"""Trials of Optuna, in its journal or its database of SQLite, read by Optuna itself."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

from lm.analysis.external.table import Row, Table, as_text
from lm.config.tree import InputError
from lm.stats.verdicts import Better

PREFIXES = ("params_", "user_attrs_", "values_")


def read_journal(path: Path) -> Table:
    """Read the trials in a journal.

    Raises:
        InputError: where Optuna cannot read it.
    """
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return _trials(path, lambda: JournalStorage(JournalFileBackend(str(path))))


def read_database(path: Path) -> Table:
    """Read the trials in a database of SQLite without writing to it.

    Raises:
        InputError: where Optuna cannot read it.
    """
    from optuna.storages import RDBStorage

    url = f"sqlite:///file:{quote(str(path.absolute()))}?mode=ro&uri=true"
    return _trials(path, lambda: RDBStorage(url, skip_table_creation=True))


def _trials(path: Path, open_storage: Any) -> Table:
    """Tabulate each trial of every study, with columns named as in `Study.trials_dataframe`."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        storage = open_storage()
        studies = [optuna.load_study(study_name=name, storage=storage) for name in optuna.get_all_study_names(storage)]
        rows, better = list[Row](), dict[str, Better]()
        for study in studies:
            names = _values(study)
            better |= {
                name: "higher" if direction == optuna.study.StudyDirection.MAXIMIZE else "lower"
                for name, direction in zip(names, study.directions, strict=True)
            }
            rows += [_row(study.study_name, trial, names) for trial in study.get_trials(deepcopy=False)]
    except Exception as error:  # SQLAlchemy's, and whatever a journal's lines lead Optuna to
        raise InputError(f"{path}: Optuna cannot read it: {' '.join(str(error).split())[:200]}") from None
    finally:
        optuna.logging.set_verbosity(verbosity)
    if not rows:
        raise InputError(f"{path}: holds no trial of Optuna's")
    return Table(path, "Optuna's trials", rows, PREFIXES, ("value", "values_", "user_attrs_"), better)


def _values(study: Any) -> list[str]:
    """Name the objectives of a study."""
    if study.metric_names:
        return [f"values_{name}" for name in study.metric_names]
    count = len(study.directions)
    return ["value"] if count == 1 else [f"values_{place}" for place in range(count)]


def _row(study: str, trial: Any, names: list[str]) -> Row:
    fields: dict[str, Any] = {"study": study, "number": trial.number, "state": trial.state.name}
    fields |= dict(zip(names, trial.values or (), strict=False))
    fields |= {f"params_{name}": value for name, value in trial.params.items()}
    fields |= {f"user_attrs_{name}": value for name, value in trial.user_attrs.items()}
    return {name: text for name, value in fields.items() if (text := as_text(value)) is not None}
