"""Which layer, which pass, which node: bisection of a model against its reference."""
