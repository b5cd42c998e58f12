"""`lm export`: a finished run as a folder that `transformers` and programs like it read."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor

from lm.config.components import resolve
from lm.config.plain import shown
from lm.config.tree import InputError, Tree, nearest, require_place
from lm.data.tokenizer import END_OF_TEXT, special_ids
from lm.inference.conversion import OWN, Difference, ModelOnly, differences, settings_of, to_theirs, write_config
from lm.inference.families import FAMILIES
from lm.inference.finished import FinishedRun
from lm.inference.generate import load_tokenizer
from lm.inference.model_card import model_card
from lm.model.transformer import Model
from lm.store.files import to_json

AUTO = "auto"
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Exported:
    """A folder that was written, the `model_type` of its model, and why it is of no published family."""

    folder: Path
    family: str
    reason: str = ""


def export(run_folder: Path, to: Path, family: str = AUTO, dtype: str | None = None) -> Exported:
    """Write the model of a finished run, its tokenizer and a card to a new folder. Raises InputError.

    With `auto` the family is the first that has all the model's parts, else `lm`, which has any.
    """
    choices = [AUTO, *FAMILIES, OWN]
    if family not in choices:
        hint = f"{nearest(family, choices)} Choose from {', '.join(choices)}"
        raise InputError(f"--family: no family {shown(family)}.{hint}")
    if dtype is not None and dtype not in DTYPES:
        raise InputError(f"--dtype: found {shown(dtype)}, expected one of {', '.join(DTYPES)}")
    require_place(to, "--to", folder=True)
    if to.exists() and any(to.iterdir()):
        raise InputError(f"--to {to}: is not empty; expected a new folder")
    run = FinishedRun.at(run_folder)
    kind: Any = Model
    model: Any = run.model(kind, "a {} is no model")
    tree = resolve({"model": run.config["model"]}, ModelOnly)["model"]
    tokenizer = load_tokenizer(run)
    chosen, reason = choose_family(tree, sizes_of(model).context, family)
    state: dict[str, Tensor] = dict(model.state_dict())
    if dtype is not None:
        state = {name: value.to(DTYPES[dtype]) if value.is_floating_point() else value for name, value in state.items()}
    config, tensors = files_of(chosen, tree, model, state)
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".lm-", dir=to.parent) as temporary:
        folder = Path(temporary) / "model"
        write_files(folder, config, tensors, tokenizer, run.record["data"].get("end_of_text"))
        (folder / "README.md").write_text(model_card(run, config, to), encoding="utf-8")
        if to.exists():
            to.rmdir()
        os.replace(folder, to)
    return Exported(to, chosen, reason)


MOST_DIFFERENCES = 3  # named of a family that does not fit


def choose_family(model: Tree, context: int, family: str = AUTO) -> tuple[str, str]:
    """Return a family that has all parts of a resolved model, and why it is `lm` if it is. Raises InputError."""
    if family == OWN:
        return OWN, ""
    nearest_family: tuple[str, list[Difference]] = "", []
    for name in FAMILIES if family == AUTO else [family]:
        wrong = differences(name, model, context)
        if not wrong:
            return name, ""
        is_of_kind = wrong[0][0] != "class_path"
        if not nearest_family[0] or (is_of_kind and len(wrong) < len(nearest_family[1])):
            nearest_family = name, wrong
    name, wrong = nearest_family
    reason = "; ".join(
        f"model.{setting} is {shown(value)}, and {name} has {shown(expected)}"
        for setting, value, expected in wrong[:MOST_DIFFERENCES]
    )
    if family == AUTO:
        return OWN, reason
    raise InputError(f"--family {family}: {reason}; --family {OWN} has any")


def sizes_of(model: Any) -> Any:
    """Return what holds the context and the vocabulary of a model, also of a module of a user's own."""
    return getattr(model, "shape", model)


def files_of(family: str, tree: Tree, model: Any, state: dict[str, Tensor]) -> tuple[Tree, dict[str, Tensor]]:
    """Return `config.json` and the tensors of a model in a family; one that is shared is written once."""
    embedding = getattr(model, "embedding", None)
    tied = embedding is not None and embedding.head.weight is embedding.tokens.weight
    if tied:
        state = {name: value for name, value in state.items() if name != "embedding.head.weight"}
    if family != OWN:
        settings = settings_of(tree, model.shape.context)
        state = {name: value for name, value in state.items() if not name.startswith("prediction.")}
        heads, size = model.shape.heads, settings["attention.head_size"]
        tensors = to_theirs(state, FAMILIES[family], heads, size)
        example = next(iter(tensors.values()))
        zeros = {name: example.new_zeros(1, model.shape.vocabulary) for name in FAMILIES[family].zeros}
        return write_config(family, settings, model.shape.vocabulary), {**tensors, **zeros}
    pairs = tree["class_path"] == "EncoderDecoder"
    config = {
        "model_type": OWN,
        "architectures": ["LMForSeq2SeqLM" if pairs else "LMForCausalLM"],
        "model": tree,
        "context": sizes_of(model).context,
        "vocab_size": sizes_of(model).vocabulary,
        "tie_word_embeddings": tied,
    }
    config |= {"is_encoder_decoder": True} if pairs else {}
    return config, {f"model.{name}": value.contiguous() for name, value in state.items()}


def write_files(
    folder: Path, config: Tree, tensors: dict[str, Tensor], tokenizer: tokenizers.Tokenizer, end: int | None = None
) -> None:
    """Write a model and its tokenizer to a new folder; documents end with the token `end`, or END_OF_TEXT.

    Raises InputError without safetensors.
    """
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise InputError("lm export needs safetensors: pip install 'lm-ablations[hf]'") from None
    folder.mkdir()
    ids = token_ids(tokenizer, end)
    config |= {"dtype": str(next(iter(tensors.values())).dtype).removeprefix("torch."), **ids, "use_cache": True}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(tokenizer, folder, ids)
    for name, content in (("config", config), ("generation_config", ids)):
        (folder / f"{name}.json").write_text(to_json(content), encoding="utf-8")


def token_ids(tokenizer: tokenizers.Tokenizer, end: int | None) -> dict[str, int | None]:
    """Return the ids of special tokens by their names in `config.json`, null without one: its defaults are others."""
    if ids := special_ids(tokenizer):  # of pairs
        begin, text_end, padding = ids
        return {
            "bos_token_id": begin,
            "eos_token_id": text_end,
            "pad_token_id": padding,
            "decoder_start_token_id": begin,
            "forced_eos_token_id": None,
        }
    end = tokenizer.token_to_id(END_OF_TEXT) if end is None else end
    return {"bos_token_id": end, "eos_token_id": end, "pad_token_id": None}


def write_tokenizer(tokenizer: tokenizers.Tokenizer, folder: Path, ids: Mapping[str, int | None]) -> None:
    """Write a tokenizer for `PreTrainedTokenizerFast`; a special token's name in a text is text, as for ours."""
    names = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "pad_token": "pad_token_id"}
    tokens = {key: tokenizer.id_to_token(index) for key, name in names.items() if (index := ids[name]) is not None}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
        "model_input_names": ["input_ids", "attention_mask"],
        **tokens,
    }
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(to_json(settings), encoding="utf-8")
