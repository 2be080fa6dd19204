"""Condition types and reasons of the three kinds. Vocabulary only; the operator's core decides which one holds."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from lorafleet_contracts.resources.schema import Resource


class ConditionType(StrEnum):
    """`Reconciling` and `Stalled` are abnormal-true (kstatus); the others are normal-true."""

    READY = "Ready"
    AVAILABLE = "Available"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    ACCEPTED = "Accepted"
    VERIFIED = "Verified"
    PLACED = "Placed"
    DEGRADED = "Degraded"
    QUALITY_CHECKED = "QualityChecked"


class Reason(StrEnum):
    """Machine-readable reasons, one vocabulary for all kinds."""

    # progress and success
    READY = "Ready"
    ACCEPTED = "Accepted"
    RECONCILED = "Reconciled"
    PROGRESSING = "Progressing"
    AWAITING_REPLICA = "AwaitingReplica"
    INSPECTING = "Inspecting"
    VERIFIED = "Verified"
    VERIFIED_WITH_WARNINGS = "VerifiedWithWarnings"
    BUDGET_DIFFERS = "BudgetDiffers"
    LOADING = "Loading"
    PLACED = "Placed"
    SUSPENDED = "Suspended"
    OLD_VERSION_SERVES = "OldVersionServes"
    NOT_SERVING = "NotServing"
    CHECKING_QUALITY = "CheckingQuality"
    QUALITY_KEPT = "QualityKept"
    QUALITY_LOST = "QualityLost"
    # the user must act
    POOL_NOT_FOUND = "PoolNotFound"
    NAMESPACE_NOT_ALLOWED = "NamespaceNotAllowed"
    SOURCE_NOT_ALLOWED = "SourceNotAllowed"
    SOURCE_UNREACHABLE = "SourceUnreachable"
    SOURCE_DENIED = "SourceDenied"
    SOURCE_DRIFTED = "SourceDrifted"
    CREDENTIALS_UNUSABLE = "CredentialsUnusable"
    DIGEST_REQUIRED = "DigestRequired"
    SIGNATURE_REFUSED = "SignatureRefused"
    DIGEST_MISMATCH = "DigestMismatch"
    UNSUPPORTED_ADAPTER = "UnsupportedAdapter"
    BASE_MISMATCH = "BaseMismatch"
    TARGET_MODULE_NOT_ALLOWED = "TargetModuleNotAllowed"
    DOES_NOT_FIT = "DoesNotFit"
    BASE_DOES_NOT_FIT = "BaseDoesNotFit"
    RANK_ABOVE_CEILING = "RankAboveCeiling"
    NAME_RESERVED = "NameReserved"
    NAME_CONFLICT = "NameConflict"
    EXCEEDS_POOL_LIMIT = "ExceedsPoolLimit"
    NO_VALID_KEY = "NoValidKey"
    ADAPTER_NOT_FOUND = "AdapterNotFound"
    INVALID = "Invalid"
    # the fleet is hurt
    NO_REPLICA_READY = "NoReplicaReady"
    REDUNDANCY_LOST = "RedundancyLost"
    FULLY_REDUNDANT = "FullyRedundant"


class Condition(Resource):
    """A Kubernetes condition (metav1.Condition)."""

    type: Annotated[str, Field(max_length=316)]
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[str, Field(min_length=1, max_length=1024)]
    message: Annotated[str, Field(max_length=32768)] = ""
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]


def find_condition(conditions: Iterable[Condition], kind: ConditionType) -> Condition | None:
    """The condition of one type, or None."""
    return next((each for each in conditions if each.type == kind), None)
