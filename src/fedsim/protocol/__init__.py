"""Messages between the parties, and how they travel.

Public are the messages and parties, the transport interface and the certificates; sessions and roles are internal.
"""

__all__ = ["certificates", "messages", "tls", "transport"]
