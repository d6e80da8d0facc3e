"""The site that `make docs` builds.

Its source is the whole repository, so that a link to a notebook or to the results of the benchmarks
leads there on GitHub and in the site alike.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from monarch_nb.config import VERSION

project = "monarch_nb"
author = "the authors of monarch_nb"
version = release = VERSION

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "facts"]
templates_path = ["_templates"]
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "notebooks/*.ipynb",
    "benchmarks/RESULTS.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
]
exclude_patterns = [  # not even looked into: a virtual environment has tens of thousands of files
    ".*", "**/.*", "docs/_*", "kernel", "labextension", "monarch_nb", "node_modules", "tests",
]  # fmt: skip

default_role = "code"  # in docstrings `name` is code, as in Markdown
autodoc_preserve_defaults = True  # not what they are on the machine that builds
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures have them

myst_heading_anchors = 4  # links to headings are those of GitHub
myst_enable_extensions = ["colon_fence"]
nb_execution_mode = "off"  # notebooks are committed with their outputs; tests run them
suppress_warnings = ["mystnb.unknown_mime_type"]  # pictures that need a kernel

html_theme = "pydata_sphinx_theme"
html_title = "monarch_nb"
html_additional_pages = {"index": "front.html"}
html_show_sourcelink = False
html_theme_options = {"header_links_before_dropdown": 4}
html_sidebars = {  # nothing is below these
    f"docs/{page}": []
    for page in ("index", "tutorial", "concepts", "troubleshooting", "security", "limits")
}
