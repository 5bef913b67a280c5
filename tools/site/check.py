#!/usr/bin/env python3
"""check.py SITE: every link, script, style and picture of the built site is a file of the site, and every anchor exists.

A link to another site is allowed as a link only: a page must not load anything from the network.
"""
import html.parser
import os
import pathlib
import sys
import urllib.parse

SITE = pathlib.Path(sys.argv[1])


class Page(html.parser.HTMLParser):
    """Collects what a page links to and loads, and its anchors."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loads, self.anchors = [], [], {""}
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors |= {values.get("id", ""), values.get("name", "") if tag == "a" else ""}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        elif tag in ("script", "img") and values.get("src"):
            self.loads.append(values["src"])
        elif tag == "link" and values.get("rel") in ("stylesheet", "icon", "shortcut icon") and values.get("href"):
            self.loads.append(values["href"])


pages = {path.relative_to(SITE).as_posix(): Page(path) for path in SITE.rglob("*.html")}
found = []
for name, page in sorted(pages.items()):
    for target in page.links + page.loads:
        parts = urllib.parse.urlsplit(target)
        if parts.scheme or parts.netloc:
            if target in page.loads:
                found.append(f"{name} loads {target}")
            continue
        if name == "404.html":
            continue  # its links begin at the root of a server
        path = os.path.normpath(os.path.join(os.path.dirname(name), urllib.parse.unquote(parts.path))) if parts.path else name
        path = "index.html" if path == "." else path
        if not (SITE / path).is_file():
            found.append(f"{name} links to {target}, which does not exist")
        elif path in pages and urllib.parse.unquote(parts.fragment) not in pages[path].anchors | {"__skip"}:
            found.append(f"{name} links to {target}, but there is no such anchor")
print("\n".join(found) if found else f"docs: {len(pages)} pages in {SITE}/index.html")
sys.exit(1 if found or len(pages) < 20 else 0)
