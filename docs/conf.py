"""How Sphinx makes the site from these pages and the docstrings: `python -m sphinx -W --keep-going docs build/site`."""

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from flax import nnx
from sphinx.util import inspect

import jax_smash

ROOT = Path(__file__).parent.parent
project = "jax_smash"
version = release = jax_smash.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinxcontrib.mermaid",
]
html_theme = "furo"
html_title = f"{project} {version}"
html_copy_source = False

# Pages are written for GitHub too: its anchors of headings, and pictures in fenced code.
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]

# A name of the project that leads nowhere is an error. Types of other libraries are not linked, since a build needs no
# network, and type variables stand on no page.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!jax_smash|pallas_kernels).*"),
    (
        r"py:class",
        r"jax_smash\.(protocols\.State|pytree\.T|sharding\.Tree|smash\.macro_step\.Carry|models\.definition\.Module)",
    ),
]

default_role = "code"  # Docstrings write `name` as Markdown does.
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autosummary_generate = False
maximum_signature_line_length = 100
# Types are in the signature; several arguments may share a line of a docstring, as in `key, value: …`.
napoleon_use_param = False
napoleon_custom_sections = [("Attributes", "params_style")]

README = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
ADDED = {
    # What lies outside of `docs/` is offered as a file.
    "index": "\n" + re.sub(r"\]\((?=jax_smash/)", "](path:../", README),
    "experiments/README": "\n```{toctree}\n:hidden:\n:glob:\n\n[0-9]*\n```\n",
}
"""What pages have on the site alone: the front page shows the README, and the index of experiments leads to each."""


def add(app: Any, page: str, content: list[str]) -> None:
    """Puts what a page has on the site behind its own text."""
    content[0] += ADDED.get(page, "")


def written(app: Any, what: str, name: str, obj: Any, options: Any, signature: str, returned: str) -> Any:
    """Returns a signature that Sphinx can read, and none for a protocol, which nobody calls."""
    if getattr(obj, "_is_protocol", False):
        return "", None
    if isinstance(obj, type) and issubclass(obj, nnx.Module):  # Flax makes modules of whatever arguments they take.
        taken = inspect.signature(obj.__init__, bound_method=True)
        signature = inspect.stringify_signature(taken, unqualified_typehints=True)
    # Defaults that are no Python: a class goes by its name, and what is made anew each time has none.
    return signature and re.sub(r"<[^>]+>", "...", re.sub(r"<class '(.+?)'>", r"\1", signature)), returned


def left_out(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leaves the fields of a named tuple to its docstring; of other members Sphinx decides."""
    return True if (getattr(obj, "__doc__", "") or "").startswith("Alias for field number") else None


def shorten(app: Any, page: nodes.document) -> None:
    """Has shapes read as in the source: `Int[Array, "B M"]`."""
    for text in list(page.findall(nodes.Text)):
        if "jaxlib._jax.Array" in text:
            text.parent.replace(text, nodes.Text(text.replace("jaxlib._jax.Array", "Array")))


def setup(app: Any) -> None:
    """Connects them to Sphinx."""
    app.connect("source-read", add)
    app.connect("autodoc-process-signature", written)
    app.connect("autodoc-skip-member", left_out)
    app.connect("doctree-read", shorten)
