"""Settings of the site: `make docs` builds it, without any network."""

from __future__ import annotations

import importlib.util
import os
import re
import warnings
from pathlib import Path
from typing import Any

import sorel

project = "sorel"
author = "the sorel developers"
copyright = "the sorel developers, BSD-3-Clause"
version = release = sorel.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "**/README.md", "**/sg_execution_times.rst", "sg_execution_times.rst"]
templates_path = ["_templates"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autosummary_generate = True
# Gigabytes of torch are not needed to describe what is built on it.
autodoc_mock_imports = [] if importlib.util.find_spec("torch") else ["torch"]
autodoc_typehints = "none"
numpydoc_show_class_members = False

# Links to other projects need their inventories from the network, which `make docs` does without:
# SOREL_DOCS_ONLINE=1 fetches them. Without them such names are plain text.
online = {
    "python": "https://docs.python.org/3/",
    "numpy": "https://numpy.org/doc/stable/",
    "scipy": "https://docs.scipy.org/doc/scipy/",
    "sklearn": "https://scikit-learn.org/stable/",
    "pandas": "https://pandas.pydata.org/docs/",
}
intersphinx_mapping = {
    name: (address, None) for name, address in online.items() if os.environ.get("SOREL_DOCS_ONLINE")
}

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"

# An example that fails fails the build; SOREL_DOCS_EXAMPLES=none builds the pages alone, quickly.
examples = os.environ.get("SOREL_DOCS_EXAMPLES", "all")
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": "/plot_" if examples == "all" else "a^",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "min_reported_time": 5,
    "within_subsection_order": "FileNameSortKey",
    "doc_module": ("sorel",),
    "backreferences_dir": "gallery/backreferences",
}

html_theme = "pydata_sphinx_theme"
html_title = f"sorel {release}"
html_static_path = ["_static"]
html_logo = html_favicon = "_static/sorel.svg"
html_css_files = ["sorel.css"]
html_search_scorer = str(Path(__file__).with_name("search.js"))
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": html_title},
    "header_links_before_dropdown": 6,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
}
html_sidebars = {"index": []}
html_context = {"default_mode": "auto"}

# scikit-learn's own machinery, documented there.
_ELSEWHERE = re.compile(r"set_\w+_request|get_metadata_routing")


def _skip(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    return True if _ELSEWHERE.fullmatch(name) else None


def _keep_bars(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Let |w| be a norm in docstrings, and not a substitution of reStructuredText."""
    for place, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = line.split("``")
            parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
            lines[place] = "``".join(parts)


def _trim_sessions(app: Any, name: str, source: list[str]) -> None:
    """Leave out the empty line that ends a session: doctest needs it, a reader does not."""
    source[0] = re.sub(r"\n\n```$", "\n```", source[0], flags=re.MULTILINE)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _trim_sessions)
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-docstring", _keep_bars)


# matplotlib's note that nobody sees its windows.
warnings.filterwarnings("ignore", message=".*FigureCanvasAgg is non-interactive.*")
