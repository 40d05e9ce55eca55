"""Has MkDocs read the pages as GitHub shows them: lists are indented by two spaces, and headings are named alike."""

from __future__ import annotations

import re

from markdown import Markdown
from markdown.extensions import Extension
from mkdocs.config.defaults import MkDocsConfig


class _TwoSpaces(Extension):  # type: ignore[misc]  # Markdown has no types
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 (the name is Markdown's)
        md.tab_length = 2
        md.build_parser()  # whose parts have asked for the length already


def _slug(heading: str, separator: str) -> str:
    return re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", separator)


def on_config(config: MkDocsConfig) -> None:
    """Is called by MkDocs when it has read its settings."""
    config.markdown_extensions.insert(0, _TwoSpaces())  # before those that add to the parser
    config.mdx_configs.setdefault("toc", {})["slugify"] = _slug
