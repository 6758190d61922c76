"""The compiled loops, in files along their calls: what is compiled together stands together.

Loops take arrays and scalars only. A parameter named in `PER_ROW` has an entry for each sample, and
`omega` has one when `weighted` (else the one weight that all samples share). An engine cuts these
to a range of rows where several threads share a loop. Sums over the rows, such as X^T c, are added
to what `out` holds.
"""

from __future__ import annotations

PER_ROW = frozenset(
    (
        "X", "y", "margins", "losses", "slopes", "density", "others", "previous", "target", "block",
        "direction", "new_margins", "change", "c", "h", "squares",
    )
)  # fmt: skip
