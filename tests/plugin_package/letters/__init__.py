"""Plug-ins of a service that writes letters: what docs/extending.md shows, as a package."""
