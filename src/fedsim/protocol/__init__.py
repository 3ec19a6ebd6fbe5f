"""Messages between the parties, and the transports that carry them; sessions, roles and certificates are internal."""

import os
import sys

from fedsim.protocol.messages import Message, Party, Role
from fedsim.protocol.transport import ConnectionLost, FrameStream, InProcessTransport, Listener, Transport

__all__ = ["ConnectionLost", "FrameStream", "InProcessTransport", "Listener", "Message", "Party", "Role", "Transport"]

# gRPC reads its settings once, when it is imported, so they are made here, before any module of ours imports it.
TLS13_ONLY = "grpc" not in sys.modules
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # FedSim reports failures itself
# There is no setting for the version of TLS, but this one limits the ciphers of TLS 1.2, here to one that needs a
# secret known to both sides, which nobody has: no handshake of TLS 1.2 can succeed. TLS 1.3 is not affected.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-CHACHA20-POLY1305"
