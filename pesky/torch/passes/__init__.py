"""Passes over tensors: one protocol, `bundle.Bundle`, and several ways to do it."""
