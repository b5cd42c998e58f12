"""Translating with a trained run, and BLEU of what comes out.

Left beside the run's record: translation_<split>.txt, a line a sentence, and bleu_<split>.json.
"""

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm.config.tree import InputError, path_name
from lm.data.pairs import PairData, check_pairs, encode_lines, pairs_folder, read_lines
from lm.data.tokens import TextStats, is_usable
from lm.inference.finished import FinishedRun
from lm.model.generation import Ends, beam_search
from lm.model.transformer import EncoderDecoder
from lm.store.files import to_json, write_atomic
from lm.store.record import Text

SENTENCES_AT_ONCE = 64
REPORT_SECONDS = 10.0


def load(folder: Path) -> tuple[EncoderDecoder, PairData]:
    """The model of a finished run, in its checkpoint's precision on the CPU, and its data.

    Raises:
        InputError: where the folder is none of a finished encoder-decoder run, or its text is no longer there.
    """
    run = FinishedRun.at(folder)
    data = run.data()
    if not isinstance(data, PairData):
        raise InputError(f"{folder}: learnt from {type(data).__name__}; only a run on PairData can translate")
    data.facts = _facts(run.record["data"], data)
    data.setup("test")
    return run.model(EncoderDecoder, "the model is a {}; only an EncoderDecoder can translate"), data


def _facts(recorded: Text, data: PairData) -> TextStats:
    """The run's own text: as it lies in the cache, or prepared again from the files, if that gives the same."""
    folder = pairs_folder(recorded["fingerprint"], recorded["tokenizer"])
    facts = TextStats(folder=str(folder), **recorded)
    if is_usable(folder, facts, check_pairs):
        return facts
    data.prepare_data()
    assert data.facts is not None
    identity = {"fingerprint": recorded["fingerprint"], "tokenizer": recorded["tokenizer"]}
    if data.facts.identity() != identity:
        raise InputError(
            f"data: text or tokenizer are no longer those of the run (recorded {identity}, found "
            f"{data.facts.identity()}); restore the files, or the cache folder {folder}"
        )
    return data.facts


def translated(
    model: EncoderDecoder, data: PairData, lines: Sequence[str], beam: int = 4, alpha: float = 0.6
) -> list[str]:
    """The likeliest target of each line by beam search; sources beyond the context are cut. Progress on stderr."""
    ids = encode_lines(data.tokens.tokenizer, lines)
    ends = Ends(data.tokens.begin, data.tokens.end, data.context)
    order = sorted(range(len(lines)), key=lambda index: len(ids[index]))
    found = [""] * len(lines)
    told = time.monotonic()
    for start in range(0, len(order), SENTENCES_AT_ONCE):
        rows = order[start : start + SENTENCES_AT_ONCE]
        source = data.sources([ids[row] for row in rows])
        for row, hypotheses in zip(rows, beam_search(model, *source, ends, beam, alpha), strict=True):
            found[row] = data.tokens.tokenizer.decode(hypotheses[0].tokens, skip_special_tokens=True).strip()
        if time.monotonic() - told > REPORT_SECONDS:
            told = time.monotonic()
            print(f"{start + len(rows)} of {len(lines)} sentences", file=sys.stderr)
    return [" ".join(text.split()) for text in found]  # a line each


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Corpus BLEU of plain text by sacrebleu, tokenised as 13a, with its signature.

    Post 2018, https://aclanthology.org/W18-6319
    """
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise InputError("BLEU needs sacrebleu: pip install 'lm-ablations[translation]'") from None
    metric = BLEU()
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return {
        "bleu": score.score,
        "precisions": list(score.precisions),
        "brevity_penalty": score.bp,
        "signature": str(metric.get_signature()),
        "sentences": len(hypotheses),
    }


@dataclass(frozen=True)
class Translation:
    """What `translate` leaves: the file of translations, and BLEU where there is a reference.

    Args:
        path: a line for each line of the source.
        bleu: what is in bleu_<split>.json.
    """

    path: Path
    bleu: dict[str, Any] | None

    @property
    def text(self) -> str:
        """A line to print."""
        if self.bleu is None:
            return str(self.path)
        found = self.bleu
        how = f"beam {found['beam']}, alpha {found['alpha']}"
        return f"BLEU {found['bleu']:z.2f} on {found['split']} ({how}; {found['signature']}); {self.path}"


def translate(
    folder: Path, split: str = "test", beam: int = 4, alpha: float = 0.6, source: Path | None = None
) -> Translation:
    """Translates a split, or the lines of the file `source`, with the run in `folder`, and leaves the results there.

    Raises:
        InputError: where there is nothing to translate, or nothing to translate with.
    """
    if beam < 1:
        raise InputError(f"--beam: expected 1 or more, found {beam}")
    if not math.isfinite(alpha):
        raise InputError(f"--alpha: expected a number, found {alpha}")
    model, data = load(folder)
    if source is None:
        lines, references = data.corpus.lines(split)
    else:
        lines, references, split = (
            read_lines(str(source), "--input"),
            [],
            path_name(source.name.split(".")[0], "--input"),
        )
    if not lines:
        raise InputError(f"{split}: no lines to translate; give --input, or a run with data.corpus.{split}_source")
    path = folder / f"translation_{split}.txt"
    hypotheses = translated(model, data, lines, beam, alpha)
    write_atomic(path, "".join(f"{line}\n" for line in hypotheses))
    if not references:
        return Translation(path, None)
    found = {"split": split, **bleu(hypotheses, references), "beam": beam, "alpha": alpha}
    write_atomic(folder / f"bleu_{split}.json", to_json(found))
    return Translation(path, found)
