"""The paper's experiments and data, and the demo."""
