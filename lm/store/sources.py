"""Hashes of this package's source code, and which of them are known to compute the same.

A hash is of syntax trees: comments, docstrings, layout and the names of local variables do not count. Parameters,
attributes, imported names and everything at the level of a module or a class do.
"""

import ast
import contextlib
import hashlib
import itertools
from collections import ChainMap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lm.config.fingerprint import syntax_text

EQUIVALENT: tuple[frozenset[str], ...] = (
    frozenset(
        {
            "55166fc78aa0eb7a3d9afe4460cc673a4fe394159f28e2b7b4520d4c7654388d",  # of bytes, the last of its kind
            "3e0c4c8e8d123fbb34c4dc4bbd2691ae65fa93a0def581e8bf79930b68245a1a",
            "1db5113ee7e816c7d90c1ee66bca1e2946a5a186ebe957b33c44f0b8aec95803",  # plain names, files merged
            "ec7290041201e2bb46bebd9bd390bbd4dac10c516fcfbed39bd5bce2fdda44ce",  # helpers with one caller inlined
            "eb7504d53afd29b0dd0ef5770ed9f68cb95c641ceef8cee02d6e918b89d2b6d7",  # blocks, attention, others
            "05778d6bc93426197a69cad89200b21c0098e1825675960ea6eb751e96493387",  # value residuals
        }
    ),
)
"""Sets of source hashes that compute the same numbers.

Only a commit that shows the pinned cells bit-equal before and after (`make golden`) may extend it.
"""

READS_NAMES = frozenset({"locals", "eval", "exec", "vars", "dir", "currentframe", "_getframe"})
"""Names whose use in a function may read its local variables by name."""

NAME_FIELDS = "name", "rest"
BINDS_BY_FIELD = ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping
"""Syntax that binds a name in one of these fields, without a node of its own."""

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
    """Write a module's syntax tree, which is changed, as text in which local variables have numbers for names.

    The text is the same for every version of Python that reads the same code alike.
    """
    return "".join(syntax_text(_Renamer(tree).visit(tree)))


class _Renamer(ast.NodeTransformer):
    """Gives numbers to local variables, and removes docstrings, notes and the annotations that Python does not read."""

    def __init__(self, tree: ast.Module) -> None:
        self.scope: ChainMap[str, str] = ChainMap()
        self.in_class = False
        self.numbers = itertools.count(1)
        nodes = list(ast.walk(tree))
        self.nonlocals = {name for node in nodes if isinstance(node, ast.Nonlocal) for name in node.names}
        self.reads_names = any(map(_reads_names, nodes))

    @contextlib.contextmanager
    def within(self, node: ast.AST, variables: dict[str, None], fixed: set[str], of_class: bool) -> Iterator[None]:
        """Add a scope in the block; names stay that are fixed, or that something may go by."""
        outer, in_class = self.scope, self.in_class
        fixed = fixed | (variables.keys() & self.nonlocals)
        if of_class or (self.reads_names and any(map(_reads_names, ast.walk(node)))):
            fixed |= variables.keys()
        names = {name: name if name in fixed else f"#{next(self.numbers)}" for name in (*variables, *fixed)}
        self.scope = (outer.parents if in_class else outer).new_child(names)  # functions do not see names of a class
        self.in_class = of_class
        yield
        self.scope, self.in_class = outer, in_class

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self.scope.get(node.id, node.id)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if self.in_class or len(self.scope.maps) == 1:
            return self.generic_visit(node)
        assigned = node.value and ast.Assign(targets=[node.target], value=node.value)
        return assigned and self.generic_visit(assigned)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        node.values = [part for part in node.values if getattr(part, "value", None) != ""]  # Python 3.12.1 adds those
        return self.generic_visit(node)

    def visit_ExceptHandler(self, node: Any) -> ast.AST:
        for field in NAME_FIELDS:
            if name := getattr(node, field, None):
                setattr(node, field, self.scope.get(name, name))
        return self.generic_visit(node)

    visit_MatchAs = visit_MatchStar = visit_MatchMapping = visit_ExceptHandler  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.visit_body(node, *_bound(node.body), [])
        return node

    def visit_FunctionDef(self, node: Any) -> ast.AST:
        variables, fixed = _bound(node.body if isinstance(node.body, list) else [node.body])
        positional = [*node.args.posonlyargs, *node.args.args]
        others = [*node.args.kwonlyargs, *filter(None, (node.args.vararg, node.args.kwarg))]
        fixed |= {argument.arg for argument in others}
        if isinstance(node, ast.Lambda):
            variables |= dict.fromkeys(argument.arg for argument in positional)
        else:
            node.name = self.scope.get(node.name, node.name)
            fixed |= {argument.arg for argument in positional}
        self.visit_body(node, variables, fixed, positional + others)
        return node

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef  # noqa: N815

    def visit_body(self, node: Any, variables: dict[str, None], fixed: set[str], arguments: list[ast.arg]) -> None:
        """Visit the parts around a body in the scope around it, then the body and the names of its arguments."""
        content, node.body = ast.Module(node.body, []), []
        self.generic_visit(node)
        with self.within(content, variables, fixed, isinstance(node, ast.ClassDef)):
            for argument in arguments:
                argument.arg = self.scope[argument.arg]
            node.body = self.generic_visit(content).body  # type: ignore[attr-defined]

    def visit_ListComp(self, node: Comprehension) -> ast.AST:
        first = node.generators[0]
        targets = (inner for generator in node.generators for inner in ast.walk(generator.target))
        names = [inner.id for inner in targets if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)]
        outer, first.iter = self.visit(first.iter), ast.Constant(None)
        with self.within(node, dict.fromkeys(names), set(), False):
            self.generic_visit(node)
        first.iter = outer
        return node

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp  # noqa: N815


def _reads_names(node: ast.AST) -> bool:
    return getattr(node, "id", getattr(node, "attr", None)) in READS_NAMES


def _bound(body: list[Any]) -> tuple[dict[str, None], set[str]]:
    """Return the names that a body binds itself: variables in order, and names that stay."""
    variables, fixed = dict[str, None](), set[str]()
    stack: list[tuple[Any, bool]] = [(node, False) for node in body]
    while stack:
        node, in_comprehension = stack.pop()
        inner = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load) and not in_comprehension:
                variables[node.id] = None
        elif isinstance(node, ast.NamedExpr):
            variables[node.target.id] = None
        elif isinstance(node, ast.Global | ast.Nonlocal):
            fixed.update(node.names)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            fixed.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, Function | ast.Lambda):
            if isinstance(node, Function):
                variables |= {} if node.decorator_list else {node.name: None}
                fixed.update([node.name] if node.decorator_list else [])
            decorators = getattr(node, "decorator_list", [])
            inner = [*decorators, *node.args.defaults, *filter(None, node.args.kw_defaults)]
        elif isinstance(node, ast.ClassDef):
            fixed.add(node.name)
            inner = [*node.decorator_list, *node.bases, *node.keywords]
        else:
            in_comprehension = in_comprehension or isinstance(node, Comprehension)
            if isinstance(node, BINDS_BY_FIELD):
                names = (getattr(node, field, None) for field in NAME_FIELDS)
                variables |= dict.fromkeys(filter(None, names))
        stack += [(child, in_comprehension) for child in inner]
    return variables, fixed
