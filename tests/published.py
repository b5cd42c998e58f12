"""Families in small on both sides: our configuration, that of `transformers`, and what models compute."""

from typing import Any

from parity import CONTEXT, EXAMPLES, VOCABULARY, padded, sample

from lm.config.components import resolve
from lm.config.reading import load_config, shipped_files
from lm.config.tree import Tree
from lm.inference.conversion import ModelOnly, settings_of, write_config
from lm.inference.families import FAMILIES
from lm.model.transformer import EncoderDecoder, Model


def shipped(name: str) -> Tree:
    """The resolved model of a family in small."""
    return resolve({"model": load_config(shipped_files("configuration")[EXAMPLES[name]])["model"]}, ModelOnly)["model"]


def context_of(name: str) -> int:
    """The context of a family in small."""
    return int(load_config(shipped_files("configuration")[EXAMPLES[name]])["data"]["init_args"]["context"])


def described(name: str, change: Tree) -> Any:
    """The configuration of `transformers` of a family in small, with a change."""
    context = CONTEXT if "context" in FAMILIES[name].fields.values() else context_of(name)
    config = write_config(name, settings_of(shipped(name), context), VOCABULARY)
    tokens = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    made = {key: value for key, value in {**config, **tokens, **change}.items() if key != "model_type"}
    if "rope_parameters" in change:
        made = {key: value for key, value in made.items() if key not in ("rope_theta", "rope_scaling")}
    import transformers

    return getattr(transformers, FAMILIES[name].model).config_class(**made)


def logits(model: Any) -> Any:
    """Logits of either side on the same tokens."""
    if isinstance(model, EncoderDecoder):
        source, hidden, target = padded()
        return model(target, source, hidden)
    if isinstance(model, Model):
        return model(sample())
    if model.config.is_encoder_decoder:
        source, hidden, target = padded()
        return model(input_ids=source, attention_mask=(~hidden).long(), decoder_input_ids=target).logits
    return model(input_ids=sample()).logits
