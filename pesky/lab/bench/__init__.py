"""How fast pesky is on this machine: ratios within one run, because machines differ and are noisy."""
