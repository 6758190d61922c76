"""What a user waits for before the first answer, in a new process with no cache of any kind.

    python -m benchmarks.first_use

For each kind of fit: CPU seconds of ``import sorel`` and one small fit, less those of importing
scikit-learn's linear models, and milliseconds of the same fit again.
"""

from __future__ import annotations

import json
import subprocess
import sys

KINDS = {
    "CVaR": "sorel.SpectralRiskRegressor(risk='cvar:0.1').fit(X, y)",
    "ESRM": "sorel.SpectralRiskRegressor(risk='esrm:2').fit(X, y)",
    "logistic": "sorel.SpectralRiskClassifier(risk='cvar:0.5').fit(X, y > 0)",
    "multinomial": "sorel.SpectralRiskClassifier(risk='cvar:0.5').fit(X, np.digitize(y, [-1, 1]))",
    "elastic net": "sorel.SpectralRiskRegressor(risk='cvar:0.1', l1=0.01).fit(X, y)",
    "quantile": "sorel.QuantileRegressor(quantile=0.9).fit(X, y)",
    "portfolio": "sorel.SpectralRiskPortfolio(risk='cvar:0.05').fit(0.01 * X)",
}

_SCRIPT = """
import json, time
begin = time.process_time()
import sklearn.linear_model
plain = time.process_time() - begin
import numpy as np
rng = np.random.default_rng(0)
X = rng.standard_normal((500, 5))
y = X.sum(axis=1) + rng.standard_normal(500)
begin = time.process_time()
import sorel
{fit}
first = time.process_time() - begin
begin = time.perf_counter()
{fit}
print(json.dumps([plain, first, time.perf_counter() - begin]))
"""


def measure(kind: str) -> list[float]:
    """Seconds: scikit-learn's import, ours with the first fit beyond it, and the second fit."""
    script = [sys.executable, "-W", "ignore", "-c", _SCRIPT.format(fit=KINDS[kind])]
    done = subprocess.run(script, check=True, capture_output=True, text=True)
    return [float(value) for value in json.loads(done.stdout)]


def main() -> None:
    """Print one line for each kind of fit, the least of three processes."""
    print(f"{'fit':12} {'sklearn':>8} {'beyond it':>9} {'again (ms)':>10}")
    for kind in KINDS:
        runs = [measure(kind) for _ in range(3)]
        plain, first, again = (min(column) for column in zip(*runs, strict=True))
        print(f"{kind:12} {plain:8.2f} {first:9.2f} {1e3 * again:10.2f}")


if __name__ == "__main__":
    main()
