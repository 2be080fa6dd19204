"""A gateway or its picker dies. Streams outlive the picker; what is asked again is answered by the other gateway."""

import pytest

from e2e.faults.host import kill
from e2e.faults.stage import Stage, component, fault
from e2e.fleet import NAMESPACE, Object
from e2e.waiting import wait_until

LIBRARY_RETRIES = 2
"""What the openai client does by itself: nothing on our side can hide that the gateway it spoke to is gone."""

PATIENT_RETRIES = 20
"""With no picker left there is nobody who knows where to: the answer is 503 with `Retry-After: 1` until one is back."""


def gateways(stage: Stage) -> list[Object]:
    return stage.fleet.list("pods", NAMESPACE, component("gateway"))


def ready(pod: Object) -> bool:
    return all(each["ready"] for each in pod["status"].get("containerStatuses", [{"ready": False}]))


def test_a_gateways_pod_is_killed(stage: Stage) -> None:
    with fault(stage, "gateway-pod", "a gateway's pod killed", cuts_streams=True, retries=LIBRARY_RETRIES) as watch:
        victim = gateways(stage)[0]["metadata"]["name"]
        watch.broken()
        stage.fleet.kubectl.run("delete", "pod", victim, "-n", NAMESPACE, "--grace-period=0", "--force")
        wait_until(
            lambda: len(found := gateways(stage)) == 2 and all(map(ready, found)), seconds=60, what="two gateways again"
        )


@pytest.mark.long
def test_the_pickers_are_killed_under_streams(stage: Stage) -> None:
    """All of them at once: running streams end as they should; new requests get 503 and when to ask again."""
    with fault(stage, "picker", "every picker killed under streams", retries=PATIENT_RETRIES) as watch:
        names = [pod["metadata"]["name"] for pod in gateways(stage)]
        watch.broken()
        for name in names:
            kill(name, "python -m lorafleet_gateway")
        wait_until(lambda: all(map(ready, gateways(stage))), seconds=60, what="the pickers are back")
