"""YAML -> configuration tree -> canonical form -> run id.

A configuration is a tree of plain values. What it may hold is the business of `lm.components`; here trees are read,
changed, compared and hashed.
"""

import copy
import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

Tree = dict[str, Any]


class InputError(Exception):
    """What the user gave cannot be used; the message is one line: where, what was found, what is accepted."""


def nearest(word: object, choices: Sequence[str]) -> str:
    """` Did you mean X?` for the closest of `choices`, or an empty string."""
    lowered = {choice.lower(): choice for choice in reversed(choices)}
    close = difflib.get_close_matches(str(word).lower(), list(lowered), n=1, cutoff=0.5)
    return f" Did you mean {lowered[close[0]]}?" if close else ""


# reading -------------------------------------------------------------------------------------------------------------


class _UniqueKeys(yaml.SafeLoader):
    """The safe loader, refusing a key given twice: YAML itself would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} given twice", key_node.start_mark)
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep)


def load_yaml(path: Path) -> Tree:
    """The mapping in the YAML file at `path`. Raises InputError with file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        siblings = sorted(str(p) for p in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        raise InputError(f"{path}: cannot be read ({error.strerror}).{nearest(path, siblings)}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text; expected a YAML file") from None
    try:
        tree = yaml.load(text, Loader=_UniqueKeys)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not readable"
        raise InputError(f"{path}{line}: not valid YAML: {problem}") from None
    if not isinstance(tree, dict):
        raise InputError(f"{path}: expected a mapping of settings, found {type(tree).__name__}")
    return tree


def parse_value(text: str) -> Any:
    """The value of `text` read as YAML, as on the right of `--optim.lr`."""
    try:
        return yaml.load(text, Loader=_UniqueKeys)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError:
        return text


def join(path: str, name: str) -> str:
    """`path.name`, or `name` at the root."""
    return f"{path}.{name}" if path else name


# overriding ----------------------------------------------------------------------------------------------------------


def is_component(node: Any) -> bool:
    """Whether a raw node names its class."""
    return isinstance(node, Mapping) and "class_path" in node


def override(tree: Tree, changes: Mapping[str, Any]) -> Tree:
    """A copy of `tree` with dotted `changes` applied.

    A component node is replaced whole, so that no option of the class before it survives; `init_args` may be left out
    of a path. A mapping given for a section that is not a component is merged into it.
    """
    tree = copy.deepcopy(tree)
    for path, value in changes.items():
        _set(tree, path.split("."), copy.deepcopy(value))
    return tree


def _set(node: Tree, path: list[str], value: Any) -> None:
    if is_component(node) and path[0] not in ("class_path", "init_args"):
        node["init_args"] = node.get("init_args") or {}
        node = node["init_args"]
    key, rest = path[0], path[1:]
    current = node.get(key)
    if rest == ["class_path"]:
        node[key] = value
    elif rest:
        if isinstance(current, str):  # a component given by name alone, now with an option
            node[key] = {"class_path": current}
        elif not isinstance(current, dict):
            node[key] = {}
        _set(node[key], rest, value)
    elif isinstance(value, dict) and isinstance(current, dict) and not (is_component(value) or is_component(current)):
        for name, inner in value.items():
            _set(current, str(name).split("."), inner)
    else:
        node[key] = value


# identity ------------------------------------------------------------------------------------------------------------


def canonical(value: Any) -> str:
    """One text for one meaning: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def run_id(value: Any) -> str:
    """The SHA-256 of the canonical form, in hexadecimal."""
    return text_id(canonical(value))


def text_id(text: str) -> str:
    """The SHA-256 of a text that is canonical already."""
    return hashlib.sha256(text.encode()).hexdigest()


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted paths to plain values; a component appears as its class name, its options below it."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        path = join(prefix, key)
        if is_component(value):
            flat[path] = value["class_path"]
            flat.update(flatten(value.get("init_args", {}), path))
        elif isinstance(value, Mapping):
            flat.update(flatten(value, path))
        else:
            flat[path] = value
    return flat


def differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The dotted paths at which two resolved configurations differ, with both values, or None."""
    a, b = flatten(left), flatten(right)
    return {path: (a.get(path), b.get(path)) for path in sorted({*a, *b}) if a.get(path) != b.get(path)}
