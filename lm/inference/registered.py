"""Models of ours as classes of `transformers`, for what no published family expresses: `model_type` is `lm`.

`import lm` registers them, in whichever order it and `transformers` are imported.
"""

import sys
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.cache_utils import Cache as TheirCache
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast, Seq2SeqLMOutput

from lm.config.components import build, resolve
from lm.config.fingerprint import dotted_classes
from lm.config.tree import InputError, Tree
from lm.inference.conversion import OWN, ModelOnly
from lm.model.cache import Cache
from lm.model.generation import caches_for
from lm.model.transformer import Decoder, EncoderDecoder


class LMConfig(transformers.PretrainedConfig):
    """A model as our configurations have it: `model` is that node, resolved, and `context` that of the data."""

    model_type = OWN
    model: Tree | None = None
    context: int = 1
    vocab_size: int = 1
    tie_word_embeddings: bool = False

    @property
    def num_hidden_layers(self) -> int:
        """The number of layers, for caches."""
        layers = (self.model or {"init_args": {}})["init_args"].get("layers", 1)
        return len(layers) if isinstance(layers, list) else layers


def build_model(config: LMConfig) -> nn.Module:
    """Build the model of a configuration; a user's own classes have to be imported before. Raises InputError."""
    for name in dotted_classes(config.model):
        if (module := name.rpartition(".")[0]) not in sys.modules:
            raise InputError(f"config.json: model: has the class {name}; import {module} first, if you trust it")
    make: Any = build(resolve({"model": config.model}, ModelOnly), ModelOnly).model
    dtype = torch.get_default_dtype()  # that of the file, while one is read
    torch.set_default_dtype(torch.float32)  # in which training builds tables of positions, whatever its precision
    try:
        with torch.device("cpu"):  # those that are no buffers, no file would fill
            model: nn.Module = make(config.vocab_size, config.context)
    finally:
        torch.set_default_dtype(dtype)
    return model.to(dtype)


class LayerCache(Cache):
    """The part of a cache of `transformers` that a layer of ours appends to."""

    def __init__(self, cache: TheirCache, layer: int) -> None:
        self.cache, self.layer = cache, layer

    @property
    def length(self) -> int:  # type: ignore[override]
        """Tokens held."""
        return int(self.cache.get_seq_length(self.layer))

    def append(self, *new: Tensor) -> list[Tensor]:
        """Add the keys and values of new tokens and return those of all."""
        key_bgtk, value_bgtk = new
        return list(self.cache.update(key_bgtk, value_bgtk, self.layer))


class _Registered(transformers.PreTrainedModel, transformers.GenerationMixin):
    """A model of ours, and what `transformers` asks of its own."""

    config_class = LMConfig
    base_model_prefix = "model"
    _supports_sdpa = True  # decides nothing: our layers call their own attention
    _tied_weights_keys = {"model.embedding.head.weight": "model.embedding.tokens.weight"}

    def __init__(self, config: LMConfig) -> None:
        super().__init__(config)
        self.model: Any = build_model(config)
        self._constants = {
            part: {name: part.get_buffer(name).clone() for name in part._non_persistent_buffers_set}
            for part in self.model.modules()
        }
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Leave the weights that the constructors drew; loading a file empties buffers that no file holds."""
        for name, value in self._constants.get(module, {}).items():
            module.register_buffer(name, value.to(module.get_buffer(name)), persistent=False)

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding of tokens."""
        if (embedding := getattr(self.model, "embedding", None)) is None:
            raise NotImplementedError("this model is a module of a user's own")
        return cast(nn.Module, embedding.tokens)

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding of tokens."""
        self.model.embedding.tokens = value

    def get_output_embeddings(self) -> nn.Module | None:
        """Return the layer to logits; None in a module of a user's own."""
        return getattr(getattr(self.model, "embedding", None), "head", None)

    def generate(self, *arguments: Any, **options: Any) -> Any:
        """Generate tokens, without a cache where one token at a time differs from all at once."""
        options |= {} if can_cache(self.model) else {"use_cache": False}
        return transformers.GenerationMixin.generate(cast(Any, self), *arguments, **options)

    def _caches(self, cache: TheirCache | None, use_cache: bool | None) -> tuple[TheirCache | None, Any]:
        """Return the cache, a new one if there is none, and the parts of it that our layers append to."""
        cacheable = not self.training and can_cache(self.model)
        if cache is None and use_cache and cacheable:
            cache = DynamicCache(config=self.config)
        if cache is None or not cacheable:
            return None, None
        own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        if not isinstance(own, DynamicCache):
            raise ValueError(f"{type(own).__name__}: this model keeps a DynamicCache alone, the default")
        return cache, [LayerCache(own, layer) for layer in range(self.config.num_hidden_layers)]


def can_cache(model: nn.Module) -> bool:
    """Return True if one token at a time gives what all at once would."""
    if isinstance(model, EncoderDecoder):
        return all(bool(cast(Any, block).attention.cached) for block in model.decoder)
    return isinstance(model, Decoder) and caches_for(model) is not None


class LMForCausalLM(_Registered):
    """A decoder."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: TheirCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits of the next tokens, and the loss if `labels` are given.

        Padding on the right is after all that a causal model sees. Raises ValueError for padding on the left.
        """
        if attention_mask is not None and attention_mask.ndim == 2 and (attention_mask.diff(dim=1) > 0).any():
            raise ValueError("attention_mask: has padding on the left, which these positions cannot count; pad right")
        cache, caches = self._caches(past_key_values, use_cache)
        logits = self.model(input_ids) if caches is None else self.model(input_ids, caches)
        loss = None if labels is None else self.loss_function(logits, labels, self.config.vocab_size)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)


class _Encoder:
    """The encoder of a model, as `generate` calls it once."""

    main_input_name = "input_ids"

    def __init__(self, model: EncoderDecoder) -> None:
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **others: Any) -> BaseModelOutput:
        hidden = torch.zeros_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask == 0
        return BaseModelOutput(last_hidden_state=self.model.encode(input_ids, hidden))

    __call__ = forward


class LMForSeq2SeqLM(_Registered):
    """An encoder and a decoder."""

    def get_encoder(self, modality: str | None = None) -> Any:
        """Return the encoder."""
        return _Encoder(self.model)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: TheirCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        **others: Any,
    ) -> Seq2SeqLMOutput:
        """Return logits of the next target tokens, and the loss if `labels`, the targets, are given."""
        if labels is not None and decoder_input_ids is None:
            start = labels.new_full((len(labels), 1), self.config.decoder_start_token_id)
            shifted = torch.cat([start, labels[:, :-1]], dim=1)
            decoder_input_ids = shifted.masked_fill(shifted == -100, self.config.pad_token_id)
        encoded = encoder_outputs or self.get_encoder()(input_ids, attention_mask)
        memory = encoded[0]
        hidden = memory.new_zeros(memory.shape[:2], dtype=torch.bool) if attention_mask is None else attention_mask == 0
        cache, caches = self._caches(past_key_values, use_cache)
        logits = self.model.decode(decoder_input_ids, memory, hidden, caches)
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return Seq2SeqLMOutput(
            loss=loss, logits=logits, past_key_values=cast(Any, cache), encoder_last_hidden_state=memory
        )


AutoConfig.register(OWN, LMConfig)
AutoModelForCausalLM.register(LMConfig, LMForCausalLM)
AutoModelForSeq2SeqLM.register(LMConfig, LMForSeq2SeqLM)
