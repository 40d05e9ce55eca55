"""Let the site's pages draw their Mermaid diagrams with a copy of Mermaid in the site."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url
from pymdownx.superfences import fence_code_format

_MERMAID: Final = Path(__file__).parents[1] / "build" / "mermaid" / "node_modules/@mermaid-js/tiny/dist/mermaid.tiny.js"
_IN_SITE: Final = "site/mermaid.js"
_DIAGRAM: Final = '<pre class="mermaid">'
_log = logging.getLogger("mkdocs.hooks.diagrams")


def on_config(config: MkDocsConfig) -> None:
    """Mark the diagrams for the theme to draw, or leave them as text if Mermaid is missing.

    The theme would load a missing Mermaid from another server.
    """
    if not _MERMAID.exists():
        _log.info("diagrams are shown as text: Mermaid is not installed; `make docs` installs it if npm is there")
        return
    fence = {"name": "mermaid", "class": "mermaid", "format": fence_code_format}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Copy Mermaid into the site."""
    if _MERMAID.exists():
        files.append(File.generated(config, _IN_SITE, abs_src_path=str(_MERMAID)))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Load Mermaid on the pages that have a diagram: it is large."""
    if _DIAGRAM not in html:
        return html
    return f'{html}\n<script src="{get_relative_url(_IN_SITE, page.url)}"></script>'
