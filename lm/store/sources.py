"""Hashes of this package's source code, and which of them are known to compute the same.

A hash is of syntax trees: comments, docstrings, layout and the types of parameters do not count, everything else does.
"""

import ast
import hashlib
from collections.abc import Mapping
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
            "bf48613b3683d9c1830cb258ae053995e1897b652ba913f0ff9c683558d6803b",  # the same, hashed with local names
            "b81e3cb069207c73bbf67d07be4ecfecbe907250a4e31243c6ff6283aa67e3bd",  # shorter code, text of any size, tasks
            "f1d0a6707d532e5590d1ce2c48e2267c2f0db1b383152499f842d61b0048dde4",  # memory given back
            "a67fc3bf19635982a83b6048a9d99caa20eb24a30922b7084a19467b27625f8e",  # the description of the processor
            "24d79e0f5a822d1b9bebb15599804cfcbfe0f24e8c3ab2c98b169b6f9685b364",  # activations computed again
            "7788c229eb255491a9471e05d679b8fcfcf9b3e3f5caf8697e58b8888fb43a21",  # files, checkpoints, costs of plans
            "1faf96cf026394188113e50e1306983405c1b2566315bdca17e36f32b9f595a8",  # draws without a block
            "987750282a395489d7d5a976b0b65430efc191e3b90e4130effb1f451e565e39",  # lengths measured by hand
            "e4874f8ae12db082605910b9a6b3cefde34fe47edb9dbbd05175a2155ffdf693",  # CUDA repeats what it computes
            "dd1e0908a4adb55433c94be19692539edfcf8ec0fbd66daf73c2ba4f6b912c64",  # compiled with older torch
            "c86de3b99ba3e3938a810bfffd3a5593aeff8aa6930439ed99892842abac93b2",  # chunks by the device
            "a29f4b995dff31c170802085186a7af5c8deccc7794848c59b5be74fdd4504f0",  # one more text to download
            "a7c94e14b78a1cb912a95f5da65ec986e3b9be514f9d4e0aa582f69779d4699b",  # sections of one of two kinds
            "d8b0264e8c8b39df636ccab02e70e12a862e9b3a308b5f748af5eeb3af5e4a29",  # null is no number
            "739a6f33a6b73858d3acd80b4bbec07fdd8b2c24d4abc4d3a3ea2ab061e6f5e0",  # of numbers alone
            "c06e79604bb02652d7ce05b2afe8165089beef4ca03e6a6d8d9baa7b08626608",  # what a constructor lacks
            "9416c2ebb38b19786605390633a5ee93639218bc36e93fa4ef7d3cf77bda5af9",  # zeros for tensor cores
            "b1c99dd08a55f2ee61732d68c23256b4fee961e3317acc1a4cd8de6ba71e3514",  # compiled whole on CUDA
            "40dd93c0bcb5d33e9e7fb22f8e19872da33d390a24d4e9c6d5cdbc56dad9bd06",  # validations of a tenth by default
            "006050ae2325652b5075319df8818974784656db17802dd534a90c801268fa66",  # later heads by blocks on CUDA
            "0a8b6cc2abd02a09551919ca534b67c3ebfb09f7360c4559ec6d57d0d49cf5ed",  # large logits, long rows in parts
            "2c780077a4f5897be881184c82e2646ce5857854d59cb25f907efeda9fe59f19",  # usual names, one way to split
            "e374d449d0adec81bed2f6ad0622cf7af21d5c317753a052a22e412a33c80161",  # threads of a resumed run
            "f967795cec7a514cb4d2adde7814ad63f079b5af2ea7911b0d0080e4648f6ca5",  # 15 runs trained again, alike
            "5969a64fe6a147a6372af6c7013469887f7ed6fdc6ee4b643cd50da05aa31247",  # queries, keys, values without a copy
            "5ecf4d87e3ce219aea2ca6cf49207f10b390219aa8b5f03b82a7790cc01e4b15",  # a tenth of the rows by default
            "85abd364fada274361bac43136613661b7931bae84db293bc90081f178d37c0c",  # an example in a message
            "6d0e8e9ec504b05cc04b986f53f3cf25d714e6826a681d3f02e5e9fe05d811ed",  # freed memory is kept
            "bdf932e0eac2372ec61170e0fc09ffeb54e9315e83f77a8231f2a9fd4c646878",  # logits of validation used twice
            "a7715a343bf93c5fb0cc53a2552bb34913eac7ecad742a6102e6f0409e758444",  # shares of the training branch off
            "a29e11223b966f4d8b2a71348369c87adbe12fb25512510a859962e192e70633",  # other messages
        }
    ),
)
"""Sets of source hashes that compute the same numbers.

Only a commit that shows the pinned cells bit-equal before and after (`make golden`) may extend it.
"""


OF_COMMITS: Mapping[str, str] = {
    "ad548c72bd7444077aaa74d9700285594009aa3c": "55166fc78aa0eb7a3d9afe4460cc673a4fe394159f28e2b7b4520d4c7654388d",
    "6a638c4ad646a6e516151dedba675ceab7bae1f6": "55166fc78aa0eb7a3d9afe4460cc673a4fe394159f28e2b7b4520d4c7654388d",
}
"""Source hashes of clean commits whose records hold none.

Shown by a run of each arm that was trained again, of `extrapolation`, `norm_placement_xavier` and `weight_tying` for
the first and of `recipe` for the second: everything that the old record holds came out the same, to the last digit.
"""


def source_of(provenance: Mapping[str, Any]) -> str | None:
    """Return the source hash of a record's provenance; of an older one what its commit is known by, None for none."""
    git = provenance["git"]
    return provenance.get("source") or (None if git["dirty"] else OF_COMMITS.get(git["commit"]))


def canonical(source: object) -> str:
    """Return one label for all sources that are known to compute the same as a source hash."""
    label = str(source)
    return next((min(hashes) for hashes in EQUIVALENT if label in hashes), label)


def read_sources(folder: Path, packages: tuple[str, ...]) -> dict[str, bytes]:
    """Read the Python files of some packages below a folder, by their paths in it, but for hidden ones of editors."""
    every = (path for package in packages for path in (folder / package).rglob("*.py"))
    paths = sorted(path for path in every if not path.name.startswith("."))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def hash_sources(files: Mapping[str, bytes]) -> str:
    """Hash the paths and syntax trees of Python files; the bytes of a file that is no Python."""
    digest = hashlib.sha256()
    for name, content in files.items():
        try:
            text = "".join(syntax_text(_Stripped().visit(ast.parse(content)))).encode()
        except (SyntaxError, ValueError):
            text = content
        digest.update(f"{name}\n{len(text)}\n".encode() + text)
    return digest.hexdigest()


class _Stripped(ast.NodeTransformer):
    """Removes docstrings, notes on attributes, and the annotations of functions."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        node.values = [part for part in node.values if getattr(part, "value", None) != ""]  # Python 3.12.1 adds those
        return self.generic_visit(node)
