"""Layers that differ: a pattern or changes to single layers, as one form that all spellings of a model share.

`layers: 12` has equal layers. `layers: {repeat: 4, pattern: [{attention.window: 64}, {}, {}]}` repeats the changes of a
pattern, `{count: 12, pattern: [...]}` goes through it until there are 12 layers, and `layers.0.mlp` or `layers.-1.mlp`
changes one. A resolved configuration has a list with a node for each layer and each part in which layers differ.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lm.config.plain import shown
from lm.config.tree import OWN_PARTS, InputError, Tree, canonical, dotted_changes, join, nearest, override

MOST_LAYERS = 1000


def expand_layers(value: Any, settings: Tree, parts: Sequence[str], path: str) -> list[Tree]:
    """Return the changed parts of each layer, complete but unchecked; raise InputError for the first problem."""
    where = join(path, "layers")
    value = {"pattern": value} if isinstance(value, list) else {str(key): inner for key, inner in value.items()}
    pattern, repeat = value.pop("pattern", [{}]), value.pop("repeat", 1)
    if not isinstance(pattern, list) or not pattern or not all(isinstance(changes, Mapping) for changes in pattern):
        raise InputError(
            f"{where}.pattern: expected a list of changes, a mapping for each layer, found {shown(pattern)}"
        )
    count = value.pop("count", None)
    for name, number in (("repeat", repeat), ("count", count)):
        if number is not None and not (type(number) is int and 1 <= number <= MOST_LAYERS):
            raise InputError(f"{where}.{name}: expected a whole number from 1 to {MOST_LAYERS}, found {shown(number)}")
    count = repeat * len(pattern) if count is None else count
    if count > MOST_LAYERS:
        raise InputError(f"{where}: expected {MOST_LAYERS} layers at most, found {count}")
    changes = [dict(dotted_changes(pattern[index % len(pattern)])) for index in range(count)]
    for key, inner in value.items():
        index = int(key) if key.removeprefix("-").isdecimal() and len(key) < 6 else count
        if not -count <= index < count:
            expected = f"expected repeat, count, pattern or a layer from {-count} to {count - 1}"
            raise InputError(f"{where}.{key}: {expected}.{nearest(key, ['repeat', 'count', 'pattern'])}".rstrip("."))
        if not isinstance(inner, Mapping):
            raise InputError(f"{where}.{key}: expected a mapping of changes, found {shown(inner)}")
        later = dict(dotted_changes(inner))
        changes[index] = {**{name: new for name, new in changes[index].items() if name not in later}, **later}
    layers = []
    for index, change in enumerate(changes):
        for name in change:
            if (part := name.partition(".")[0]) not in parts:
                hint = f"{nearest(part, parts)} Choose from {', '.join(parts)}"
                raise InputError(f"{where}.{index}.{name}: a layer has no part {part!r}.{hint}")
        changed = {name.partition(".")[0] for name in change}
        complete = override({part: settings[part] for part in parts if part in settings}, change)
        layers.append({part: complete[part] for part in parts if part in changed})
    return layers


def merge_layers(resolved: Tree, layers: list[Tree], replaced: bool, path: str) -> Tree:
    """Return a resolved model with its resolved layers; `replaced` if all of them came as a list.

    A part that all layers have alike is the model's. Else each layer has a node, and the model's is that of most layers
    unless it uses the part itself. Raises InputError where a part of the model was changed that no layer uses.
    """
    merged, own = dict(resolved), dict[str, list[Any]]()
    for part in dict.fromkeys(part for layer in layers for part in layer):
        nodes: list[Any] = [layer.get(part, resolved[part]) for layer in layers]
        texts = [canonical(node) for node in nodes]
        if part not in OWN_PARTS:
            merged[part] = nodes[texts.index(max(texts, key=texts.count))]
            if replaced and all(part in layer for layer in layers) and merged[part] != resolved[part]:
                remedy = f"change {join(path, 'layers')}.0.{part}, or set {join(path, 'layers')} first"
                raise InputError(f"{join(path, part)}: no layer uses it, as each has a node of its own; {remedy}")
        if any(node != merged[part] for node in nodes):
            own[part] = nodes
    differ = [{part: nodes[index] for part, nodes in sorted(own.items())} for index in range(len(layers))]
    return {**merged, "layers": differ if own else len(layers)}
