"""The release number."""

VERSION = "0.2.0"
