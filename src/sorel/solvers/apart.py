"""A run on a problem whose mixture is taken apart, told as one on the problem itself.

Every row is there twice, once for the maximum and once for the rest of the mixture: see
:mod:`sorel.permutahedron.apart`. What such a run finds is folded, and certified as any other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from sorel.problem import Problem
from sorel.solvers.base import Iterate, Iterates, Run


def iterates_apart(
    method: Callable[[Problem, Run], Iterates], problem: Problem, apart: Problem, run: Run
) -> Iterates:
    """Iterates of a problem from those that a method finds for it taken apart."""
    engine = problem.engine
    # A given weighting does not say which part of the mixture its weights belong to.
    near = run.near or run.is_weighted
    inner = dataclasses.replace(run, dual=None, near=near, resembles=False)
    found = method(apart, inner)
    try:
        iterate = next(found)
        while True:
            # Margins and slopes of the rows as they are: one pass.
            run.passes, run.n_iter = inner.passes + 1.0, inner.n_iter
            point, dual = engine.point(iterate.point.w), engine.fold(apart.engine, iterate.dual)
            run.latest = Iterate(point, dual, engine.gradient(point, dual), iterate.refine)
            certificate = yield run.latest
            inner.passes, inner.save_at = run.passes, run.save_at
            iterate = found.send(certificate)
    except StopIteration:
        run.note = inner.note
    finally:
        run.passes = max(run.passes, inner.passes)
        found.close()
