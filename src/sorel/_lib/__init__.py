"""What knows no risk: threads, warnings, inputs, names."""
