"""What is set of a method in a run, as text: the same in rows, in options and on pages."""

from typing import TypeAlias

__all__ = ["Settings", "parse_settings", "settings_shown", "settings_text"]

Settings: TypeAlias = dict[str, str]  # canonical strings: 3e-2, 1/3


def settings_text(settings: Settings) -> str:
    """Return settings as one canonical string, such as ``eta0=3e-2 gamma=1/2``."""
    return " ".join(f"{name}={value}" for name, value in settings.items())


def parse_settings(text: str) -> Settings:
    """Undo `settings_text`."""
    return dict(part.split("=", 1) for part in text.split())


def settings_shown(settings: Settings | None) -> str:
    """Return settings for people to read; None are those of a method that has no winner."""
    if settings is None:
        return "no setting finished"
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "nothing to set"
