"""The release number."""

VERSION = "0.1.0"
