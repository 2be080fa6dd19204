"""Envoy's documents, checked against Envoy's own message types."""

from dataclasses import replace
from typing import Any

import pytest
from envoy.config.bootstrap.v3 import bootstrap_pb2
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2, tls_pb2
from google.protobuf import json_format

from lorafleet_gateway.core.envoy_bootstrap import build_bootstrap
from lorafleet_gateway.core.envoy_clusters import (
    build_clusters,
    build_endpoints,
    build_roots,
    cluster_name,
    endpoints_file,
)
from lorafleet_gateway.core.envoy_listeners import build_listeners, build_tls_secret
from lorafleet_gateway.core.envoy_names import EnvoyOptions, TlsOptions
from lorafleet_gateway.core.records import ObjectKey, Replica
from tests.gateway.core.records import make_replica

OPTIONS = EnvoyOptions(
    name="g",
    listen_host="0.0.0.0",
    listen_port=8080,
    admin_port=19000,
    picker_port=9002,
    log_port=9004,
    picker_seconds=10,
    max_body=7,
    request_seconds=60,
    max_connections=100,
    config_dir="/run",
)
KEY = ("serving", "smol.v1")


def plain(document: dict[str, Any], message: Any) -> Any:
    """Parse everything but the typed parts, whose types the running Envoy checks in the gateway's tests."""
    return json_format.ParseDict(without_types(document), message)


def without_types(value: Any) -> Any:
    if isinstance(value, dict):
        typed = ("typed_config", "typed_extension_protocol_options", "@type")
        return {key: without_types(each) for key, each in value.items() if key not in typed}
    return [without_types(each) for each in value] if isinstance(value, list) else value


def test_the_bootstrap_keeps_admin_and_picker_on_loopback() -> None:
    bootstrap = plain(build_bootstrap(OPTIONS), bootstrap_pb2.Bootstrap())
    assert bootstrap.admin.address.socket_address.address == "127.0.0.1"
    for cluster, port in zip(bootstrap.static_resources.clusters, (9002, 9004), strict=True):
        address = cluster.load_assignment.endpoints[0].lb_endpoints[0].endpoint.address.socket_address
        assert (address.address, address.port_value) == ("127.0.0.1", port)
    (listener,) = bootstrap.static_resources.listeners
    assert listener.address.socket_address.port_value == 8080
    assert bootstrap.dynamic_resources.cds_config.path_config_source.path == "/run/cds.json"


def test_a_pool_is_a_cluster_that_reads_its_own_file() -> None:
    (resource,) = build_clusters([KEY], "/run")["resources"]
    cluster = plain(resource, cluster_pb2.Cluster())
    assert cluster.name == cluster_name(KEY)
    assert cluster.eds_cluster_config.eds_config.path_config_source.path == f"/run/{endpoints_file(KEY)}"


@pytest.mark.parametrize("other", [("serving", "v1"), ("serving-smol", "v1")])
def test_two_pools_never_share_a_name(other: ObjectKey) -> None:
    assert cluster_name(KEY) != cluster_name(other)


def test_endpoints_are_the_serving_addresses() -> None:
    replicas = (make_replica(1), Replica("[fd00::1]:8000", "[fd00::1]:8001"))
    (resource,) = build_endpoints(KEY, replicas)["resources"]
    assignment = plain(resource, endpoint_pb2.ClusterLoadAssignment())
    found = [each.endpoint.address.socket_address for each in assignment.endpoints[0].lb_endpoints]
    assert [(each.address, each.port_value) for each in found] == [("10.0.0.1", 8000), ("fd00::1", 8000)]
    assert assignment.cluster_name == cluster_name(KEY)


def test_engines_with_tls_are_in_a_place_of_their_own_and_must_show_their_pools_name() -> None:
    replicas = (make_replica(1), Replica("10.0.0.2:8000", "10.0.0.2:8001", tls=True))
    (resource,) = build_endpoints(KEY, replicas)["resources"]
    plain_ones, marked = plain(resource, endpoint_pb2.ClusterLoadAssignment()).endpoints
    assert not plain_ones.lb_endpoints[0].metadata.filter_metadata
    assert marked.lb_endpoints[0].endpoint.address.socket_address.address == "10.0.0.2"
    assert marked.lb_endpoints[0].metadata.filter_metadata["envoy.transport_socket_match"]["tls"]
    assert plain_ones.locality != marked.locality, "else Envoy keeps the plain connections of an address"

    (document,) = build_clusters([KEY], "/run")["resources"]
    (chosen,) = plain(document, cluster_pb2.Cluster()).transport_socket_matches
    assert chosen.match["tls"]
    assert not document.get("transport_socket"), "who is not marked speaks plain HTTP"
    (match,) = document["transport_socket_matches"]
    socket = json_format.ParseDict(
        without_types(match["transport_socket"]["typed_config"]), tls_pb2.UpstreamTlsContext()
    )
    assert socket.sni == "smol.v1.serving.engines.lorafleet"
    validation = socket.common_tls_context.combined_validation_context
    (name,) = validation.default_validation_context.match_typed_subject_alt_names
    assert name.matcher.exact == socket.sni
    source = validation.validation_context_sds_secret_config
    (secret,) = build_roots("PEM")["resources"]
    assert secret["name"] == source.name
    assert plain(secret, secret_pb2.Secret()).validation_context.trusted_ca.inline_string == "PEM"
    assert source.sds_config.path_config_source.path == "/run/engine-roots.json"
    assert build_roots(None)["resources"] == [], "which lets no handshake succeed"


def test_with_tls_the_plain_port_answers_probes_only() -> None:
    options = replace(OPTIONS, tls=TlsOptions(port=8443, folder="/tls"))
    clients, probes = (plain(each, listener_pb2.Listener()) for each in build_listeners(options))
    assert clients.address.socket_address.port_value == 8443
    assert clients.filter_chains[0].transport_socket.name == "envoy.transport_sockets.tls"
    assert probes.address.socket_address.port_value == 8080
    _, document = build_listeners(options)
    manager = document["filter_chains"][0]["filters"][0]["typed_config"]
    (route,) = manager["route_config"]["virtual_hosts"][0]["routes"]
    assert route["direct_response"]["status"] == 400
    assert "8443" in route["direct_response"]["body"]["inline_string"]


def test_the_certificate_is_read_from_the_mounted_secret() -> None:
    (resource,) = build_tls_secret(TlsOptions(port=8443, folder="/tls"))["resources"]
    certificate = plain(resource, secret_pb2.Secret()).tls_certificate
    assert (certificate.certificate_chain.filename, certificate.private_key.filename) == (
        "/tls/tls.crt",
        "/tls/tls.key",
    )
    assert certificate.watched_directory.path == "/tls", "so that a renewed one is taken without a restart"


def test_near_the_end_of_memory_the_largest_streams_go_first() -> None:
    bootstrap = plain(build_bootstrap(replace(OPTIONS, memory=1000)), bootstrap_pb2.Bootstrap())
    actions = bootstrap.overload_manager.actions
    assert [each.name.rpartition(".")[2] for each in actions] == [
        "reset_high_memory_stream",
        "shrink_heap",
        "stop_accepting_requests",
    ]
    heap = build_bootstrap(replace(OPTIONS, memory=1000))["overload_manager"]["resource_monitors"][1]
    assert 0 < heap["typed_config"]["max_heap_size_bytes"] < 1000


def test_without_a_limit_of_memory_only_connections_are_bounded() -> None:
    monitors = plain(build_bootstrap(OPTIONS), bootstrap_pb2.Bootstrap()).overload_manager
    assert len(monitors.resource_monitors) == 1
    assert not monitors.actions
