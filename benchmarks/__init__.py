"""graphkit and its peers side by side, measured in one run."""
