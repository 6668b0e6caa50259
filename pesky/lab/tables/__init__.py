"""One table value, and how pages show it; `pesky.cli.screen` shows it in a terminal."""
