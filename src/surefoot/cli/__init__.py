"""The command line. Each module below adds its commands to ``app``."""

from surefoot.cli import check, keyring, orders, settling, timeline
from surefoot.cli.app import app

__all__ = ["app", "check", "keyring", "orders", "settling", "timeline"]
