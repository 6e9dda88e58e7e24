"""Two example passes for graphkit; see README.md."""
