# SPDX-License-Identifier: Apache-2.0
"""Prepare docstrings for the reference pages. mkdocs.yml names this extension of griffe.

Docstrings of sfumato end with doctests and may open with labelled paragraphs ("Guarantee  ..."). Markdown
would render doctests as quotations and join the labelled paragraphs. Here they become an `Examples:` section
and a list.
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

    def on_package(self, *, pkg: griffe.Module, **kwargs: object) -> None:
        """Show the functions that submodules hide."""
        for room in list(pkg.members.values()):
            if isinstance(room, griffe.Module):
                uncover(room)
