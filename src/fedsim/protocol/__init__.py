"""Messages between the parties, and the transports that carry them; sessions, roles and certificates are internal."""

from fedsim.protocol.messages import Message, Party, Role
from fedsim.protocol.transport import ConnectionLost, FrameStream, InProcessTransport, Listener, Transport

__all__ = ["ConnectionLost", "FrameStream", "InProcessTransport", "Listener", "Message", "Party", "Role", "Transport"]
