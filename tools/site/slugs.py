"""The anchors of headings, as GitHub makes them, so that a link works in the repository and on the site."""
import re


def github(text, separator):
    """The anchor of a heading."""
    del separator
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
