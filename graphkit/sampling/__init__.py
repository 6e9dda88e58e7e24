"""How random inputs are made (see `graphkit.inputs`)."""
