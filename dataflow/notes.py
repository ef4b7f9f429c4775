"""The codes under which operators note what is no error: late rows, watermarks, frozen windows.

A note has the form of an error row, with its code in the place of an SQLSTATE. Invariant: a code
never changes; the SQL of tidemark.late_rows and tidemark.watermarks has them too.
"""

from __future__ import annotations

# In the place of an SQLSTATE: a late row that was left out, one that was passed on, the watermark
# of a column, and up to where windows are closed (both in microseconds since 2000 UTC); a row that
# came or went in a frozen window, and the watermark up to which windows are frozen.
LATE_LEFT_OUT, LATE_APPLIED, WATERMARK, WINDOW_EDGE = "TML01", "TML02", "TML03", "TML04"
FROZEN_ROW, FROZEN_EDGE = "TML05", "TML06"
NOTES = frozenset({LATE_LEFT_OUT, LATE_APPLIED, WATERMARK, WINDOW_EDGE, FROZEN_ROW, FROZEN_EDGE})
