"""A mixture with the maximum, taken apart: the same rows twice, once for either part.

The dual set of a mixture is the sum of those of its parts, so that a weighting of the mixture is
``a mu + (1 - a) nu`` with mu a weighting of the maximum, nu one of the rest, and a the share of the
maximum. With sample weights one distance does not suit both: mu does not know of them, and steps
that are measured by them would be small, for no reason, where a sample weighs next to nothing.
Apart, mu is measured by counting and nu by the sample weights.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sorel._copies import shallow_copy
from sorel._pool import Pool
from sorel._threads import Team
from sorel.permutahedron.projector import Projector
from sorel.risks import FloatArray, Max, Mixture, Risk

__all__ = ["Apart", "ApartProjector", "flat"]


class Apart(Risk):
    """The risk of stacked losses: a Max of the first half plus 1 - a times another of the second.

    It is no spectral risk of all of them, and has no weights of its own.

    Parameters
    ----------
    share : float
        The share a of the maximum.
    rest : Risk
        The risk of the second half.

    Examples
    --------
    >>> from sorel import CVaR, Max, Mixture
    >>> from sorel.permutahedron.apart import Apart
    >>> Apart.of(Mixture([Max(), CVaR(0.5)], [0.25, 0.75]))
    Apart(share=0.25, rest=Mixture(components=(CVaR(alpha=0.5),), weights=(0.75,)))
    """

    _parameters = ("share", "rest")
    share: float
    rest: Risk

    def __init__(self, share: float, rest: Risk) -> None:
        self._store(share=share, rest=rest)

    @classmethod
    def of(cls, risk: Risk) -> Apart | None:
        """The parts of a mixture of the maximum and something else; None for any other risk."""
        if not isinstance(risk, Mixture):
            return None
        parts = flat(risk)
        share = sum(part for part, of in parts if isinstance(of, Max))
        rest = [(part, of) for part, of in parts if part > 0.0 and not isinstance(of, Max)]
        if not share > 0.0 or not rest:
            return None
        shares, risks = zip(*rest, strict=True)
        return cls(share, Mixture(risks, shares))

    def stacked_weight(self, omega: FloatArray) -> FloatArray:
        """Weights of the stacked samples, with sum 1, from those of the samples."""
        used = omega > 0.0
        counted = used * (self.share / np.count_nonzero(used))
        return np.concatenate([counted, (1.0 - self.share) * omega])


def flat(risk: Risk, share: float = 1.0) -> list[tuple[float, Risk]]:
    """The risks of a mixture, and of mixtures in it, with their shares; else the risk itself."""
    if not isinstance(risk, Mixture):
        return [(share, risk)]
    found: list[tuple[float, Risk]] = []
    for part, inner in zip(risk._shares, risk.components, strict=True):
        found += flat(inner, share * part)
    return found


class ApartProjector(Projector):
    """Projections of stacked densities, each half onto its own set.

    Parameters
    ----------
    risk : Apart
        The risks of both halves.
    n : int
        Number of stacked items, which is even.
    sample_weight : ndarray of shape (n,)
        What :meth:`Apart.stacked_weight` made of the sample weights.
    pool : Pool, optional
        Where to borrow working memory.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel import CVaR, Max, Mixture
    >>> from sorel.permutahedron.apart import Apart, ApartProjector
    >>> risk, omega = Apart.of(Mixture([Max(), CVaR(0.5)], [0.5, 0.5])), np.array([0.75, 0.25])
    >>> projector = ApartProjector(risk, 4, risk.stacked_weight(omega))
    >>> projector.value(np.array([1.0, 5.0, 1.0, 5.0]))  # (5 + 3) / 2
    4.0
    """

    def __init__(
        self, risk: Apart, n: int, sample_weight: FloatArray, pool: Pool | None = None
    ) -> None:
        self.risk, self.n = risk, n
        half = n // 2
        counted, omega = sample_weight[:half], sample_weight[half:]
        even = None if (counted > 0.0).all() else counted / counted.sum()
        self._halves = (
            Projector(Max(), half, even, pool),
            Projector(risk.rest, half, omega / omega.sum(), pool),
        )
        self._shares = (risk.share, 1.0 - risk.share)
        self._core = self._halves[1].core

    def fork(self, pool: Pool | None = None) -> ApartProjector:
        """The same projections for another thread."""
        fork = shallow_copy(self)
        fork._halves = (self._halves[0].fork(pool), self._halves[1].fork(pool))
        fork._core = fork._halves[1].core
        return fork

    @property
    def two_levels(self) -> bool:
        """Never: the halves have thresholds of their own."""
        return False

    def share(self, team: Team | None) -> None:
        """Nothing: the ranges of a team go across both halves."""

    def project(
        self, zeta: FloatArray, out: FloatArray, block: npt.NDArray[np.int32] | None = None
    ) -> int:
        """Project each half; see :meth:`Projector.project`."""
        if block is None:
            block = np.empty(self.n, np.int32)
        half = self.n // 2
        first, second = self._halves
        count = first.project(zeta[:half], out[:half], block[:half])
        more = second.project(zeta[half:], out[half:], block[half:])
        block[half:][block[half:] >= 0] += count
        return count + more

    def effective_share(self) -> float:
        """The share of the items that carry the risk."""
        return 0.5 * sum(projector.effective_share() for projector in self._halves)

    def largest_jump(self) -> float:
        """As far as it can be: the maximum has all its weight at one rank."""
        return 1.0

    def worst_case(self, losses: FloatArray, out: FloatArray) -> float:
        """The densities that make the most of the losses, and the risk; see :class:`Projector`."""
        half = self.n // 2
        first, second = self._halves
        values = (
            first.worst_case(losses[:half], out[:half]),
            second.worst_case(losses[half:], out[half:]),
        )
        return self._sum(values)

    def value(self, losses: FloatArray) -> float:
        """The risk of the losses."""
        half = self.n // 2
        first, second = self._halves
        return self._sum((first.value(losses[:half]), second.value(losses[half:])))

    def shortfall(self, losses: FloatArray, density: FloatArray) -> float:
        """The risk less what the densities make of the losses."""
        half = self.n // 2
        first, second = self._halves
        return self._sum(
            (
                first.shortfall(losses[:half], density[:half]),
                second.shortfall(losses[half:], density[half:]),
            )
        )

    def _sum(self, values: tuple[float, float]) -> float:
        return self._shares[0] * values[0] + self._shares[1] * values[1]
