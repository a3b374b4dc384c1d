"""What the site does with pages: a session is copied as a program, and search ranks the notebook last.

mkdocs.yml names it.
"""

from __future__ import annotations

import doctest
import html
import re
from typing import Any

SESSION = re.compile(r'<div class="(language-pycon [^"]*)">(?=(.*?)</pre>)', re.DOTALL)


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """A session is marked as one, without what only its test reads."""
    if page.file.src_uri.startswith("docs/notebook/"):
        page.meta["search"] = {"boost": 1e-4}      # a word of a title counts 1,000 times, which this is to outweigh
    return re.sub(r"^```python(?=\n>>> )", "```pycon", re.sub(r" *# doctest: .*", "", markdown), flags=re.MULTILINE)


def on_page_content(html: str, **kwargs: Any) -> str:
    """The button of a session copies what `data-copy` holds: what is typed."""
    return SESSION.sub(lambda found: f'<div class="{found[1]}" data-copy="{typed(found[2])}">', html)


def typed(block: str) -> str:
    """The input of a session, given and returned as HTML.

    >>> typed('<code><span class="gp">&gt;&gt;&gt; </span>a = [\\n... 1]\\n&gt;&gt;&gt; a\\n[1]\\n</code>')
    'a = [\\n1]\\na\\n'
    """
    session = html.unescape(re.sub(r"<[^>]*>", "", block))
    return html.escape("".join(example.source for example in doctest.DocTestParser().get_examples(session)))
