"""How Sphinx builds the site: ``sphinx-build -W --keep-going docs site``.

pydata-sphinx-theme is the base of PyTorch's own documentation: it has search, light and dark pages, and phone widths.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

# The tutorials run commands as a reader does who has activated the environment, in a terminal of 88 columns.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
os.environ.setdefault("COLUMNS", "88")

project = "opwright"
author = "the opwright authors"
html_title = "opwright"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["tutorials/**", "_build"]
suppress_warnings = ["config.cache"]  # sphinx_gallery_conf holds a class, which Sphinx does not pickle

highlight_language = "text"  # a block without a language is output, or commands

# Markdown: pages of the repository, with links to each other's headings.
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

# Docstrings: Google style, types from annotations.
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_admonition_for_examples = False

# Tutorials: scripts that run when the site is built; an error stops the build.
sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "auto_tutorials",
    "filename_pattern": r"\.py$",
    "capture_repr": (),  # a page shows what the script prints
    "within_subsection_order": "FileNameSortKey",
    "only_warn_on_example_error": False,
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "default_thumb_file": str(Path(__file__).parent / "pictures" / "finding.svg"),
    "remove_config_comments": True,
    "write_computation_times": False,
    "min_reported_time": 1,
}

html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    # Tutorials have none: their output is 88 columns wide.
    "secondary_sidebar_items": {
        "*": ["page-toc"],
        "api/*": ["page-toc"],
        "guides/*": ["page-toc"],
        "auto_tutorials/*": [],
    },
    "footer_start": ["copyright"],
    "footer_end": [],
}
copyright = "the opwright authors, Apache-2.0"


_DOCS = Path(__file__).parent
_BESIDE_THE_CODE = {
    "fast-calls": "../src/opwright/fast_path/README.md",
    "findings": "../src/opwright/report/findings.md",
}


def _link_within_the_site(app: Sphinx, name: str, source: list[str]) -> None:
    """Replace what only the repository has: a page beside its code is a page of the site, a link to a folder is the
    folder's path."""
    if name in _BESIDE_THE_CODE:
        source[0] = (_DOCS / _BESIDE_THE_CODE[name]).read_text().replace("](../../../", "](../")

    if name == "findings":  # long messages continue in the next line
        source[0] = re.sub(
            r"(?m)^```\n(.*?)^```$", r"```{code-block} text\n:class: message\n\n\1```", source[0], flags=re.S
        )

    def of_folder(link: re.Match[str]) -> str:
        return f"{link[1]} (`{link[2].lstrip('./')}`)" if (_DOCS / link[2]).is_dir() else link[0]

    for page, path in _BESIDE_THE_CODE.items():
        source[0] = source[0].replace(f"]({path}", f"]({page}.md")
    source[0] = re.sub(r"\[([^\]]+)\]\((\.\./[^)#]+)\)", of_folder, source[0])


def setup(app: Sphinx) -> None:
    app.connect("source-read", _link_within_the_site)
