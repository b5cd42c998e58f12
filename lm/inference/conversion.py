"""Configurations and weights of published models, read and written by the table of lm/inference/families.py.

To write a model, its `config.json` is written and read again: what then differs from the model stands in the way.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lm.config.choices import find_class, slots
from lm.config.components import blame, plain_options, resolve
from lm.config.plain import shown
from lm.config.tree import InputError, Tree, is_component, nearest, override
from lm.inference.families import BY_WIDTH, FAMILIES, ROPE, Family
from lm.model.attention import scale_factor
from lm.model.mlp import MLP
from lm.model.transformer import Model

Settings = dict[str, Any]  # values of settings below `model` by dotted path
Difference = tuple[str, Any, Any]  # a setting, the model's value, the family's
WITHOUT_EFFECT = ("initializer", "prediction")  # parts that only training has
KEY_VALUE_HEADS: dict[str, Callable[[Any, int], int]] = {
    "MultiHead": lambda number, heads: heads,
    "GroupedQuery": lambda number, heads: max(1, heads // 2) if number is None else number,
    "MultiQuery": lambda number, heads: 1,
}
QKV = ("query", "key", "value")
OWN = "lm"  # `model_type` of models that are built from our configuration
# buffers of older files, which hold no weights
BUFFERS = re.compile(r"(\.(attn|attention)\.(masked_)?bias|\.inv_freq|position_ids)$")


@dataclass
class ModelOnly:
    """The root of a configuration that holds a model alone; the whole takes Lightning, and seconds."""

    model: Callable[[int, int], Model]


# settings ------------------------------------------------------------------------------------------------------------


def settings_of(model: Tree, context: int) -> Settings:
    """Return what decides the function of a resolved model; models that compute the same have the same settings."""
    root = slots(ModelOnly)["model"]
    options = dict(model["init_args"])
    layers = options.pop("layers", None)
    settings: Settings = dict(_flat({**model, "init_args": options}, root.base, root.supplied, ""))
    settings["layers"] = len(layers) if isinstance(layers, list) else layers
    parts = slots(find_class(model["class_path"], root.base, "model"), root.supplied)
    for index, layer in enumerate(layers) if isinstance(layers, list) else ():
        for name, node in layer.items():
            if node != options[name]:
                settings |= _flat(node, parts[name].base, parts[name].supplied, f"layers.{index}.{name}")
    if settings.get("cross") is None and "attention" in settings and model["class_path"] == "EncoderDecoder":
        own = {name: value for name, value in settings.items() if name.partition(".")[0] == "attention"}
        settings |= {name.replace("attention", "cross", 1): value for name, value in own.items()}
    width: Any = settings.get("width")
    for name in [name for name in settings if name.rpartition(".")[2] in ("attention", "cross")]:
        _normalise_attention(settings, name, width, settings["heads"])
    for name in [name for name in settings if name.rpartition(".")[2] == "mlp"]:
        cls = find_class(settings[name], parts["mlp"].base, "model.mlp")
        expansion = settings.pop(f"{name}.expansion", None)
        if issubclass(cls, MLP) and settings[f"{name}.hidden"] is None:
            hidden = round(expansion * width), settings[f"{name}.bias"]
            settings[f"{name}.hidden"] = cls.hidden_width(width, *hidden)
    if settings.get("position.original", 0) is None:
        settings["position.original"] = context
    if settings.get("block") == "StochasticDepth":
        settings["block"] = "PreNorm"
        settings.pop("block.rate")
    return settings | {"context": context}


def _flat(node: Any, base: type, supplied: int, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a node with all defaults, the name of its class first."""
    name, options = (node["class_path"], node["init_args"]) if is_component(node) else (base.__name__, node)
    cls = find_class(name, base, path or "model")
    yield path or "class_path", name
    parts = slots(cls, supplied)
    for key, value in {**dict.fromkeys(parts), **plain_options(cls, supplied), **options}.items():
        inner = f"{path}.{key}".lstrip(".")
        if key == "dropout" or key in WITHOUT_EFFECT:
            continue
        if key == "parametrization" and value == {"class_path": "Standard", "init_args": {}}:
            value = None
        if key in parts and value is not None:
            yield from _flat(value, parts[key].base, parts[key].supplied, inner)
        else:
            yield inner, value


def _normalise_attention(settings: Settings, name: str, width: int, heads: int) -> None:
    """Write equal options of attention in one way."""
    if settings[name] not in KEY_VALUE_HEADS:
        return
    key = f"{name}.key_value_heads"
    settings[key] = KEY_VALUE_HEADS[settings[name]](settings.get(key), heads)
    settings[name] = "GroupedQuery"
    size = settings[f"{name}.head_size"] = settings[f"{name}.head_size"] or width // heads
    settings[f"{name}.scale"] = scale_factor(settings[f"{name}.scale"], size)
    if settings[f"{name}.output_bias"] is None:
        settings[f"{name}.output_bias"] = settings[f"{name}.bias"]


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, bool) or isinstance(b, bool) or not (isinstance(a, int | float) and isinstance(b, int | float)):
        return type(a) is type(b) and bool(a == b)
    return math.isclose(a, b, rel_tol=1e-12)


# configurations ------------------------------------------------------------------------------------------------------


def read_config(config: Tree, where: str = "config.json", partial: bool = False) -> tuple[Tree, int]:
    """Return the resolved model that a `config.json`, `partial` if fields may lack, describes, and its context.

    Raises InputError.
    """
    name = config.get("model_type")
    with blame(where):
        if name == OWN:
            return resolve({"model": config["model"]}, ModelOnly)["model"], int(config["context"])
        return _read_config(name, config, where, partial)


def _read_config(name: Any, config: Tree, where: str, partial: bool) -> tuple[Tree, int]:
    if name not in FAMILIES:
        choices = f"{nearest(name, list(FAMILIES))} Choose from {', '.join(FAMILIES)}"
        raise InputError(f"{where}: model_type: no family {shown(name)}.{choices}")
    family = FAMILIES[name]
    values = {**family.absent, **config}
    values |= {own: config[old] for old, own in family.other_names.items() if old in config and own not in config}
    for key, expected in family.fixed.items():
        if (value := values.get(key, expected)) != expected:
            raise InputError(f"{where}: {key}: found {shown(value)}, expected {shown(expected)} in a {name} model")
    settings = {**family.parts}
    read: dict[str, str] = {}
    for key, target in family.fields.items():
        if key not in values and partial:
            continue
        if key not in values:
            raise InputError(f"{where}: {key}: is missing, and no {name} model is known without it")
        for setting, value in _read_field(key, target, values[key], where).items():
            if value is None and setting in ("layers", "width"):  # as many as elsewhere
                continue
            if setting in read and not _equal(settings[setting], value):
                both = f"{read[setting]} is {shown(settings[setting])} and {key} {shown(value)}"
                raise InputError(f"{where}: {both}; expected the same for both")
            settings[setting], read[setting] = value, key
    settings = {key: settings["width"] ** -0.5 if value == BY_WIDTH else value for key, value in settings.items()}
    if settings.get("attention.key_value_heads", 0) is None:
        settings["attention.key_value_heads"] = settings["heads"]
    if family.rope:
        settings |= _read_rope(name, family, values, where)
    if family.windows:
        settings |= _read_windows(family, values, settings)
    context = settings.pop("context")
    base = {"class_path": settings.pop("class_path"), "init_args": {"initializer": "Normal", "embedding": {}}}
    order = sorted(settings.items(), key=lambda item: item[0].count("."))  # classes before their options
    tree = override({"model": base}, {f"model.{key}": value for key, value in order})
    return resolve(tree, ModelOnly)["model"], context


def _read_field(key: str, target: Any, value: Any, where: str) -> Settings:
    """Return our settings that a field says."""
    if isinstance(target, dict):
        if value not in target:
            listed = ", ".join(map(str, target))
            raise InputError(f"{where}: {key}: expected one of {listed}, found {shown(value)}")
        return target[value]
    if isinstance(target, list):
        return {target[0]: float(value) ** (1 / target[1])}
    return dict.fromkeys(target.split(), value)


def _read_rope(name: str, family: Family, values: Tree, where: str) -> Settings:
    rope = dict(values.get("rope_parameters") or values.get("rope_scaling") or {})
    kind = rope.pop("rope_type", rope.pop("type", "default"))
    rope.pop("type", None)
    if kind not in family.rope:
        listed = ", ".join(family.rope)
        raise InputError(f"{where}: rope_parameters.rope_type: expected one of {listed}, found {shown(kind)}")
    cls, options = ROPE[kind]
    theta = rope.pop("rope_theta", None)
    settings: Settings = {"position": cls, "position.base": theta or values.get("rope_theta", family.base)}
    share = rope.pop("partial_rotary_factor", values.get("partial_rotary_factor", family.share))
    if family.share is not None:
        settings["position.share"] = share
    rope = {key: value for key, value in rope.items() if value is not None}
    if kind == "yarn":  # which knows the context before it was stretched
        settings["context"] = rope.pop("original_max_position_embeddings", values["max_position_embeddings"])
    settings |= {f"position.{own}": rope.pop(key) for key, own in options.items() if key in rope}
    if rope or (family.share is None and share not in (None, 1.0)):
        key, value = next(iter(rope.items()), ("partial_rotary_factor", share))
        raise InputError(f"{where}: rope_parameters.{key}: found {shown(value)}, expected none in a {name} model")
    return settings


def _read_windows(family: Family, values: Tree, settings: Settings) -> Settings:
    """Return the window of each layer."""
    count, window = settings["layers"], values.get("sliding_window")
    window = None if window is None or window >= settings["context"] else window
    last = values.get("max_window_layers") if values.get("use_sliding_window") else count
    windowed = {
        "all": [True] * count,
        "alternate": [index % 2 == 0 for index in range(count)],
        "last": [index >= (count if last is None else last) for index in range(count)],
    }[family.windows]
    if (types := values.get("layer_types")) is not None and family.windows != "all":
        windowed = [kind == "sliding_attention" for kind in types]
    if window is None or all(windowed):
        return {"attention.window": window}
    return {"layers": [{"attention.window": window} if within else {} for within in windowed]} if any(windowed) else {}


def write_config(name: str, settings: Settings, vocabulary: int) -> Tree:
    """Return the `config.json` of a family for a model with these settings, as near as the family comes to it."""
    family = FAMILIES[name]
    config = {"model_type": name, "architectures": [family.model], "vocab_size": vocabulary}
    config |= {**family.fixed, **family.written}
    for key, target in family.fields.items():
        if isinstance(target, dict):
            config[key] = next((value for value, own in target.items() if _fits(own, settings)), next(iter(target)))
        elif isinstance(target, list):
            config[key] = round(settings[target[0]] ** target[1]) if settings.get(target[0]) else 1
        elif (setting := target.split()[0]) in settings:
            config[key] = settings[setting]
        elif key in family.absent:
            config[key] = family.absent[key]
    if family.rope:
        config |= _write_rope(family, settings)
    if family.windows:
        layers = range(settings["layers"])
        windows = [settings.get(f"layers.{n}.attention.window", settings.get("attention.window")) for n in layers]
        config["sliding_window"] = next(filter(None, windows), None)
        if family.windows != "all":
            config["layer_types"] = ["full_attention" if window is None else "sliding_attention" for window in windows]
        if family.windows == "last":
            config["use_sliding_window"] = config["sliding_window"] is not None
            config["max_window_layers"] = next((n for n in layers if windows[n] is not None), len(windows))
        elif config["sliding_window"] is None and family.windows == "alternate":
            config["sliding_window"] = settings["context"]
    return config


def _fits(expected: Tree, settings: Settings) -> bool:
    width = settings.get("width", 1)
    return all(
        _equal(settings.get(key), width**-0.5 if value == BY_WIDTH else value) for key, value in expected.items()
    )


def _write_rope(family: Family, settings: Settings) -> Tree:
    kinds = (kind for kind in family.rope if ROPE[kind][0] == settings.get("position"))
    kind = next(kinds, "default")
    rope: Tree = {"rope_type": kind, "rope_theta": float(settings.get("position.base", family.base))}
    rope |= {key: settings[f"position.{own}"] for key, own in ROPE[kind][1].items()}
    config: Tree = {"rope_theta": rope["rope_theta"]}  # as releases before 5 of transformers read it
    if family.share is not None:
        config["partial_rotary_factor"] = rope["partial_rotary_factor"] = settings.get("position.share", family.share)
    if kind == "yarn":
        rope["original_max_position_embeddings"] = settings["context"]
        config["max_position_embeddings"] = round(settings["context"] * rope["factor"])
    if kind != "default":
        config["rope_scaling"] = rope
    return {**config, "rope_parameters": rope}


def differences(name: str, model: Tree, context: int) -> list[Difference]:
    """Return the settings of a resolved model that a family does not have, each with the family's value."""
    settings = settings_of(model, context)
    if settings["class_path"] != FAMILIES[name].parts["class_path"]:
        return [("class_path", settings["class_path"], FAMILIES[name].parts["class_path"])]
    expected = settings_of(*read_config(write_config(name, settings, 1), partial=True))
    keys = dict.fromkeys([*expected, *settings])
    wrong = [key for key in keys if not _equal(settings.get(key), expected.get(key))]
    return [
        (key, settings.get(key), expected.get(key))
        for key in wrong
        if not any(key.startswith(f"{other}.") for other in wrong)  # options of another class
    ]


# weights -------------------------------------------------------------------------------------------------------------


def our_name(name: str, family: Family) -> str | None:
    """Return our name of a tensor; None for one that the family does not have."""
    module, _, leaf = name.rpartition(".")
    number = re.search(r"\.(\d+)\.", module)
    if module in family.names:
        return f"{family.names[module]}.{leaf}"
    if number is None or (own := family.names.get(module.replace(number[0], ".#.", 1))) is None:
        return None
    return f"{own.replace('#', number[1])}.{leaf}"


def to_ours(state: Mapping[str, Tensor], family: Family, heads: int, head_size: int) -> dict[str, Tensor]:
    """Return tensors, of parameters or of their gradients, as our modules name and store them. Raises InputError."""
    tensors: dict[str, Tensor] = {}
    prefix = next(iter(family.names)).partition(".")[0]  # which files of a bare model lack
    for name, value in state.items():
        own = our_name(name, family) or our_name(f"{prefix}.{name}", family)
        if own is None:
            if BUFFERS.search(name) or (name in family.zeros and not value.any()):
                continue
            zero = ", expected zeros" if name in family.zeros else ": no such tensor in models of this family"
            raise InputError(f"{name}{zero}")
        module = own.rpartition(".")[0]
        if value.ndim == 2 and any(f".{transposed}." in f"{module}." for transposed in family.transposed):
            value = value.T
        if not module.endswith(".fused"):
            if own in tensors and not torch.equal(tensors[own], value):
                raise InputError(f"{name}: is not what another name of {own} holds; expected one tensor for both")
            tensors[own] = value
            continue
        if family.fused == "heads":  # (heads, 3, head size)
            value = value.unflatten(0, (heads, 3, head_size)).transpose(0, 1).flatten(0, 2)
        query = heads * head_size
        rest = (len(value) - query) // 2
        for part, piece in zip(QKV, value.split((query, rest, rest)), strict=True):
            tensors[own.replace("fused", part)] = piece
    return tensors


def to_theirs(state: Mapping[str, Tensor], family: Family, heads: int, head_size: int) -> dict[str, Tensor]:
    """Return our tensors as the family names and stores them, the inverse of `to_ours`."""
    names: dict[str, list[str]] = {}
    for theirs, own in family.names.items():
        names.setdefault(own, []).append(theirs)
    gated = any(name.endswith(".gate.weight") for name in state)  # whose other matrix T5 calls by another name
    tensors: dict[str, Tensor] = {}
    for name, value in state.items():
        module, _, leaf = name.rpartition(".")
        if family.fused and module.endswith(QKV):
            if not module.endswith(QKV[0]):
                continue
            stem = module.removesuffix(QKV[0])
            module, value = f"{stem}fused", torch.cat([state[f"{stem}{part}.{leaf}"] for part in QKV])
            if family.fused == "heads":
                value = value.unflatten(0, (3, heads, head_size)).transpose(0, 1).flatten(0, 2)
        if value.ndim == 2 and module.endswith(tuple(family.transposed)):
            value = value.T
        number = re.search(r"\.(\d+)\.", module)
        pattern = module if module in names or number is None else module.replace(number[0], ".#.", 1)
        chosen = names[pattern][-1 if gated and module.endswith("mlp.up") else 0]
        layer = "" if number is None else number[1]
        tensors[f"{chosen.replace('#', layer)}.{leaf}"] = value.contiguous()
    return tensors
