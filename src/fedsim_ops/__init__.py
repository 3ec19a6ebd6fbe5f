"""Operating a party: certificates, relay, telemetry, `fedsim link`, Ray, key servers.

Importing this package registers the commands ``fedsim certs``, ``link``, ``encode``, ``relay`` and ``serve``, the
engine ``ray`` and the services that the core calls.
"""

from fedsim.registry import COMMANDS, ENGINES, SERVICES

COMMANDS.register("certs", "fedsim_ops.cli.certs_commands:app", section="Agree on a job")
COMMANDS.register("link", "fedsim_ops.cli.link_commands:link")
COMMANDS.register("encode", "fedsim_ops.cli.link_commands:encode")
COMMANDS.register("relay", "fedsim_ops.cli.relay_command:relay")
COMMANDS.register("serve", "fedsim_ops.cli.serve_command:serve")
ENGINES.register(
    "ray", "fedsim_ops.ray_engine:RayEngine", summary="A Ray cluster, given or started here.", address=True
)
for _service, _function in (
    ("connection", "open_connection"),
    ("grpc-target", "grpc_target"),
    ("relay-registration", "RelayRegistration"),
    ("relay-check", "check_relay"),
):
    SERVICES.register(_service, f"fedsim_ops.outbound:{_function}")
SERVICES.register("issue-certificates", "fedsim_ops.authority:issue_certificates")
SERVICES.register("request-certificate", "fedsim_ops.authority:create_request")
SERVICES.register("connection-guard", "fedsim_ops.connection_guard:ConnectionGuard")
SERVICES.register("connection-limit", "fedsim_ops.connection_guard:connection_limit")
SERVICES.register("tls-probe", "fedsim_ops.tls_probe:probe_tls")
SERVICES.register("key-server", "fedsim_ops.key_server:read_entry")
SERVICES.register("database", "fedsim_ops.sql_drivers:open_database")
SERVICES.register("telemetry", "fedsim_ops.telemetry:observe_party")
SERVICES.register("json-log", "fedsim_ops.telemetry:JsonLogFormatter")
SERVICES.register("tracking-hook", "fedsim_ops.tracking:tracking_hook")
