"""Every container of ours runs as `restricted` wants it: seen in the process itself, not in what was asked for."""

import pytest

from e2e.client import Client
from e2e.cluster.errors import CommandFailed
from e2e.fleet import DEMO, NAMESPACE, RESTRICTED, Fleet


def containers(fleet: Fleet) -> list[tuple[str, str, str]]:
    """(namespace, pod, container) of all that run now, sidecars included."""
    return [
        (namespace, pod["metadata"]["name"], status["name"])
        for namespace in (NAMESPACE, DEMO)
        for pod in fleet.list("pods", namespace)
        for status in (*pod["status"].get("initContainerStatuses", []), *pod["status"]["containerStatuses"])
        if "running" in status["state"]
    ]


def test_no_container_has_rights_or_may_write_to_its_root(fleet: Fleet, acme: Client) -> None:
    found = containers(fleet)
    assert {name for _, _, name in found} == {"operator", "picker", "envoy", "engine", "server"}
    for namespace, pod, name in found:
        inside = ("exec", "-n", namespace, pod, "-c", name, "--", "cat", "/proc/mounts", "/proc/self/status")
        lines = [line.split() for line in fleet.kubectl.run(*inside).splitlines()]
        (options,) = (line[3] for line in lines if len(line) == 6 and line[1] == "/")
        status = {line[0].rstrip(":"): line[1] for line in lines if len(line) > 1 and line[0].endswith(":")}
        assert "ro" in options.split(","), (pod, name)
        assert status["Uid"] == "65532", (pod, name)
        assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0, (pod, name)
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2"), (pod, name)


@pytest.mark.parametrize("namespace", [NAMESPACE, DEMO])
def test_the_namespaces_admit_nothing_else(fleet: Fleet, acme: Client, namespace: str) -> None:
    found = fleet.get("namespace", namespace)
    assert found
    assert found["metadata"]["labels"].items() >= RESTRICTED.items()
    with pytest.raises(CommandFailed, match="violates PodSecurity"):
        fleet.kubectl.run("run", "root", "-n", namespace, "--image=none", "--privileged", "--dry-run=server")
