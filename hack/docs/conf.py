"""How Sphinx makes the site of the documentation from the Markdown of docs/. hack/docs/build.sh runs it."""

project = "Kvasir"
copyright = "the Kvasir authors"
extensions = ["myst_parser", "sphinx_copybutton"]
html_theme = "furo"
html_title = "Kvasir"
html_show_sphinx = False
html_show_copyright = False
exclude_patterns = []
# Anchors of headings as GitHub makes them.
myst_heading_anchors = 4
myst_linkify_fuzzy_links = False
# Pages begin with a heading of the first level and have no table of their own: the index lists them.
suppress_warnings = ["misc.highlighting_failure"]
copybutton_exclude = ".linenos, .gp, .go"
