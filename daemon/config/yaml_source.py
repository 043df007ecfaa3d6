"""Reads YAML strictly and remembers the line of every key.

It differs from PyYAML's safe loader in three ways, each of which has bitten operators elsewhere:
duplicate keys are an error; scalars follow YAML 1.2 (`off`, `no` and `0660` are text, not False
and 432); and keys are always text. A key with nothing after it counts as not written, so that a
section whose lines are all commented out is simply absent.
"""

import re
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from daemon.errors import ConfigError

KeyPath = tuple[str, ...]

_TAG: Final = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True)
class Source:
    """Configuration from one source: the values, and where each was written."""

    tree: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, str] = field(default_factory=dict)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the resolvers of YAML 1.2's core schema."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(_TAG + _tag, re.compile(f"(?:{_pattern})$"), _first)


def read_yaml(data: bytes, name: str) -> Source:
    """The mapping in a file. Raises ConfigError if the file holds anything else."""
    source = Source()
    try:
        loader = _Loader(data)
        node = loader.get_single_node()
        if node is None or _is_empty(node):
            return source
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{name}: the file must hold keys and values, as `spool: ...`")
        source.tree.update(_Reader(loader, name, source.origins).mapping(node, ()))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{name}{line}: not YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: not YAML: {' '.join(str(error).split())}") from error
    return source


def read_scalar(text: str) -> Any:
    """A value from the environment or the command line. Only brackets, braces and quotes have a
    meaning; a colon or a # is plain text, because the value stands alone."""
    loader = _Loader(text)
    node: yaml.Node | None
    try:
        if text.startswith(("[", "{", '"', "'")):
            node = loader.get_single_node()
        else:
            tag = loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
            node = yaml.ScalarNode(tag, text)
        return _Reader(loader, "value", {}).value(node, ()) if node else text
    except yaml.YAMLError as error:
        raise ValueError(f"{text!r} is not YAML") from error


class _Reader:
    """Walks the nodes of one document."""

    def __init__(self, loader: _Loader, name: str, origins: dict[KeyPath, str]) -> None:
        self._loader = loader
        self._name = name
        self._origins = origins
        self._open: list[yaml.Node] = []

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        if any(node is parent for parent in self._open):
            raise ConfigError(f"{self._where(node)}: an alias that contains itself")
        self._open.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self.mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [
                    self.value(child, (*path, str(index))) for index, child in enumerate(node.value)
                ]
            return self._loader.construct_object(node)
        finally:
            self._open.pop()

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        self._refuse_duplicates(node)
        self._loader.flatten_mapping(node)
        tree = {}
        for key, child in node.value:
            here = (*path, key.value)
            if not _is_empty(child):
                self._origins[here] = self._where(key)
                tree[key.value] = self.value(child, here)
        return tree

    def _refuse_duplicates(self, node: yaml.MappingNode) -> None:
        first: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                text = "a key must be plain text"
                if isinstance(key, yaml.MappingNode):
                    text = 'put templates into quotes, as "{{ payload.id }}"'
                raise ConfigError(f"{self._where(key)}: {text}")
            if key.value in first and key.tag != _TAG + "merge":
                line = first[key.value].start_mark.line + 1
                raise ConfigError(
                    f"{self._where(key)}: {key.value!r} is written twice, first in line {line}"
                )
            first[key.value] = key

    def _where(self, node: yaml.Node) -> str:
        return f"{self._name}:{node.start_mark.line + 1}"


def _is_empty(node: yaml.Node) -> bool:
    """Whether nothing is written there, not even `null`."""
    return isinstance(node, yaml.ScalarNode) and node.value == "" and node.style is None
