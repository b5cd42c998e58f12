"""JSON Schema (2020-12) of configurations, experiments and searches, for editors and other programs.

It is derived from the constructors of components and the declared keys of files. It accepts every file that the readers
accept; the readers find more errors, such as a learning rate below zero.
"""

import inspect
import re
from collections import defaultdict
from typing import Any

from lm.ablation.experiment import ExperimentFile
from lm.config.choices import Slot, choices, is_section, parameters, slots, type_hints
from lm.config.components import REQUIRED, plain_options
from lm.config.keys import Schema, any_of, schema_of
from lm.config.tree import join
from lm.search.space import ChoicesNode, Distribution
from lm.search.spec import PRUNERS, SAMPLERS, SweepFile, accepted_options
from lm.training.identified import AUTO
from lm.training.run import UNSOUND, RunConfig, Trainer

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ANY: Schema = {"type": ["object", "null"]}  # schema of the arguments of a user's class

OWN: Schema = {
    "description": "The dotted path of a class of your own.",
    "type": "string",
    "pattern": r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$",
}


def schema(kind: str) -> Schema:
    """Return the schema of a kind of file: experiment, configuration or sweep."""
    nodes = {"Own": OWN} if kind == "configuration" else _changes()
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
    return {"$schema": DIALECT, "title": f"lm: {kind}", **whole, "$defs": dict(sorted(nodes.items()))}


# components ----------------------------------------------------------------------------------------------------------


def _component(slot: Slot, nodes: dict[str, Schema]) -> Schema:
    """Return the schema of a component: a name, or class_path and init_args; a section has its arguments alone."""
    base, own = slot.base, {"$ref": "#/$defs/Own"}
    if is_section(base):
        node = any_of([_reference(base, slot, nodes), own, _spelt({"type": "string"}, ANY)])
    else:
        if base.__name__ not in nodes:
            members = choices(base)
            named = [{"const": name, "description": _summary(member)} for name, member in members.items()]
            spelt = [_spelt({"const": name}, _reference(member, slot, nodes)) for name, member in members.items()]
            nodes[base.__name__] = {"description": _summary(base), "anyOf": [*named, own, *spelt, _spelt(own, ANY)]}
        node = {"$ref": f"#/$defs/{base.__name__}"}
    return any_of([node, {"type": "null"}]) if slot.optional else node


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
    properties = {name: _component(slot, nodes) for name, slot in components.items()}
    properties |= {name: _option(cls, name, default) for name, default in plain.items()}
    for name in properties.keys() & texts.keys():
        properties[name] = {"description": texts[name], **properties[name]}
    own, empty = parameters(cls), inspect.Parameter.empty
    needed = [name for name, slot in components.items() if own[name].default is empty and not slot.optional]
    needed += [name for name, default in plain.items() if default is REQUIRED]
    return {
        "type": "object" if needed else ["object", "null"],
        "properties": dict(sorted(properties.items())),
        "additionalProperties": False,
        **({"required": sorted(needed)} if needed else {}),
    }


def _option(cls: type, name: str, default: Any) -> Schema:
    if cls is Trainer and name in UNSOUND:
        return {"enum": [None, False], "description": f"Is left out: it {UNSOUND[name]}."}
    node = schema_of(type_hints(cls).get(name), {})
    if cls is Trainer and name in AUTO:
        node = any_of([node, {"const": "auto", "description": "Measured at the start of an experiment."}])
    if default is REQUIRED:
        return node
    return {**any_of([node, {"type": "null"}]), "default": list(default) if isinstance(default, tuple) else default}


def _summary(cls: type) -> str:
    """Return the first paragraph of the docstring of a class."""
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())


ENTRY = re.compile(r"^ {2,4}(\*{0,2}\w+(?:, \w+)*)(?: \(.*?\))?:(?: |\n)(.*(?:\n(?: {5,}.*)?)*)", re.MULTILINE)


def _descriptions(cls: type) -> dict[str, str]:
    """Return a sentence about each parameter, from the Args blocks in docstrings of a class and its bases."""
    texts: dict[str, str] = {}
    owners: list[Any] = [part for owner in reversed(cls.__mro__[:-1]) for part in (owner, vars(owner).get("__init__"))]
    for owner in owners:
        block = re.split(r"\n(?=\S)", (inspect.cleandoc(owner.__doc__ or "")).partition("Args:\n")[2])[0]
        for names, description in ENTRY.findall(block):
            sentence = " ".join(description.partition("\n\n")[0].split())
            sentence = re.split(r"(?<=[a-z)\d])\. (?=[A-Z])|\s*\(default:", sentence)[0].rstrip(".")
            sentence = re.sub(r":\w+:`|`+_?", "", sentence)  # markup of reStructuredText
            sentence = sentence if sentence[1:2] == "_" else f"{sentence[:1].upper()}{sentence[1:]}"
            texts |= {name: f"{sentence}." for name in names.split(", ") if sentence}
    return texts


# changes -------------------------------------------------------------------------------------------------------------


def _changes() -> dict[str, Schema]:
    """Return the nodes of experiments and searches: dotted changes, a space, samplers and pruners."""
    nodes: dict[str, Schema] = {"Own": OWN}
    paths: defaultdict[str, list[Schema]] = defaultdict(list)
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
    for kind, methods, default in (("Sampler", SAMPLERS, "tpe"), ("Pruner", PRUNERS, "none")):
        forms = [
            _exact({"name": {"const": name}, **{option: {} for option in accepted_options(methods, name)}}, "name")
            for name in methods
        ]
        nodes[kind] = {"default": default, "anyOf": [{"enum": list(methods)}, *forms]}
    return nodes


def _paths(
    cls: type, supplied: int, path: str, nodes: dict[str, Schema], paths: dict[str, list[Schema]], tops: list[str]
) -> None:
    """Collect the schemas of dotted paths in `paths`, and the components that determine what is below in `tops`."""
    texts = _descriptions(cls)
    for name, default in plain_options(cls, supplied).items():
        option = {"description": texts[name]} if name in texts else {}
        option |= {key: value for key, value in _option(cls, name, default).items() if key != "default"}
        paths[join(path, name)].append(option)
    for name, slot in slots(cls, supplied).items():
        full = join(path, name)
        if is_section(slot.base):
            about = texts.get(name, _summary(slot.base))
            paths[full] = paths[full] or [{"type": ["object", "null"], "description": about}]
        else:
            paths[full].append(_component(slot, nodes))
            if not any(full.startswith(f"{top}.") for top in tops):
                tops.append(full)
        for member in choices(slot.base).values():
            _paths(member, slot.supplied, full, nodes, paths, tops)
