"""Messages of the library in the words of the command line.

Estimators name their parameters: "raise l2", "fit_intercept='mean' is for ...". Options have the
same names, but for a few, and other ways to write a value. Data is a table with a target.
"""

from __future__ import annotations

import argparse
import re

from sorel._lib.text import one_line

# Parameters whose options have another name.
_RENAMED = {
    "fit_intercept": "intercept",
    "n_jobs": "jobs",
    "random_state": "seed",
    "n_splits": "cv",
}
# Values that an option calls by another name.
_VALUES = {"intercept": {"True": "free", "False": "none"}}
# Names of parameters that are no words of a sentence otherwise.
_SHORT = ("l1", "l2", "tol")
# Advice that takes a class in Python, and an option here.
_ADVICE = {
    "SpectralRiskClassifierCV(mean_slack=0.03), or CalibratedClassifierCV of scikit-learn": (
        "or --cv --mean-slack 3%"
    )
}
# Risks as Python shows them, the innermost first.
_RISKS = (
    (r"\b(CVaR|ESRM|Extremile)\((?:\w+=)?([0-9.e+-]+)\)", lambda it: f"{it[1].lower()}:{it[2]}"),
    (r"\bDeviation\((?:risk=)?([^\s,()]+)(?:, share=1.0)?\)", r"deviation:\1"),
)
# X and y, but for labels and names, which are quoted, and for files.
_ALONE = r"(?<![\w'\"./-]){}(?![\w'\"/-]|\.\w)"
_DATA = (
    (r"\bcolumns of X\b", "columns"),
    (_ALONE.format("X"), "the table"),
    (_ALONE.format("y"), "the target"),
)


def in_options(message: object, arguments: argparse.Namespace) -> str:
    """A message with options in the place of parameters, on one line.

    Parameters
    ----------
    message : object
        What the library says.
    arguments : argparse.Namespace
        The arguments of the command, which tell what options it has.

    Examples
    --------
    >>> import argparse
    >>> from sorel.cli.words import in_options
    >>> options = argparse.Namespace(intercept=None, l2="auto")
    >>> in_options("use fit_intercept=True, or raise l2: CVaR(0.1) of X", options)
    'use --intercept free, or raise --l2: cvar:0.1 of the table'
    """
    text = one_line(message)
    if type(message).__module__.startswith("sorel.files"):
        # Errors of tables, models and checkpoints name files and columns, and no parameters.
        return text
    for advice, option in _ADVICE.items():
        text = text.replace(advice, option)
    for pattern, words in _RISKS:
        text = re.sub(pattern, words, text)
    for name in [*vars(arguments), *_RENAMED]:
        option = _RENAMED.get(name, name)
        if option not in arguments or option == "run":
            continue
        flag = "--" + option.replace("_", "-")

        def written(found: re.Match[str], option: str = option, flag: str = flag) -> str:
            value = found[1].strip("'\"")
            return f"{flag} {_VALUES.get(option, {}).get(value, value)}"

        text = re.sub(rf"(?<![\w-]){name}=('[^']*'|\"[^\"]*\"|[\w.+:-]*[\w])", written, text)
        if "_" in name or name in _SHORT:
            text = re.sub(rf"(?<![\w-]){name}\b(?!=)", flag, text)
    for pattern, words in _DATA:
        text = re.sub(pattern, words, text)
    return text
