"""Projection onto the permutahedron P(sigma), the dual set of a spectral risk.

Sort z ascending, fit the nondecreasing regression v of ``z_(i) - sigma_i`` by pooling adjacent
violators, and ``lam_(i) = z_(i) - v_i`` (Lim and Wright 2016). Where sigma has two levels, as for
CVaR, P(sigma) is a box cut by a plane, and one threshold t with ``sum_i clip(z_i - t, low, high) =
sum_i sigma_i`` replaces the sort.

The engines work in density form, ``q_i = lam_i / omega_i`` with omega the normalised sample weights
(1/n without), so that q = 1 is the plain mean. Inside a block all quantities are kept relative to
its smallest entry: there ``q_i = (z_i - z_ref) + q_ref`` adds two nonnegative numbers, and nothing
is lost however large z is.
"""

from sorel.projection.projector import Derivative, Projector, WeightSet, project_permutahedron

__all__ = ["Derivative", "Projector", "WeightSet", "project_permutahedron"]
