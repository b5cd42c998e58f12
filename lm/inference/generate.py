"""`lm generate`: a finished run goes on with a text, which is printed as it comes."""

import codecs
import contextlib
import sys
import time
from pathlib import Path
from typing import Literal

import tokenizers
import torch
from tokenizers import decoders, pre_tokenizers

from lm.config.components import blame
from lm.config.plain import shown
from lm.config.tree import InputError
from lm.data.cache import DamageError, cache_io_errors, stored_tokenizer
from lm.data.tokenizer import CONTINUED, END_OF_TEXT, UNKNOWN
from lm.data.tokens import tokens_folder
from lm.inference.finished import FinishedRun
from lm.model.cache import Cache, Int8Cache
from lm.model.generation import Choose, Sample, caches_for, generate, greedy
from lm.model.transformer import Decoder

TOKENS = 200
"""How many tokens are made where nothing is said."""

CACHES: dict[str, type[Cache] | None] = {"full": Cache, "int8": Int8Cache, "none": None}


def load_tokenizer(run: FinishedRun) -> tokenizers.Tokenizer:
    """The run's tokenizer from the cache, which is filled again from the run's text where it was emptied.

    Raises:
        InputError: where the text is no longer what the run was trained on.
    """
    text = run.record["data"]
    path = tokens_folder(text["fingerprint"], text["tokenizer"]) / "tokenizer.json"
    with cache_io_errors(), contextlib.suppress(DamageError):
        return stored_tokenizer(path, text["tokenizer"])
    data = run.data()
    data.prepare_data()
    if data.facts.identity() != {"fingerprint": text["fingerprint"], "tokenizer": text["tokenizer"]}:
        raise InputError(
            f"{run.folder}: its tokenizer is no longer in the cache ({path}), and cannot be made again: its text or "
            "what training a tokenizer on it gives is another now"
        )
    return stored_tokenizer(path, text["tokenizer"])


# text ----------------------------------------------------------------------------------------------------------------


def prompt_ids(tokenizer: tokenizers.Tokenizer, prompt: str) -> list[int]:
    """The tokens of a prompt, without an end of text. Raises InputError where it has none, or unknown ones."""
    if not prompt:
        raise InputError("--prompt: expected some text to go on from, found none")
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise InputError("--prompt: is not UTF-8 text") from None
    tokenizer.encode_special_tokens = True  # as the text they look like, as in training
    encoding = tokenizer.encode(prompt, add_special_tokens=False)
    unknown = tokenizer.token_to_id(UNKNOWN)
    spans = zip(encoding.ids, encoding.offsets, strict=True)
    strange = list(dict.fromkeys(prompt[start:end] for index, (start, end) in spans if index == unknown))
    if strange:
        listed = ", ".join(map(repr, strange[:10]))
        raise InputError(f"--prompt: the text this run learnt from had none of {listed}; its tokenizer knows no others")
    return list(encoding.ids)


def byte_of_character() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary spells (GPT-2's table).

    Printable bytes are spelt by the character of the same number, the others in turn by characters from 256 on.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = {character: ord(character) for character in alphabet if ord(character) < 256}
    others = [character for character in alphabet if character not in plain]
    return plain | dict(zip(others, sorted(set(range(256)) - set(plain.values())), strict=True))


class TextStream:
    """The text of tokens as they come: the bytes of an unfinished character wait for the rest of it.

    Bytes that are no UTF-8, and unknown tokens, appear as U+FFFD; special tokens as nothing.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        self.tokenizer = tokenizer
        self.silent = {index for index, token in added.items() if token.special and token.content != UNKNOWN}
        self.byte_level = not isinstance(tokenizer.decoder, decoders.Fuse)
        self.bytes = byte_of_character()
        self.text = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token: int) -> str:
        """The text that is certain now and was not before."""
        return self.text.decode(b"" if token in self.silent else self._spelt(token))

    def end(self) -> str:
        """What remains: U+FFFD for a character that was never finished."""
        return self.text.decode(b"", final=True)

    def _spelt(self, token: int) -> bytes:
        name = str(self.tokenizer.id_to_token(token))
        if name == UNKNOWN:
            return "\ufffd".encode()
        return bytes(self.bytes[c] for c in name.replace(CONTINUED, "")) if self.byte_level else name.encode()


# the command ---------------------------------------------------------------------------------------------------------


def chooser(plain: bool, temperature: float | None, top_k: int | None, top_p: float | None, seed: object = 0) -> Choose:
    """How tokens are chosen: the likeliest if `plain`, else at random. Raises InputError for what has no meaning."""
    given = {"--temperature": temperature, "--top-k": top_k, "--top-p": top_p}
    refused = [name for name, value in given.items() if value is not None]
    if plain and refused:
        raise InputError(f"--greedy takes the likeliest token; leave out {' and '.join(refused)}")
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise InputError(f"--seed: expected a whole number, 0 or more, found {shown(seed)}")
    if plain:
        return greedy
    generator = torch.Generator().manual_seed(seed)
    with blame("generate"):
        return Sample(
            generator,
            1.0 if temperature is None else temperature,
            top_k,
            1.0 if top_p is None else top_p,
        )


def steps_for(model: Decoder, prompt: int, asked: int | None) -> int:
    """How many tokens to make after a prompt of so many: as asked, else TOKENS or as many as there are positions for.

    The last token made is not read, so it needs no position.

    Raises:
        InputError: where the position encoding does not reach as far.
    """

    def reach(time: int) -> None:
        model.position.embed(next(model.parameters()).new_zeros(1, time, model.shape.width))

    if asked is not None and asked < 1:
        raise InputError(f"--tokens: expected 1 or more, found {asked}")
    with blame(f"--prompt of {prompt} tokens"):
        reach(prompt)
    with blame(f"--prompt of {prompt} tokens and --tokens {asked}"):
        if asked is not None:
            reach(prompt + asked - 1)
            return asked
    try:
        reach(prompt + TOKENS - 1)
    except ValueError:
        return model.shape.context + 1 - prompt
    return TOKENS


def write_text(
    folder: Path, prompt: str, tokens: int | None, choose: Choose, cache: Literal["full", "int8", "none"] = "full"
) -> None:
    """Prints the prompt and how the run in `folder` goes on with it, and to stderr how quickly it did.

    It ends after so many tokens, or at the end of a text where the tokenizer has a token for that. Attention that
    keeps no cache goes without.
    """
    run = FinishedRun.at(folder)
    model = run.model(Decoder, "a {} turns one text into another; use lm translate")
    tokenizer = load_tokenizer(run)
    ids = prompt_ids(tokenizer, prompt)
    steps = steps_for(model, len(ids), tokens)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)  # there is too little work in one row to share: on a busy machine that is 20 times slower
    tokens_bt = torch.tensor([ids], device=next(model.parameters()).device)
    kind = CACHES[cache]
    caches = None if kind is None else caches_for(model, kind)
    stream, made, start = TextStream(tokenizer), 0, time.perf_counter()
    _print(prompt)
    for token_b in generate(model, tokens_bt, steps, choose, caches, tokenizer.token_to_id(END_OF_TEXT)):
        made += 1
        _print(stream.add(int(token_b)))
    _print(stream.end() + "\n")
    seconds = time.perf_counter() - start
    held = "no cache" if caches is None else f"{cache} cache of {sum(c.bytes() for c in caches) / 1024:z.0f} KiB"
    print(f"{made} tokens in {seconds:z.2f} s: {made / seconds:z.0f} tokens per second, {held}", file=sys.stderr)


def _print(text: str) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), end="", flush=True)
