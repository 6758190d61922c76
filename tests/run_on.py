"""pytest on the package in another folder: python tests/run_on.py FOLDER [pytest's options].

An editable install puts the package of the checkout before any path; it is taken out first.
"""

import sys

import pytest

if __name__ == "__main__":
    sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__]
    sys.path.insert(0, sys.argv[1])
    import sorel._core

    print("testing", sorel._core.__file__)
    sys.exit(pytest.main(sys.argv[2:]))
