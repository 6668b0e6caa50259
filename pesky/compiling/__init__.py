"""What both engines compile with: decorators, a cache that notices edits, and subnormal numbers."""
