"""The paper's critical C: how slow a start vSGD-l needs, against the number of parameters.

A run is *unstable* if within its horizon it diverges (the engine stops it: parameters that are not
finite, or a running loss a million times the first), or if the mean loss over a window of 100 samples
exceeds 10 times the loss of the untrained network. A start that is slow enough makes the loss fall from
the first window on, one that is not makes it rise tens to thousands of times, so ten separates the two.

The *horizon* is 1,000 samples, or 2 sqrt(d) if that is more. C divides the first rates by C^2, which
wears off like (t / C)^2; d parameters that overshoot together are too fast once (t / C)^2 d is about 1,
that is after about C / sqrt(d) samples. So for any C up to d, what a too short slow start does shows
within the horizon; a loss that rises long after it is not the start's fault.

The *critical* C is the largest on a grid from 1 to 10 d for which at least a tenth of the runs are
unstable.
"""
