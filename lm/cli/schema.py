"""JSON Schema (2020-12) of configurations, experiments and searches, for editors and other programs.

It is made of what the readers use themselves: the constructors for a configuration, the declared keys for the rest. It
refuses no file that the readers take; they alone know all that is wrong with one, such as a rate below zero.
"""

import inspect
import re
from typing import Any

from lm.ablation.files import ExperimentFile
from lm.config.choices import Slot, choices, is_section, slots
from lm.config.components import REQUIRED, hint_of, plain_options
from lm.config.keys import Schema, any_of, schema_of
from lm.config.tree import join
from lm.search.distributions import Choices, Distribution
from lm.search.spec import OPTIONS, PRUNERS, SAMPLERS, SweepFile, accepted_options
from lm.training.run import AUTO, UNSOUND, Run, Trainer

DIALECT = "https://json-schema.org/draft/2020-12/schema"
KINDS = ("experiment", "configuration", "sweep")
DOTTED = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$"
"""The path of a class of one's own."""

ANY: Schema = {"type": ["object", "null"]}
"""Arguments of a class that is not known here."""


def schema(kind: str) -> Schema:
    """The schema of one of KINDS."""
    if kind == "configuration":
        nodes = _changes()
        about = "What one cell trains: its data, model and optimiser; or a base, and what differs from it."
        based: Schema = {"type": "object", "properties": {"base": {"type": "string"}}, "required": ["base"]}
        full = _arguments(Run, 0, nodes)
        named: Schema = {"required": ["base"]}
        whole: Schema = {"description": about, "if": named, "then": based, "else": full}
    elif kind == "experiment":
        nodes = _changes()
        schema_of(ExperimentFile, nodes)
        either = [{"required": ["arms", "baseline"]}, {"required": ["design"]}]
        whole = {**nodes.pop(ExperimentFile.__name__), "oneOf": either}
    else:
        nodes = _changes()
        schema_of(SweepFile, nodes)
        whole = nodes.pop(SweepFile.__name__)
    return {"$schema": DIALECT, "title": f"lm: {kind}", **whole, "$defs": _used(whole, nodes)}


def _used(whole: Schema, nodes: dict[str, Schema]) -> dict[str, Schema]:
    """Those of `nodes` that something refers to, in the order of their names."""
    found: set[str] = set()
    queue: list[Any] = [whole]
    while queue:
        node = queue.pop()
        queue += node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
        name = str(node.get("$ref", "")).rpartition("/")[2] if isinstance(node, dict) else ""
        if name and name not in found:
            found.add(name)
            queue.append(nodes[name])
    return {name: nodes[name] for name in sorted(found)}


# components ----------------------------------------------------------------------------------------------------------


def _component(slot: Slot, nodes: dict[str, Schema]) -> Schema:
    """A component node: a name, or class_path and init_args; a section is its arguments alone."""
    base = slot.base
    if is_section(base):
        found = any_of([_reference(base, slot, nodes), _own(nodes), _spelt({"type": "string"}, ANY)])
    else:
        if base.__name__ not in nodes:
            nodes[base.__name__] = {"description": _summary(base), **_choice(slot, nodes)}
        found = {"$ref": f"#/$defs/{base.__name__}"}
    return any_of([found, {"type": "null"}]) if slot.optional else found


def _own(nodes: dict[str, Schema]) -> Schema:
    nodes["Own"] = {"description": "The dotted path of a class of your own.", "type": "string", "pattern": DOTTED}
    return {"$ref": "#/$defs/Own"}


def _choice(slot: Slot, nodes: dict[str, Schema]) -> Schema:
    """Any of the classes that may stand in a slot."""
    own, members = _own(nodes), choices(slot.base)
    named = [{"const": name, "description": _summary(member)} for name, member in members.items()]
    spelt = [_spelt({"const": name}, _reference(member, slot, nodes)) for name, member in members.items()]
    return {"anyOf": [*named, own, *spelt, _spelt(own, ANY)]}


def _spelt(name: Schema, arguments: Schema) -> Schema:
    return {
        "type": "object",
        "properties": {"class_path": name, "init_args": arguments},
        "required": ["class_path"],
        "additionalProperties": False,
    }


def _reference(cls: type, slot: Slot, nodes: dict[str, Schema]) -> Schema:
    """A reference to the arguments of a class, which are put among `nodes`."""
    name = cls.__name__ if cls is slot.base else f"{slot.base.__name__}.{cls.__name__}"
    if name not in nodes:
        nodes[name] = {}
        nodes[name] = {"description": _summary(cls), **_arguments(cls, slot.supplied, nodes)}
    return {"$ref": f"#/$defs/{name}"}


def _arguments(cls: type, supplied: int, nodes: dict[str, Schema]) -> Schema:
    """The options and parts of a class as a mapping."""
    components, plain, said = slots(cls, supplied), plain_options(cls, supplied), _said(cls)
    parameters = inspect.signature(cls).parameters
    properties = {name: _component(slot, nodes) for name, slot in components.items()}
    properties |= {name: _option(cls, name, default) for name, default in plain.items()}
    needed = [name for name in components if parameters[name].default is inspect.Parameter.empty]
    needed = [name for name in needed if not components[name].optional]
    needed += [name for name, default in plain.items() if default is REQUIRED]
    for name in properties.keys() & said.keys():
        properties[name] = {"description": said[name], **properties[name]}
    return {
        "type": "object" if needed else ["object", "null"],
        "properties": dict(sorted(properties.items())),
        "additionalProperties": False,
        **({"required": sorted(needed)} if needed else {}),
    }


def _option(cls: type, name: str, default: Any) -> Schema:
    if cls is Trainer and name in UNSOUND:
        return {"enum": [None, False], "description": f"Is left out: it {UNSOUND[name]}."}
    found = schema_of(hint_of(cls, name), {})
    if cls is Trainer and name in AUTO:
        found = any_of([found, {"const": "auto", "description": "Measured at the start of an experiment."}])
    if default is REQUIRED:
        return found
    return {**any_of([found, {"type": "null"}]), "default": list(default) if isinstance(default, tuple) else default}


# descriptions --------------------------------------------------------------------------------------------------------


def _summary(cls: type) -> str:
    """The first paragraph of what a class says of itself."""
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())


def _said(cls: type) -> dict[str, str]:
    """What the docstrings of a class and of those it is made from say of its parameters, a sentence each."""
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if owner is not object:
            for text in (owner.__doc__, owner.__init__.__doc__):  # type: ignore[misc]
                found |= _parameters(inspect.cleandoc(text or ""))
    return found


ENTRY = re.compile(r"^ {2,4}(\*{0,2}\w+(?:, \w+)*)(?: \(.*?\))?:(?: |\n)(.*(?:\n(?: {5,}.*)?)*)", re.MULTILINE)


def _parameters(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    _, _, arguments = text.partition("Args:\n")
    for names, said in ENTRY.findall(re.split(r"\n(?=\S)", arguments)[0]):
        sentence = " ".join(said.partition("\n\n")[0].split())
        sentence = re.split(r"(?<=[a-z)\d])\. (?=[A-Z])|\s*\(default:", sentence)[0].rstrip(".")
        sentence = re.sub(r":\w+:`|`+_?", "", sentence)  # words of reStructuredText
        sentence = sentence if sentence[1:2] == "_" else f"{sentence[:1].upper()}{sentence[1:]}"
        found |= {name: f"{sentence}." for name in names.split(", ") if sentence}
    return found


# changes -------------------------------------------------------------------------------------------------------------


def _changes() -> dict[str, Schema]:
    """What experiments and searches refer to: dotted changes, a space, samplers and pruners."""
    nodes: dict[str, Schema] = {}
    known: dict[str, list[Schema]] = {}
    tops: list[str] = []
    _paths(Run, 0, "", nodes, known, tops)
    inside = rf"^({'|'.join(re.escape(top) for top in tops)})(\.[A-Za-z_]\w*)+$"
    nodes["Changes"] = {
        "description": "Dotted paths of a configuration, and what to put there. A component replaces the whole node.",
        "type": ["object", "null"],
        "properties": {path: any_of(found) for path, found in sorted(known.items())},
        "patternProperties": {inside: {}},
        "additionalProperties": False,
    }
    nodes["Space"] = {
        "description": "Dotted paths of a configuration, and from what their values are drawn.",
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"anyOf": [{"enum": sorted(known.keys() - {"seed", "data_seed"})}, {"pattern": inside}]},
        "additionalProperties": schema_of(Distribution | Choices, nodes),
    }
    nodes["Sampler"] = {"default": "tpe", **_method(SAMPLERS)}
    nodes["Pruner"] = {"default": "none", **_method(PRUNERS)}
    return nodes


def _paths(
    cls: type, supplied: int, path: str, nodes: dict[str, Schema], known: dict[str, list[Schema]], tops: list[str]
) -> None:
    """Collects what may stand at each dotted path below `path`, and the components that lie in none (`tops`).

    Below a component only its own class knows what there is, and that may be a user's.
    """
    said = _said(cls)
    for name, default in plain_options(cls, supplied).items():
        option = {"description": said[name]} if name in said else {}
        known.setdefault(join(path, name), []).append({**option, **_without_default(_option(cls, name, default))})
    for name, slot in slots(cls, supplied).items():
        full = join(path, name)
        if is_section(slot.base):
            found = known.setdefault(full, [])
            if not found:
                found.append({"type": ["object", "null"], "description": said.get(name, _summary(slot.base))})
        else:
            known.setdefault(full, []).append(_component(slot, nodes))
            if not any(full.startswith(f"{top}.") for top in tops):
                tops.append(full)
        for member in choices(slot.base).values():
            _paths(member, slot.supplied, full, nodes, known, tops)


def _without_default(option: Schema) -> Schema:
    """Where a setting is changed, its default is no longer what stands there."""
    return {key: value for key, value in option.items() if key != "default"}


def _method(known: dict[str, tuple[str, ...]]) -> Schema:
    """A sampler or a pruner: its name, or a mapping of name and options."""
    forms = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, **{key: _bounds(key) for key in accepted_options(known, name)}},
            "required": ["name"],
            "additionalProperties": False,
        }
        for name in known
    ]
    return {"anyOf": [{"enum": list(known)}, *forms]}


def _bounds(option: str) -> Schema:
    domain = OPTIONS[option]
    if isinstance(domain[0], str | bool):
        return {"enum": list(domain)}
    return {"type": "integer" if isinstance(domain[0], int) else "number", "minimum": domain[0], "maximum": domain[1]}
