"""Hashes of this package's source code, and which of them are known to compute the same.

A hash is of syntax trees: comments, docstrings, layout and the names of local variables do not count. Parameters,
attributes, imported names and everything at the level of a module or a class do.
"""

import ast
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

EQUIVALENT: tuple[frozenset[str], ...] = (
    frozenset(
        {
            "55166fc78aa0eb7a3d9afe4460cc673a4fe394159f28e2b7b4520d4c7654388d",  # of bytes, the last of its kind
            "3e0c4c8e8d123fbb34c4dc4bbd2691ae65fa93a0def581e8bf79930b68245a1a",
            "1db5113ee7e816c7d90c1ee66bca1e2946a5a186ebe957b33c44f0b8aec95803",  # plain names, files merged
        }
    ),
)
"""Sets of source hashes that compute the same numbers.

Only a commit that shows the pinned cells bit-equal before and after (`make golden`) may extend it.
"""

READS_NAMES = frozenset({"locals", "eval", "exec", "vars", "dir", "currentframe", "_getframe"})
"""Names whose use in a function may read its local variables by name."""

SKIPPED_FIELDS = frozenset({"ctx", "kind", "type_comment"})
"""Fields of syntax trees that change nothing."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def canonical(source: object) -> str:
    """Return one label for all sources that are known to compute the same as a source hash."""
    label = str(source)
    return next((min(hashes) for hashes in EQUIVALENT if label in hashes), label)


def read_sources(folder: Path, packages: tuple[str, ...]) -> dict[str, bytes]:
    """Read the Python files of some packages below a folder, by their paths in it."""
    paths = sorted(path for package in packages for path in (folder / package).rglob("*.py"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def hash_sources(files: Mapping[str, bytes]) -> str:
    """Hash the paths and syntax trees of Python files; the bytes of a file that is no Python."""
    digest = hashlib.sha256()
    for name, content in files.items():
        try:
            text = canonical_text(ast.parse(content)).encode()
        except (SyntaxError, ValueError):
            text = content
        digest.update(f"{name}\n{len(text)}\n".encode() + text)
    return digest.hexdigest()


def canonical_text(tree: ast.Module) -> str:
    """Write a module's syntax tree as text in which local variables have numbers for names.

    The text is the same for every version of Python that reads the same code alike.
    """
    return "".join(_Writer(tree).write(tree, None))


class _Scope:
    """The names that a function, a comprehension, a lambda or a class binds, with what stands for each.

    Args:
        names: what stands for each name; None for a variable that was not written yet.
        parent: the scope around it; None for the module.
        is_class: True for the body of a class, whose names the functions in it do not see.
    """

    def __init__(self, names: dict[str, str | None], parent: "_Scope | None", is_class: bool = False) -> None:
        self.names, self.is_class = names, is_class
        self.parent: _Scope | None = parent.parent if parent is not None and parent.is_class else parent


def _in_function(scope: _Scope | None) -> bool:
    return scope is not None and not scope.is_class


class _Writer:
    """Writes the syntax tree of one module."""

    def __init__(self, tree: ast.Module) -> None:
        self.count = 0
        self.nonlocals: set[str] = set()
        self.reads_names = False
        for node in ast.walk(tree):
            if isinstance(node, ast.Nonlocal):
                self.nonlocals.update(node.names)
            self.reads_names = self.reads_names or _reads_names(node)

    def write(self, node: Any, scope: _Scope | None) -> Iterator[str]:
        """Yield the text of a node, a list of nodes or a value."""
        if isinstance(node, ast.AnnAssign) and node.value and _in_function(scope):
            node = ast.Assign(targets=[node.target], value=node.value)  # Python does not read the annotation
        if isinstance(node, ast.AST):
            yield f"({type(node).__name__}"
            yield from self._fields(node, scope)
            yield ")"
        elif isinstance(node, list):
            yield "["
            for item in node:
                if not _is_text(item):
                    yield from self.write(item, scope)
                    yield ","
            yield "]"
        else:
            yield ascii(node)

    def _fields(self, node: ast.AST, scope: _Scope | None) -> Iterator[str]:
        if isinstance(node, ast.Name):
            yield f" {self._resolve(node.id, scope)}"
        elif isinstance(node, Function):
            yield f" name={self._resolve(node.name, scope)}"
            yield from self._function(node, scope)
        elif isinstance(node, ast.Lambda):
            yield from self._function(node, scope)
        elif isinstance(node, Comprehension):
            yield from self._comprehension(node, scope)
        elif isinstance(node, ast.ClassDef):
            yield from self._class(node, scope)
        else:
            for name, value in ast.iter_fields(node):
                if name in SKIPPED_FIELDS or value is None or value == []:
                    continue
                if name == "annotation" and isinstance(node, ast.AnnAssign) and _in_function(scope):
                    continue
                if isinstance(node, ast.JoinedStr):  # Python 3.12.1 adds empty texts
                    value = [part for part in value if not (isinstance(part, ast.Constant) and part.value == "")]
                yield f" {name}="
                if isinstance(value, str) and _binds_by_field(node, name):
                    yield self._resolve(value, scope)
                else:
                    yield from self.write(value, scope)

    def _resolve(self, name: str, scope: _Scope | None) -> str:
        """Return what stands for a name where it is used: its number, or the name itself."""
        while scope is not None:
            if name in scope.names:
                if (label := scope.names[name]) is None:
                    self.count += 1
                    label = scope.names[name] = f"#{self.count}"
                return label
            scope = scope.parent
        return name

    def _function(self, node: Function | ast.Lambda, scope: _Scope | None) -> Iterator[str]:
        inner = self._function_scope(node, scope)
        arguments = node.args
        for kind in ("posonlyargs", "args", "vararg", "kwonlyargs", "kwarg"):
            if not (value := getattr(arguments, kind)):
                continue
            yield f" {kind}=["
            for argument in value if isinstance(value, list) else [value]:
                yield self._resolve(argument.arg, inner)
                if argument.annotation is not None:
                    yield ":"
                    yield from self.write(argument.annotation, scope)
                yield ","
            yield "]"
        for name, outer in (("defaults", arguments.defaults), ("kw_defaults", arguments.kw_defaults)):
            if outer:
                yield f" {name}="
                yield from self.write(outer, scope)
        for name in ("decorator_list", "returns", "type_params"):
            if outer_value := getattr(node, name, None):
                yield f" {name}="
                yield from self.write(outer_value, scope)
        yield " body="
        yield from self.write(node.body, inner)

    def _function_scope(self, node: Function | ast.Lambda, scope: _Scope | None) -> _Scope:
        arguments = node.args
        is_lambda = isinstance(node, ast.Lambda)
        variables, fixed = _bound(node.body if isinstance(node.body, list) else [node.body])
        positional = [*arguments.posonlyargs, *arguments.args]
        others = [*arguments.kwonlyargs, *filter(None, (arguments.vararg, arguments.kwarg))]
        fixed |= {argument.arg for argument in others}
        if is_lambda:
            variables |= {argument.arg for argument in positional}
        else:
            fixed |= {argument.arg for argument in positional}
        return self._scope(node, variables, fixed, scope)

    def _scope(self, node: ast.AST, variables: set[str], fixed: set[str], scope: _Scope | None) -> _Scope:
        """Return the scope of a node, in which names stay that something may go by."""
        fixed = fixed | (variables & self.nonlocals)
        if self.reads_names and any(_reads_names(inner) for inner in ast.walk(node)):
            fixed |= variables
        return _Scope(dict.fromkeys(variables) | {name: name for name in fixed}, scope)

    def _comprehension(self, node: Comprehension, scope: _Scope | None) -> Iterator[str]:
        targets = [generator.target for generator in node.generators]
        inner = self._scope(node, _stored(targets), set(), scope)
        for number, generator in enumerate(node.generators):
            yield f" for={generator.is_async} "
            yield from self.write(generator.iter, inner if number else scope)
            yield from self.write(generator.target, inner)
            yield from self.write(generator.ifs, inner)
        for name in ("key", "value", "elt"):
            if hasattr(node, name):
                yield f" {name}="
                yield from self.write(getattr(node, name), inner)

    def _class(self, node: ast.ClassDef, scope: _Scope | None) -> Iterator[str]:
        yield f" name={node.name}"
        for name in ("bases", "keywords", "decorator_list", "type_params"):
            if value := getattr(node, name, None):
                yield f" {name}="
                yield from self.write(value, scope)
        variables, fixed = _bound(node.body)
        yield " body="
        yield from self.write(node.body, _Scope({name: name for name in variables | fixed}, scope, is_class=True))


def _is_text(node: object) -> bool:
    """Return True for a statement that is nothing but a string: a docstring, or a note on an attribute."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _stored(targets: list[ast.expr]) -> set[str]:
    nodes = (node for target in targets for node in ast.walk(target))
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _reads_names(node: ast.AST) -> bool:
    return (isinstance(node, ast.Name) and node.id in READS_NAMES) or (
        isinstance(node, ast.Attribute) and node.attr in READS_NAMES
    )


def _binds_by_field(node: ast.AST, field: str) -> bool:
    """Return True for a field that binds a name though it is no node of its own."""
    if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
        return field == "name"
    return isinstance(node, ast.MatchMapping) and field == "rest"


def _bound(body: list[Any]) -> tuple[set[str], set[str]]:
    """Return the names that a body binds itself: variables, and names that stay."""
    variables, fixed = set[str](), set[str]()
    stack: list[tuple[ast.AST, bool]] = [(node, False) for node in body]
    while stack:
        node, in_comprehension = stack.pop()
        inner = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load) and not in_comprehension:
                variables.add(node.id)
        elif isinstance(node, ast.NamedExpr):
            variables.add(node.target.id)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            fixed.update(node.names)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            fixed.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, Function):
            (fixed if node.decorator_list else variables).add(node.name)
            inner = [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
        elif isinstance(node, ast.ClassDef):
            fixed.add(node.name)
            inner = [*node.decorator_list, *node.bases, *node.keywords]
        elif isinstance(node, ast.Lambda):
            inner = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        elif isinstance(node, Comprehension):
            in_comprehension = True
        else:
            for field in ("name", "rest"):
                if _binds_by_field(node, field) and (name := getattr(node, field, None)):
                    variables.add(name)
        stack += [(child, in_comprehension) for child in inner]
    return variables, fixed
