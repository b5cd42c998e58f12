"""The Hugging Face hub: asked once whether it answers, where its own client would try for half a minute."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ANSWER_SECONDS = 4.0
"""In which the hub answers, or counts as out of reach."""


class HubError(Exception):
    """A dataset that cannot be loaded; the message is one line and says why."""


def load_dataset(path: str, name: str | None) -> Any:
    """Return the splits of a dataset, by name; from the copy on this machine where the hub does not answer.

    Args:
        path: the dataset, a loader that comes with `datasets`, or a folder.
        name: its configuration.

    Raises:
        HubError: where there is no such dataset, it cannot be read, or nothing answers and no copy is at hand.
    """
    import datasets
    from huggingface_hub import constants

    datasets.disable_progress_bars()
    asked = not (Path(path).exists() or datasets.config.HF_HUB_OFFLINE or constants.HF_HUB_OFFLINE)
    silent = asked and not answers(datasets.config.HF_ENDPOINT)
    try:
        with offline() if silent else contextlib.nullcontext():
            return datasets.load_dataset(path, name)
    except Exception as error:  # of the hub, of its client, and of every reader of a file format
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if silent:
            reason = f"{datasets.config.HF_ENDPOINT} does not answer, and without it: {reason}"
        raise HubError(reason) from None


def answers(address: str, seconds: float | None = None) -> bool:
    """Return whether the hub at an address answers at all; False after so many seconds, ANSWER_SECONDS by default."""
    heard = threading.Event()
    most = ANSWER_SECONDS if seconds is None else seconds

    def ask() -> None:
        from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

        with contextlib.suppress(Exception):  # of whatever client the library uses
            get_session().head(address, timeout=most)
            heard.set()
        over.set()

    over = threading.Event()
    threading.Thread(target=ask, daemon=True).start()  # looking up a name heeds no timeout
    over.wait(most)
    return heard.is_set()


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Keep the hub's client from asking it anything."""
    import datasets
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before
