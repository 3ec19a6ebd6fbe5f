"""Ways to carry messages: within this process, or by gRPC."""
