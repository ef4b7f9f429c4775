"""Headers of HTTP that others send, read so that no value of theirs is an exception.

Pure. Whatever a header says wrongly, it says nothing.
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime

# Longer texts are no dates and no seconds.
_MOST_READ = 100
_LINK = re.compile(
    r'<([^<>"]{1,8192})>((?:\s*;\s*[A-Za-z*-]+\s*=\s*(?:"[^"]{0,500}"|[^\s;,"]{1,500}))*)'
)
_REL = re.compile(r'rel\s*=\s*(?:"([^"]*)"|([^\s;,"]+))', re.IGNORECASE)


def retry_after_s(text: str, most_s: float, now_s: float) -> float:
    """Return the seconds of a Retry-After header: a number, or a date; 0 if it is neither.

    most_s: no more than these. now_s: of the wall clock.

    >>> retry_after_s("120", 86400, 0), retry_after_s("soon", 86400, 0), retry_after_s("²", 9, 0)
    (120.0, 0.0, 0.0)
    >>> retry_after_s("Thu, 01 Jan 1970 00:01:00 GMT", 86400, 10)
    50.0
    """
    text = text.strip()
    if len(text) > _MOST_READ or not text.isascii():
        return 0.0
    if text.isdigit():
        return min(float(text), most_s)
    try:
        until_s = parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError, OSError):
        return 0.0
    return min(max(0.0, until_s - now_s), most_s)


def next_link(text: str) -> str:
    """Return the target of a Link header with the relation "next", "" without one (RFC 8288).

    >>> next_link('</a?page=1>; rel="prev", </a?page=3>; title="x, y"; rel=next')
    '/a?page=3'
    >>> next_link("<<>>;rel=next"), next_link('x; rel="next"')
    ('', '')
    """
    for target, parameters in _LINK.findall(text):
        found = _REL.search(parameters)
        if found is not None and "next" in (found[1] or found[2] or "").lower().split():
            return target.strip()
    return ""


def content_type(text: str) -> str:
    """Return the media type of a Content-Type header, in lower case, without its parameters.

    >>> content_type("Text/Event-Stream; charset=no-such-charset")
    'text/event-stream'
    """
    return text.partition(";")[0].strip().lower()
