"""A hook of MkDocs: README.md is the site's first page; pictures outside of docs/ are in the site too.

The page stands in no second place: its links are rewritten as they are read from docs/.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_OUTSIDE = re.compile(r"(!\[[^\]]*\]\()\.\./([^)\s]+\))")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the page, and every picture that it shows, under the path that it has from the root."""
    root = Path(config.config_file_path).parent
    text = (root / "README.md").read_text(encoding="utf-8")
    shown = {link for mark, _, link in _LINK.findall(text) if mark}
    for page in sorted((root / "docs").glob("*.md")):
        found = _OUTSIDE.findall(page.read_text(encoding="utf-8"))
        shown |= {link.removesuffix(")") for _, link in found}
    for picture in sorted(shown):
        if (root / picture).is_file():
            files.append(File.generated(config, picture, abs_src_path=str(root / picture)))
    files.append(File.generated(config, "index.md", content=_LINK.sub(_from_docs, text)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page whose pictures of ../results are those that the site has, under the same path."""
    return _OUTSIDE.sub(r"\1\2", markdown)


def _from_docs(found: re.Match[str]) -> str:
    mark, text, link = found.groups()
    if not mark and ":" not in link and not link.startswith("#"):
        link = posixpath.relpath(link, "docs")
    return f"{mark}[{text}]({link})"
