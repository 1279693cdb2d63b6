# SPDX-License-Identifier: Apache-2.0
"""Prepare docstrings for the reference pages. mkdocs.yml names this extension of griffe.

Docstrings of sfumato end with doctests and may open with labelled paragraphs ("Guarantee  ..."). Markdown
would render doctests as quotations and join the labelled paragraphs. Here they become an `Examples:` section
and a list. The members of an enum, which have no docstrings of their own, follow its first paragraph.
"""

import re

import griffe

LABELS = ("Guarantee", "Neighbors", "Unit", "Edge cases", "Failure", "Source", "Not here")
_LABEL = re.compile(rf"({'|'.join(LABELS)}) +(?=\S)")


def with_examples(text: str) -> str:
    """Put the doctests at the end of a docstring under `Examples:`."""
    lines = text.split("\n")
    first = next((i for i, line in enumerate(lines) if line.startswith(">>> ")), None)
    if first is None:
        return text
    return "\n".join([*lines[:first], "Examples:", *(f"    {line}".rstrip() for line in lines[first:])])


def with_label_list(text: str) -> str:
    """Make labelled paragraphs a list: Markdown would join them to one paragraph."""
    lines: list[str] = []
    labelled = False
    for line in text.split("\n"):
        label = _LABEL.match(line)
        if label:
            if not labelled:
                lines.append("")
            labelled = True
            lines.append(f"- **{label[1]}**: {line[label.end() :]}")
        elif labelled and line.startswith("  "):
            lines.append(f"  {line.strip()}")
        else:
            labelled = labelled and not line
            lines.append(line)
    return "\n".join(lines)


def with_members(text: str, members: list[str]) -> str:
    """Name the members of an enum after the first paragraph of its docstring."""
    first, gap, rest = text.partition("\n\n")
    listed = "\n".join(f"- `{member}`" for member in members)
    return f"{first}\n\nMembers:\n\n{listed}{gap}{rest}"


def members_of(enum: griffe.Class) -> list[str]:
    """Return the members of an enum, each with its value; none of another class."""
    if not any(str(base).endswith("Enum") for base in enum.bases):
        return []
    return [
        f"{name} = {member.value}"
        for name, member in enum.members.items()
        if isinstance(member, griffe.Attribute) and member.value is not None and not name.startswith("_")
        if member.docstring is None  # else it has an entry of its own
    ]


def uncover(module: griffe.Module) -> None:
    """List the public functions that a submodule of the same name hides, such as `accounting.calibrate`."""
    for name in module.exports or ():
        member = module.members.get(str(name))
        if isinstance(member, griffe.Module) and name in member.members:
            # Under a key that no name can have: the submodule keeps its place, which imports refer to.
            module.members[f"{name}()"] = griffe.Alias(str(name), member.members[str(name)], parent=module)


class ReadableDocstrings(griffe.Extension):
    """Rewrite each docstring once, before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = with_examples(with_label_list(obj.docstring.value))

    def on_class(self, *, cls: griffe.Class, **kwargs: object) -> None:
        """Name the members of an enum, which are known when the class was read."""
        members = members_of(cls)
        if members and cls.docstring is not None:
            cls.docstring.value = with_members(cls.docstring.value, members)

    def on_package(self, *, pkg: griffe.Module, **kwargs: object) -> None:
        """Show the functions that submodules hide."""
        for room in list(pkg.members.values()):
            if isinstance(room, griffe.Module):
                uncover(room)
