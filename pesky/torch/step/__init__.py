"""What a step does with gradients and curvatures: parts, bundles, and the three forms."""
