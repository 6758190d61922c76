"""The report: one HTML file that opens without a network, with the figures inside."""

from __future__ import annotations

import base64
import html
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sorel.reproduce.claims import HOLDS, HOLDS_NOT, IN_PART, claims
from sorel.reproduce.plan import Results
from sorel.reproduce.settings import risk_label
from sorel.reproduce.tables import Table, knob_free, number

__all__ = ["render"]

_CAPTIONS = {
    "figure1": (
        "Figure 1. Trajectories",
        "Level sets of the two-dimensional problem and exact primal-dual iterations in it. The "
        "star is the certified optimum; colour tells early from late.",
    ),
    "figure2": (
        "Figure 2. Without mini-batches",
        "Median over the seeds, with the band between the quartiles. Values below 1e-15 are "
        "rounding and drawn there. Time axes are logarithmic.",
    ),
    "figure3": (
        "Figure 3. With mini-batches",
        "As before, with batches of 64 for all methods but L-BFGS.",
    ),
    "appendix2": (
        "Appendix to figure 2. Not in the paper",
        "Methods of the related work that the paper names and does not run, with default settings, "
        "beside SOREL's two curves of figure 2.",
    ),
    "appendix3": (
        "Appendix to figure 3. Not in the paper",
        "The same with batches of 64 for the two methods that take batches.",
    ),
    "knob_free": (
        "SOREL without knobs",
        "Passes to a suboptimality of 1e-6, against the published schedule with the setting that "
        "the paper's rule chooses from 72.",
    ),
    "late": (
        "The published schedule in the long run",
        "The dual step grows without end while its product with the primal one stays constant. "
        "With exact inner solves the same happens: it is the schedule, not the sampling. Not in "
        "the paper: the same schedule with a clock that is stopped in time.",
    ),
    "toy": (
        "The toy example",
        "Two losses, (w - 1)^2 / 2 and (w + 1)^2 / 2, with all weight on the larger one. The "
        "optimum is 0.",
    ),
}

# Which tables follow which figure.
_SECTIONS: tuple[tuple[str | None, tuple[str, ...]], ...] = (
    ("figure1", ()),
    ("figure2", ("reached",)),
    ("figure3", ("reached_batch",)),
    ("appendix2", ("appendix",)),
    ("appendix3", ("appendix_batch",)),
    ("knob_free", ("knob_free", "knob_free_batch")),
    ("late", ("late",)),
    ("toy", ()),
    (None, ("settings", "costs", "constants", "datasets")),
)

_STYLE = """
:root { color-scheme: light; --line: #dcdcdc; --ink: #1d1d1f; --soft: #5f6368; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; color: var(--ink); background: #fff;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .4rem; }
p { max-width: 46rem; margin: .4rem 0; }
.soft, figcaption, .note { color: var(--soft); font-size: .92rem; }
.facts { display: flex; flex-wrap: wrap; gap: .6rem; padding: 0; list-style: none; }
.facts li { flex: 1 1 13rem; border: 1px solid var(--line); border-radius: .5rem;
  padding: .6rem .8rem; }
.facts b { display: block; font-size: 1.35rem; }
.scroll { overflow-x: auto; margin: .6rem 0; }
.scroll:focus-visible { outline: 2px solid #0072b2; }
figure { margin: .6rem 0; }
figure img { display: block; max-width: 100%; height: auto; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .55rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; }
table:not(.claims) td { white-space: nowrap; }
td.n, th.n { text-align: right; white-space: nowrap; }
th { position: sticky; top: 0; background: #f6f7f8; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid #0072b2; }
th button::after { content: "\\2195"; color: #b0b4b9; padding-left: .3em; }
th[aria-sort="ascending"] button::after { content: "\\2191"; color: var(--ink); }
th[aria-sort="descending"] button::after { content: "\\2193"; color: var(--ink); }
.verdict { white-space: nowrap; font-weight: 600; }
.good { color: #00664b; } .part { color: #7a4b00; } .bad { color: #a32f00; }
@media (max-width: 46rem) {
  figure img.wide { max-width: none; width: 60rem; }
  table.claims thead { display: none; }
  table.claims, table.claims tbody, table.claims tr, table.claims td { display: block; }
  table.claims tr { border-bottom: 1px solid var(--line); padding: .5rem 0; }
  table.claims td { border: 0; padding: .1rem 0; }
}
"""

_SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach(other => other.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const compare = (a, b) => {
      const x = value(a), y = value(b), p = Number(x), q = Number(y);
      return Number.isNaN(p) || Number.isNaN(q) ? x.localeCompare(y) : p === q ? 0 : p - q;
    };
    const body = table.tBodies[0];
    body.append(...[...body.rows].sort((a, b) => (up ? 1 : -1) * compare(a, b)));
  }));
}
"""


def render(results: Results, tables: Sequence[Table], figures: dict[str, Path]) -> str:
    """The report as HTML text."""
    by_name = {table.name: table for table in tables}
    parts = [
        "<h1>Spectral risk minimization: the experiments, run again</h1>",
        "<p>Yuze Ge and Rujun Jiang, <i>SOREL: A Stochastic Algorithm for Spectral Risks "
        "Minimization</i> (arXiv 2407.14618), measured against optimal values that are certified, "
        "with the two methods beside it that the paper leaves out: the same algorithm without "
        "knobs, and L-BFGS.</p>",
        _facts(results),
        _claims(results),
    ]
    for figure, names in _SECTIONS:
        if figure is not None and figure in figures:
            parts.append(_figure(figure, figures[figure]))
        parts += [_table(by_name[name]) for name in names if name in by_name]
    parts.append(_provenance(results))
    return _page("\n".join(parts))


def _page(body: str) -> str:
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>sorel: reproduction report</title>
<link rel="icon" href="data:,">
<style>{_STYLE}</style>
</head>
<body>
<main>
{body}
</main>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _facts(results: Results) -> str:
    facts = []
    if not results.optima.empty:
        worst = results.optima["relative_gap"].max()
        facts.append((f"{worst:.0e}", "largest relative gap of a certified optimum"))
    if not results.curves.empty:
        facts.append((f"{results.least:.0e}", "least suboptimality of any iterate: rounding"))
        for batch in results.settings.batches:
            ratio = knob_free(results, batch)["ratio 1e-06"].median()
            how = "no mini-batches" if batch == 1 else f"batches of {batch}"
            facts.append((f"{ratio:.2f}", f"knob-free passes over tuned ones to 1e-6, {how}"))
    verdicts = [claim.verdict for claim in claims(results)]
    counts = f"{verdicts.count(HOLDS)} / {verdicts.count(IN_PART)} / {verdicts.count(HOLDS_NOT)}"
    facts.append((counts, "claims that hold, hold in part, do not hold"))
    items = "".join(
        f"<li><b>{html.escape(value)}</b>{html.escape(what)}</li>" for value, what in facts
    )
    return f'<ul class="facts">{items}</ul>'


def _claims(results: Results) -> str:
    kinds = {HOLDS: "good", IN_PART: "part", HOLDS_NOT: "bad"}
    rows = []
    for claim in claims(results):
        kind = kinds.get(claim.verdict, "soft")
        rows.append(
            f"<tr><td>{html.escape(claim.claim)}<br><span class=soft>{html.escape(claim.source)}"
            f'</span></td><td>{html.escape(claim.measured)}</td><td class="verdict {kind}">'
            f"{html.escape(claim.verdict)}</td></tr>"
        )
    heads = "".join(_head(name, False) for name in ("claim", "measured", "verdict"))
    return (
        '<h2 id="claims">The claims, and what was measured</h2>'
        '<div class="scroll" tabindex="0"><table class="sortable claims">'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _figure(name: str, path: Path) -> str:
    title, caption = _CAPTIONS[name]
    data = base64.b64encode(path.read_bytes()).decode()
    wide = ' class="wide"' if name in ("figure2", "figure3", "knob_free") else ""
    return (
        f'<h2 id="{name}">{html.escape(title)}</h2><figure><div class="scroll" tabindex="0">'
        f'<img{wide} src="data:image/png;base64,{data}" alt="{html.escape(title)}"></div>'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def _table(table: Table) -> str:
    frame = table.frame
    numeric = [bool(np.issubdtype(kind, np.number)) if isinstance(kind, np.dtype) else False
               for kind in frame.dtypes]  # fmt: skip
    heads = "".join(
        _head(str(name), right) for name, right in zip(frame.columns, numeric, strict=True)
    )
    rows = []
    for row in frame.itertuples(index=False):
        cells = "".join(_cell(value, right) for value, right in zip(row, numeric, strict=True))
        rows.append(f"<tr>{cells}</tr>")
    return (
        f'<h2 id="table-{table.name}">{html.escape(table.title)}</h2>'
        f'<p class="note">{html.escape(table.note)}</p>'
        f'<div class="scroll" tabindex="0"><table class="sortable" id="{table.name}">'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _head(name: str, right: bool) -> str:
    kind = ' class="n"' if right else ""
    return f'<th scope="col" aria-sort="none"{kind}><button>{html.escape(name)}</button></th>'


def _cell(value: Any, right: bool) -> str:
    shown = html.escape(number(value))
    if not right:
        return f"<td>{shown}</td>"
    # "never" sorts last; what is not a number (neither arrives) after it.
    order = "Infinity" if not np.isfinite(value) else repr(float(value))
    return f'<td class="n" data-value="{order}">{shown}</td>'


def _provenance(results: Results) -> str:
    settings = results.settings
    facts = [
        f"{settings.seeds} seeds, {settings.tuning_seeds} for tuning; {settings.passes} passes "
        f"without and {settings.batch_passes} with mini-batches; risks "
        f"{', '.join(map(risk_label, settings.risks))}; mu = 1/n.",
        "One pass is n sample gradients; an outer iteration of SOREL and LSVRG counts two, and so "
        "do n steps of Prospect, which takes a gradient and a loss of two samples in each.",
        "Suboptimality is (F - F*) / (F(0) - F*) with F* certified from below; where rounding "
        f"would make it negative ({results.least:.0e} at worst) it is set to 0.",
        "Times are CPU seconds of the method alone, on one thread, compiled code loaded before.",
        f"{results.code}; Python {platform.python_version()}, {platform.system()} "
        f"{platform.machine()}.",
    ]
    if settings.quick:
        facts.insert(0, "This is the quick form: fewer seeds and passes than the full run.")
    items = "".join(f"<li>{html.escape(fact)}</li>" for fact in facts)
    return f'<h2 id="provenance">How this was made</h2><ul class="soft">{items}</ul>'
