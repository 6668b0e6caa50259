"""How a loss comes in: backward passes, second evaluations, losses of somebody else's loop."""
