"""Experiments: what is measured, summarised and drawn. Needs the extra ``pesky[lab]``."""
