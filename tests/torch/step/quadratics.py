"""Quadratic losses whose steep directions lie across the axes."""

import torch

D = torch.float64


def rotated(seed, size=20):
    """A Hessian with 90 % of its eigenvalues in (0, 1) and 10 % in (30, 60), and a start."""
    generator = torch.Generator().manual_seed(seed)
    rotation, _ = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=D))
    steep = size // 10
    soft = torch.rand(size - steep, generator=generator, dtype=D)
    eigenvalues = torch.cat([soft, 30 + 30 * torch.rand(steep, generator=generator, dtype=D)])
    return rotation * eigenvalues @ rotation.T, 3 * torch.randn(size, generator=generator, dtype=D)
