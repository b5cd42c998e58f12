"""Public datasets that experiments name: downloaded from pinned addresses, and verified by their checksums.

An address names a commit, or a file that its owner publishes a checksum of, so that it always means the same bytes.
"""

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from urllib.parse import urlsplit

from lm import __version__
from lm.config.tree import InputError, nearest, require_place, require_regular
from lm.store.files import write_atomic

SILENCE_SECONDS, DOWNLOAD_SECONDS = 30.0, 600.0  # seconds that a server may be silent, and that a file may take

BLOCK = 1 << 16


@dataclass(frozen=True)
class File:
    """A file as its owner publishes it; `also` are checksums of the same content laid out in another way."""

    name: str
    address: str
    size: int
    sha256: str
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dataset:
    """A dataset that is downloaded under one name."""

    about: str
    licence: str
    source: str
    files: tuple[File, ...]


def _from_github(about: str, licence: str, folder: str, **files: tuple[int, str]) -> Dataset:
    """Describe files in `folder`, which begins with owner, repository and commit."""
    start, source = f"https://raw.githubusercontent.com/{folder}", "/".join(folder.split("/")[:2])
    described = (File(name, f"{start}/{name}", size, sha256) for name, (size, sha256) in files.items())
    return Dataset(about, licence, f"https://github.com/{source}", tuple(described))


_GPT2 = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main"
_ENCODER = "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
_SAME_ENCODER = "ed9423b19f79b803ff269c4b52a27aa439be19ae11cd89b42108a6405cc3b2bd"
_MERGES = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"


DATASETS: Mapping[str, Dataset] = {
    "tinyshakespeare": _from_github(
        "40,000 lines of Shakespeare, the character-level benchmark of char-rnn and nanoGPT",
        "text in the public domain",
        "karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare",
        **{"input.txt": (1_115_394, "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed")},
    ),
    "warandpeace": _from_github(
        "War and Peace by Leo Tolstoy in the translation of Louise and Aylmer Maude (1922), from Project Gutenberg",
        "text in the public domain",
        "GITenberg/War-and-Peace_2600/fa22ab90f00f627e83d14acabe32d91602d2365d",
        **{"book.asciidoc": (3_203_304, "b9fc87adc1ff251ca6f9a1b451aaa97ad86249185e681232d575063e3cf1f785")},
    ),
    "wikitext2": _from_github(
        "the validation split of WikiText-2 (Merity et al. 2016), words with <unk>",
        "CC BY-SA 3.0",
        "pytorch/examples/77f55b912142e11fcfdf5b530231fb9c52f181e8/word_language_model/data/wikitext-2",
        **{"valid.txt": (1_121_681, "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8")},
    ),
    "multi30k": _from_github(
        "English and German captions, aligned (Elliott et al. 2016): 29,000 pairs, 1,014 and 1,000 held out",
        "research data of its authors, who name no licence",
        "multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw",
        **{
            "train.en.gz": (568_929, "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"),
            "train.de.gz": (637_044, "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"),
            "val.en.gz": (21_650, "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
            "val.de.gz": (24_681, "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"),
            "test_2016_flickr.en.gz": (21_077, "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9"),
            "test_2016_flickr.de.gz": (22_890, "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"),
        },
    ),
    "gpt2": Dataset(
        "the byte-level vocabulary of GPT-2, 50,257 tokens and 50,000 merges",
        "MIT",
        "https://github.com/openai/gpt-2",
        (
            File("encoder.json", f"{_GPT2}/encoder.json", 1_042_301, _ENCODER, (_SAME_ENCODER,)),
            File("vocab.bpe", f"{_GPT2}/vocab.bpe", 456_318, _MERGES),
        ),
    ),
}

_SCHEMES = ("https",)  # schemes of an address, also of one that a server redirects to


def download_hint(path: str) -> str:
    """Return the command that downloads a missing file of a dataset; empty for other files."""
    *_, folder, name = ("", "", *Path(path).parts)
    if folder in DATASETS and any(file.name == name for file in DATASETS[folder].files):
        return f" `lm data {folder} --to {quote(str(Path(path).parent.parent))}` fetches it"
    return ""


def download_to(name: str, into: Path, source: Path | None = None, unlike: bool = False) -> list[Path]:
    """Put the files of a dataset into `into/NAME`; returns those written, the others being present already.

    Nothing is written unless all files can be. They are copied from `source`, a folder that has them in itself or in
    one of the dataset's name, or downloaded; `unlike` takes files of other checksums from it. Raises InputError else.
    """
    if name not in DATASETS:
        raise InputError(f"no data {name!r}.{nearest(name, list(DATASETS))} Choose from {', '.join(DATASETS)}")
    files, folder = DATASETS[name].files, into / name
    require_place(folder, "--to", folder=True)
    copies: dict[str, Path] = {}
    if source is not None:
        for path in [place / file.name for place in (source, source / name) for file in files]:
            if path.is_file():
                copies[path.name] = path  # that in the folder of the dataset's name comes first
        if lacking := [file.name for file in files if file.name not in copies]:
            raise InputError(f"--from {source}: lacks {', '.join(lacking)}, there or in its folder {name}")
        for file in files:
            path = copies[file.name]
            if (checksum := digest(path)) not in (file.sha256, *file.also) and not unlike:
                expected = f"expected {file.sha256}; --any takes it all the same"
                raise InputError(f"{path}: is another file, with SHA-256 {checksum}, {expected}")
    missing = []
    for file in files:
        path = folder / file.name
        require_place(path, "--to")
        if not path.exists():
            missing.append(file)
            continue
        checksum = digest(path)
        if checksum not in (file.sha256, *file.also) and not (copies and checksum == digest(copies[file.name])):
            expected = f"expected {file.sha256}; choose another folder"
            raise InputError(f"{path}: is there, with SHA-256 {checksum}, {expected}")
    contents = [copies[file.name].read_bytes() if copies else download(file) for file in missing]
    for file, content in zip(missing, contents, strict=True):
        write_atomic(folder / file.name, content)
    return [folder / file.name for file in missing]


def digest(path: Path) -> str:
    """Compute the SHA-256 of a file. Raises InputError where it cannot be read."""
    try:
        require_regular(path)
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A handler of redirects that refuses addresses of other schemes."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        _require_scheme(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _require_scheme(address: str) -> None:
    if urlsplit(address).scheme not in _SCHEMES:
        raise InputError(f"{address}: expected an address that begins with {_SCHEMES[0]}://")


def _opener() -> urllib.request.OpenerDirector:
    """Build the opener of addresses of the allowed schemes; the environment may name a proxy."""
    opener, request = urllib.request.OpenerDirector(), urllib.request
    kinds = {"https": request.HTTPSHandler, "http": request.HTTPHandler}
    others = request.HTTPDefaultErrorHandler, request.HTTPErrorProcessor, request.UnknownHandler, _Redirects
    for handler in (request.ProxyHandler, *map(kinds.__getitem__, _SCHEMES), *others):
        opener.add_handler(handler())
    opener.addheaders = [("User-Agent", f"lm-ablations/{__version__}")]
    return opener


def download(file: File) -> bytes:
    """Download a file. Raises InputError where it cannot be had, or is another."""
    _require_scheme(file.address)
    offline = "without a network, take the files from a folder with --from DIR"
    try:
        with _opener().open(file.address, timeout=SILENCE_SECONDS) as answer:
            parts, length, end = [], 0, time.monotonic() + DOWNLOAD_SECONDS
            while part := answer.read(BLOCK):
                parts.append(part)
                length += len(part)
                if length > file.size:
                    expected = f"the {file.size:,} bytes expected; nothing is written"
                    raise InputError(f"{file.address}: sends more than {expected}")
                if time.monotonic() > end:
                    raise InputError(f"{file.address}: takes over {DOWNLOAD_SECONDS:z.0f} s; nothing is written")
    except urllib.error.HTTPError as error:
        raise InputError(f"{file.address}: the server answers {error.code} {error.reason}; {offline}") from None
    except (OSError, http.client.HTTPException) as error:  # URLError is one of the first
        reason = getattr(error, "reason", None) or error
        text = " ".join(str(reason).split()) or type(error).__name__
        raise InputError(f"{file.address}: cannot be fetched ({text}); {offline}") from None
    content = b"".join(parts)
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != file.sha256:
        expected = f"expected {file.size:,} with {file.sha256}; nothing is written"
        raise InputError(f"{file.address}: {len(content):,} bytes with SHA-256 {sha256}, {expected}")
    return content
