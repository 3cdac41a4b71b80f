"""The command line."""

from surefoot.cli.app import app

__all__ = ["app"]
