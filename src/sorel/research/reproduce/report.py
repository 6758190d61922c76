"""The report: one HTML file that opens without a network, with the figures inside."""

from __future__ import annotations

import base64
import platform
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from sorel.research.reproduce.claims import HOLDS, HOLDS_NOT, IN_PART, Claim, claims
from sorel.research.reproduce.plan import Results
from sorel.research.reproduce.result_tables import Table, knob_free, number
from sorel.research.reproduce.settings import TEXTS, risk_label

# Which tables follow which figure.
_SECTIONS: dict[str, tuple[str, ...]] = {
    "figure1": (),
    "figure2": ("reached",),
    "figure3": ("reached_batch",),
    "appendix2": ("appendix",),
    "appendix3": ("appendix_batch",),
    "knob_free": ("knob_free", "knob_free_batch"),
    "late": ("late",),
    "toy": (),
    "": ("settings", "costs", "constants", "datasets"),
}
_KINDS = {HOLDS: "good", IN_PART: "part", HOLDS_NOT: "bad"}


def render(results: Results, tables: Sequence[Table], figures: dict[str, Path]) -> str:
    """The report as HTML text."""
    by_name = {table.name: table for table in tables}
    sections = []
    for figure, names in _SECTIONS.items():
        if figure in figures:
            sections.append(_figure(figure, figures[figure]))
        sections += [_table(by_name[name]) for name in names if name in by_name]
    page = resources.files("sorel.research.reproduce") / "report.html"
    return Template(page.read_text(encoding="utf-8")).substitute(
        facts="".join(f"<li><b>{escape(v)}</b>{escape(what)}</li>" for v, what in _facts(results)),
        claims="".join(map(_claim, claims(results))),
        sections="\n".join(sections),
        provenance="".join(f"<li>{escape(fact)}</li>" for fact in _provenance(results)),
    )


def _facts(results: Results) -> Iterable[tuple[str, str]]:
    if not results.optima.empty:
        yield f"{results.optima['relative_gap'].max():.0e}", TEXTS["facts"]["gap"]
    if not results.curves.empty:
        yield f"{results.least:.0e}", TEXTS["facts"]["least"]
        for batch in results.settings.batches:
            ratio = knob_free(results, batch)["ratio 1e-06"].median()
            how = "no mini-batches" if batch == 1 else f"batches of {batch}"
            yield f"{ratio:.2f}", TEXTS["facts"]["ratio"].format(how=how)
    verdicts = [claim.verdict for claim in claims(results)]
    counts = (str(verdicts.count(verdict)) for verdict in _KINDS)
    yield " / ".join(counts), TEXTS["facts"]["verdicts"]


def _claim(claim: Claim) -> str:
    return (
        f"<tr><td>{escape(claim.claim)}<br><span class=soft>{escape(claim.source)}</span></td>"
        f'<td>{escape(claim.measured)}</td><td class="verdict {_KINDS.get(claim.verdict, "soft")}">'
        f"{escape(claim.verdict)}</td></tr>"
    )


def _figure(name: str, path: Path) -> str:
    title, caption = map(escape, TEXTS["figures"][name])
    data = base64.b64encode(path.read_bytes()).decode()
    wide = ' class="wide"' if name in ("figure2", "figure3", "knob_free") else ""
    return (
        f'<h2 id="{name}">{title}</h2><figure><div class="scroll" tabindex="0">'
        f'<img{wide} src="data:image/png;base64,{data}" alt="{title}"></div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _table(table: Table) -> str:
    numeric = [kind.kind in "iuf" for kind in table.frame.dtypes]
    heads = "".join(map(_head, table.frame.columns, numeric))
    rows = (
        f"<tr>{''.join(map(_cell, row, numeric))}</tr>"
        for row in table.frame.itertuples(index=False)
    )
    return (
        f'<h2 id="table-{table.name}">{escape(table.title)}</h2>'
        f'<p class="note">{escape(table.note)}</p>'
        f'<div class="scroll" tabindex="0"><table class="sortable" id="{table.name}">'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _head(name: str, right: bool) -> str:
    kind = ' class="n"' if right else ""
    return f'<th scope="col" aria-sort="none"{kind}><button>{escape(name)}</button></th>'


def _cell(value: Any, right: bool) -> str:
    shown = escape(number(value))
    if not right:
        return f"<td>{shown}</td>"
    # "never" sorts last; what is not a number (neither arrives) after it.
    order = repr(float(value)) if np.isfinite(value) else "Infinity"
    return f'<td class="n" data-value="{order}">{shown}</td>'


def _provenance(results: Results) -> Iterable[str]:
    settings = results.settings
    facts = {
        **vars(settings),
        "risks": ", ".join(map(risk_label, settings.risks)),
        "least": results.least,
        "code": results.code,
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
    }
    names = ("seeds", "passes", "suboptimality", "times", "code")
    return (
        TEXTS["provenance"][name].format(**facts)
        for name in (("quick", *names) if settings.quick else names)
    )
