"""The risks that estimators and the command line minimise unless told otherwise."""

from __future__ import annotations

from sorel.problem.risks import ESRM, CVaR

RISK = CVaR(0.5)
# Weights of a tail spoil probabilities sooner than predicted numbers: of the risks compared on ten
# real sets (docs/held-out.md) that with the best tail whose log loss stays near the plain fit's.
CLASSIFIER_RISK = ESRM(1.0)
