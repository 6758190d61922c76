from typing import Any

# The names of the parameters of every loop, in order.
PARAMETERS: dict[str, list[str]]

# The loops take arrays and numbers alone; src/core has their signatures.
def __getattr__(name: str) -> Any: ...
