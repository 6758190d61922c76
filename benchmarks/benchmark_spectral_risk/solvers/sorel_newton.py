"""Augmented Lagrangian with semismooth Newton steps."""

from benchmark_utils import ToTolerance


class Solver(ToTolerance):
    name = "sorel-newton"

    def run(self, tol):
        self.solve("newton", tol=tol, max_passes=1e5)
