"""`lm data verify`: the files of every text that was read, and the entries of the cache, against their checksums."""

import os
from collections.abc import Iterator
from pathlib import Path

from lm.config.tree import InputError
from lm.data.cache import SUMS, cache_folder, cache_io_errors, find_damage
from lm.data.public import digest
from lm.store.files import read_json


def verify() -> Iterator[tuple[Path, int, str | None]]:
    """Read all files again; yield each file and each entry with its bytes, and its damage or change, or None."""
    with cache_io_errors():
        for manifest in sorted(cache_folder().glob("texts/*.json")):
            try:
                hashes = read_json(manifest).get("hashes", {})
            except (InputError, AttributeError):
                yield manifest, 0, "is no manifest; delete it, and its text is read again"
                continue
            for name, expected in hashes.items():
                if not os.path.isfile(name):
                    yield Path(name), 0, "is gone since it was read"
                else:
                    problem = None if digest(Path(name)) == expected else "has changed since it was read"
                    yield Path(name), os.path.getsize(name), problem
        for folder in sorted(path.parent for path in cache_folder().glob(f"*/*/{SUMS}")):
            damage = find_damage(folder, {}, thorough=True)
            size = sum(path.stat().st_size for path in folder.iterdir())
            yield folder, size, None if damage is None else f"{damage}; the next run that needs it makes it again"
