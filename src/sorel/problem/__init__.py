"""What is solved: risks, losses, penalties, and the data that make a `Problem`."""
