"""Every component a user can choose, by kind, read from the constructors under a root."""

import inspect
from typing import Any

from lm.config.choices import choices, slots
from lm.config.components import REQUIRED, describe_option, plain_options

Catalogue = dict[str, list[dict[str, Any]]]


def catalogue(root: type) -> Catalogue:
    """For each component parameter found under `root`, its choices with their options and first line of doc.

    A kind is the dotted path at which the component stands, the same for all classes that have such a part.
    """
    found: Catalogue = {}
    _collect(root, 0, "", found)
    return found


def _collect(cls: type, supplied: int, path: str, found: Catalogue) -> None:
    for name, slot in slots(cls, supplied).items():
        kind = f"{path}.{name}" if path else name
        members = choices(slot.base)
        if kind in found:
            continue
        found[kind] = [
            {
                "name": choice,
                "doc": (inspect.getdoc(member) or "").split("\n")[0],
                "options": {
                    option: {
                        "accepts": describe_option(member, option),
                        **({} if default is REQUIRED else {"default": default}),
                    }
                    for option, default in plain_options(member, slot.supplied).items()
                },
            }
            for choice, member in members.items()
        ]
        for member in members.values():
            _collect(member, slot.supplied, kind, found)


def lines(found: Catalogue) -> list[str]:
    """The catalogue as text: kind, class, options with defaults, doc."""
    text = []
    for kind, members in found.items():
        text.append(kind)
        for member in members:
            options = ", ".join(
                f"{name}={option['default']}" if "default" in option else name
                for name, option in member["options"].items()
            )
            text.append(f"  {member['name']}({options})")
            text.append(f"      {member['doc']}")
        text.append("")
    return text[:-1]
