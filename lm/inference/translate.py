"""`lm translate`: translate with a finished run, and measure BLEU.

Writes translation_<split>.txt, with a line for each sentence, and bleu_<split>.json beside the run's record.
"""

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm.config.tree import InputError, path_name
from lm.data.corpus import SPLITS
from lm.data.pairs import PairData, encode_lines, read_lines
from lm.inference.finished import FinishedRun
from lm.model.generation import Ends, beam_search
from lm.model.transformer import EncoderDecoder
from lm.store.files import to_json, write_atomic

SENTENCES_AT_ONCE = 64
REPORT_SECONDS = 10.0


def load(folder: Path) -> tuple[EncoderDecoder, PairData]:
    """Load the model, on the CPU, and the data of a finished encoder-decoder run. Raises InputError for another."""
    run = FinishedRun.at(folder)
    data = run.data()
    if not isinstance(data, PairData):
        raise InputError(f"{folder}: learnt from {type(data).__name__}; only a run on PairData can translate")
    data.facts = run.facts()
    data.setup("test")
    return run.model(EncoderDecoder, "the model is a {}; only an EncoderDecoder can translate"), data


def translate_lines(
    model: EncoderDecoder, data: PairData, lines: Sequence[str], beam: int = 4, alpha: float = 0.6
) -> list[str]:
    """Return the likeliest target of each line by beam search, with progress on stderr; long sources are truncated."""
    ids = encode_lines(data.tokens.tokenizer, lines)
    ends = Ends(data.tokens.begin, data.tokens.end, data.context)
    order = sorted(range(len(lines)), key=lambda index: len(ids[index]))
    translations = [""] * len(lines)
    last_report = time.monotonic()
    for start in range(0, len(order), SENTENCES_AT_ONCE):
        rows = order[start : start + SENTENCES_AT_ONCE]
        source = data.sources([ids[row] for row in rows])
        for row, hypotheses in zip(rows, beam_search(model, *source, ends, beam, alpha), strict=True):
            translations[row] = data.tokens.tokenizer.decode(hypotheses[0].tokens, skip_special_tokens=True).strip()
        if time.monotonic() - last_report > REPORT_SECONDS:
            last_report = time.monotonic()
            print(f"{start + len(rows)} of {len(lines)} sentences", file=sys.stderr)
    return [" ".join(text.split()) for text in translations]  # a line each


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Return corpus BLEU by sacrebleu, tokenised as 13a, with its signature (https://aclanthology.org/W18-6319)."""
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
    """The file of translations, and BLEU where there is a reference."""

    path: Path  # of the file with a line for each line of the source
    bleu: dict[str, Any] | None  # content of bleu_<split>.json

    @property
    def text(self) -> str:
        """A line to print."""
        if self.bleu is None:
            return str(self.path)
        search = f"beam {self.bleu['beam']}, alpha {self.bleu['alpha']}; {self.bleu['signature']}"
        return f"BLEU {self.bleu['bleu']:z.2f} on {self.bleu['split']} ({search}); {self.path}"


def translate(
    folder: Path, split: str = "test", beam: int = 4, alpha: float = 0.6, source: Path | None = None
) -> Translation:
    """Translate a split, or the lines of the file `source`, and write the results to `folder`. Raises InputError."""
    if beam < 1:
        raise InputError(f"--beam: expected 1 or more, found {beam}")
    if not math.isfinite(alpha):
        raise InputError(f"--alpha: expected a number, found {alpha}")
    model, data = load(folder)
    if source is None:
        lines, references = data.corpus.lines(split)
    else:
        lines, references = read_lines(str(source), "--input"), []
        split = path_name(f"{source.stem}.lines" if source.stem in SPLITS else source.stem, "--input")
        if not lines:
            raise InputError(f"--input {source}: it has no lines to translate")
    if not lines:
        raise InputError(f"{split}: no lines to translate; give --input, or a run with data.corpus.{split}_source")
    path = folder / f"translation_{split}.txt"
    hypotheses = translate_lines(model, data, lines, beam, alpha)
    write_atomic(path, "".join(f"{line}\n" for line in hypotheses))
    if not references:
        return Translation(path, None)
    score = {"split": split, **bleu(hypotheses, references), "beam": beam, "alpha": alpha}
    write_atomic(folder / f"bleu_{split}.json", to_json(score))
    return Translation(path, score)
