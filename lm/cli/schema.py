"""JSON Schema (2020-12) of configurations, experiments and searches, for editors and other programs.

It is derived from the constructors of components and the declared keys of files. It accepts every file that the readers
accept; the readers find more errors, such as a learning rate below zero.
"""

import inspect
import re
from typing import Any

from lm.ablation.experiment import ExperimentFile
from lm.config.choices import Slot, choices, is_section, slots
from lm.config.components import REQUIRED, hint_of, plain_options
from lm.config.keys import Schema, any_of, schema_of
from lm.config.tree import join
from lm.search.space import ChoicesNode, Distribution
from lm.search.spec import OPTIONS, PRUNERS, SAMPLERS, SweepFile, accepted_options
from lm.training.identified import AUTO
from lm.training.run import UNSOUND, RunConfig, Trainer

DIALECT = "https://json-schema.org/draft/2020-12/schema"
KINDS = ("experiment", "configuration", "sweep")
DOTTED = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$"
"""Pattern of the dotted path of a user's class."""

ANY: Schema = {"type": ["object", "null"]}
"""Schema of the arguments of a user's class."""


def schema(kind: str) -> Schema:
    """Return the schema of one of KINDS."""
    nodes = _changes()
    if kind == "configuration":
        about = "What one cell trains: its data, model and optimiser; or a base, and what differs from it."
        based: Schema = {"type": "object", "properties": {"base": {"type": "string"}}, "required": ["base"]}
        full = _arguments(RunConfig, 0, nodes)
        whole: Schema = {"description": about, "if": {"required": ["base"]}, "then": based, "else": full}
    else:
        file = ExperimentFile if kind == "experiment" else SweepFile
        schema_of(file, nodes)
        whole = nodes.pop(file.__name__)
    if kind == "experiment":
        whole = {**whole, "oneOf": [{"required": ["arms", "baseline"]}, {"required": ["design"]}]}
    return {"$schema": DIALECT, "title": f"lm: {kind}", **whole, "$defs": _used(whole, nodes)}


def _used(whole: Schema, nodes: dict[str, Schema]) -> dict[str, Schema]:
    """Return the nodes that others refer to, sorted by name."""
    used: set[str] = set()
    queue: list[Any] = [whole]
    while queue:
        node = queue.pop()
        queue += node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
        name = str(node.get("$ref", "")).rpartition("/")[2] if isinstance(node, dict) else ""
        if name and name not in used:
            used.add(name)
            queue.append(nodes[name])
    return {name: nodes[name] for name in sorted(used)}


# components ----------------------------------------------------------------------------------------------------------


def _component(slot: Slot, nodes: dict[str, Schema]) -> Schema:
    """Return the schema of a component: a name, or class_path and init_args; a section has its arguments alone."""
    base = slot.base
    if is_section(base):
        node = any_of([_reference(base, slot, nodes), _own(nodes), _spelt({"type": "string"}, ANY)])
    else:
        if base.__name__ not in nodes:
            own, members = _own(nodes), choices(base)
            named = [{"const": name, "description": _summary(member)} for name, member in members.items()]
            spelt = [_spelt({"const": name}, _reference(member, slot, nodes)) for name, member in members.items()]
            any_class = [*named, own, *spelt, _spelt(own, ANY)]
            nodes[base.__name__] = {"description": _summary(base), "anyOf": any_class}
        node = {"$ref": f"#/$defs/{base.__name__}"}
    return any_of([node, {"type": "null"}]) if slot.optional else node


def _own(nodes: dict[str, Schema]) -> Schema:
    nodes["Own"] = {"description": "The dotted path of a class of your own.", "type": "string", "pattern": DOTTED}
    return {"$ref": "#/$defs/Own"}


def _spelt(name: Schema, arguments: Schema) -> Schema:
    return _exact({"class_path": name, "init_args": arguments}, "class_path")


def _exact(properties: dict[str, Schema], required: str) -> Schema:
    """Return the schema of a mapping with these keys, one of which it must have."""
    return {"type": "object", "properties": properties, "required": [required], "additionalProperties": False}


def _reference(cls: type, slot: Slot, nodes: dict[str, Schema]) -> Schema:
    """Return a reference to the arguments of a class, and add these to `nodes`."""
    name = cls.__name__ if cls is slot.base else f"{slot.base.__name__}.{cls.__name__}"
    if name not in nodes:
        nodes[name] = {}
        nodes[name] = {"description": _summary(cls), **_arguments(cls, slot.supplied, nodes)}
    return {"$ref": f"#/$defs/{name}"}


def _arguments(cls: type, supplied: int, nodes: dict[str, Schema]) -> Schema:
    """Return the schema of the arguments of a class: its options and components."""
    components, plain, texts = slots(cls, supplied), plain_options(cls, supplied), _descriptions(cls)
    parameters = inspect.signature(cls).parameters
    properties = {name: _component(slot, nodes) for name, slot in components.items()}
    properties |= {name: _option(cls, name, default) for name, default in plain.items()}
    needed = [name for name in components if parameters[name].default is inspect.Parameter.empty]
    needed = [name for name in needed if not components[name].optional]
    needed += [name for name, default in plain.items() if default is REQUIRED]
    for name in properties.keys() & texts.keys():
        properties[name] = {"description": texts[name], **properties[name]}
    return {
        "type": "object" if needed else ["object", "null"],
        "properties": dict(sorted(properties.items())),
        "additionalProperties": False,
        **({"required": sorted(needed)} if needed else {}),
    }


def _option(cls: type, name: str, default: Any) -> Schema:
    if cls is Trainer and name in UNSOUND:
        return {"enum": [None, False], "description": f"Is left out: it {UNSOUND[name]}."}
    node = schema_of(hint_of(cls, name), {})
    if cls is Trainer and name in AUTO:
        node = any_of([node, {"const": "auto", "description": "Measured at the start of an experiment."}])
    if default is REQUIRED:
        return node
    return {**any_of([node, {"type": "null"}]), "default": list(default) if isinstance(default, tuple) else default}


# descriptions --------------------------------------------------------------------------------------------------------


def _summary(cls: type) -> str:
    """Return the first paragraph of the docstring of a class."""
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())


def _descriptions(cls: type) -> dict[str, str]:
    """Return a sentence about each parameter, from the docstrings of a class and its bases."""
    texts: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if owner is not object:
            for text in (owner.__doc__, owner.__init__.__doc__):  # type: ignore[misc]
                texts |= _parameters(inspect.cleandoc(text or ""))
    return texts


ENTRY = re.compile(r"^ {2,4}(\*{0,2}\w+(?:, \w+)*)(?: \(.*?\))?:(?: |\n)(.*(?:\n(?: {5,}.*)?)*)", re.MULTILINE)


def _parameters(docstring: str) -> dict[str, str]:
    """Return a sentence about each parameter in the Args block of a docstring."""
    texts: dict[str, str] = {}
    _, _, arguments = docstring.partition("Args:\n")
    for names, description in ENTRY.findall(re.split(r"\n(?=\S)", arguments)[0]):
        sentence = " ".join(description.partition("\n\n")[0].split())
        sentence = re.split(r"(?<=[a-z)\d])\. (?=[A-Z])|\s*\(default:", sentence)[0].rstrip(".")
        sentence = re.sub(r":\w+:`|`+_?", "", sentence)  # markup of reStructuredText
        sentence = sentence if sentence[1:2] == "_" else f"{sentence[:1].upper()}{sentence[1:]}"
        texts |= {name: f"{sentence}." for name in names.split(", ") if sentence}
    return texts


# changes -------------------------------------------------------------------------------------------------------------


def _changes() -> dict[str, Schema]:
    """Return the nodes of experiments and searches: dotted changes, a space, samplers and pruners."""
    nodes: dict[str, Schema] = {}
    paths: dict[str, list[Schema]] = {}
    tops: list[str] = []
    _paths(RunConfig, 0, "", nodes, paths, tops)
    inside = rf"^({'|'.join(re.escape(top) for top in tops)})(\.([A-Za-z_]\w*|-?\d+))+$"
    nodes["Changes"] = {
        "description": "Dotted paths of a configuration, and what to put there. A component replaces the whole node.",
        "type": ["object", "null"],
        "properties": {path: any_of(options) for path, options in sorted(paths.items())},
        "patternProperties": {inside: {}},
        "additionalProperties": False,
    }
    nodes["Space"] = {
        "description": "Dotted paths of a configuration, and from what their values are drawn.",
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"anyOf": [{"enum": sorted(paths.keys() - {"seed", "data_seed"})}, {"pattern": inside}]},
        "additionalProperties": schema_of(Distribution | ChoicesNode, nodes),
    }
    nodes["Sampler"] = {"default": "tpe", **_method(SAMPLERS)}
    nodes["Pruner"] = {"default": "none", **_method(PRUNERS)}
    return nodes


def _paths(
    cls: type, supplied: int, path: str, nodes: dict[str, Schema], paths: dict[str, list[Schema]], tops: list[str]
) -> None:
    """Collect the schemas of each dotted path below `path` in `paths`, and components below no other in `tops`.

    Settings below a component depend on its class, which may be a user's.
    """
    texts = _descriptions(cls)
    for name, default in plain_options(cls, supplied).items():
        option = {"description": texts[name]} if name in texts else {}
        option |= {key: value for key, value in _option(cls, name, default).items() if key != "default"}
        paths.setdefault(join(path, name), []).append(option)
    for name, slot in slots(cls, supplied).items():
        full = join(path, name)
        if is_section(slot.base):
            options = paths.setdefault(full, [])
            if not options:
                options.append({"type": ["object", "null"], "description": texts.get(name, _summary(slot.base))})
        else:
            paths.setdefault(full, []).append(_component(slot, nodes))
            if not any(full.startswith(f"{top}.") for top in tops):
                tops.append(full)
        for member in choices(slot.base).values():
            _paths(member, slot.supplied, full, nodes, paths, tops)


def _method(methods: dict[str, tuple[str, ...]]) -> Schema:
    """Return the schema of a sampler or a pruner: its name, or a mapping of name and options."""
    forms = [
        _exact({"name": {"const": name}, **{key: _bounds(key) for key in accepted_options(methods, name)}}, "name")
        for name in methods
    ]
    return {"anyOf": [{"enum": list(methods)}, *forms]}


def _bounds(option: str) -> Schema:
    first, *others = OPTIONS[option]
    if isinstance(first, str | bool):
        return {"enum": [first, *others]}
    return {"type": "integer" if isinstance(first, int) else "number", "minimum": first, "maximum": others[0]}
