"""sorel's default: it chooses the method, and stops at a certified relative gap."""

from benchmark_utils import ToTolerance


class Solver(ToTolerance):
    name = "sorel-auto"

    def run(self, tol):
        self.solve("auto", tol=tol, max_passes=1e5)
