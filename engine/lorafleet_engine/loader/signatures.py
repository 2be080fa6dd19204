"""Checks OpenSSF model signatures made with a key: a Sigstore bundle (`model.sig`) that lists files and their SHA-256.

Called by loader/jobs.py and, for the shape of what is signed, by push/. Only what a pool's signers have signed counts;
whoever else signed does not matter. The format: https://github.com/ossf/model-signing-spec (v1.0), an in-toto statement
in a DSSE envelope. The model-signing package is not used here: with Sigstore's clients it brings thirty packages, and
it wants a folder with every file that was signed, where the loader fetches only those that load.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512, HashAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from lorafleet_contracts.admin import ProblemCode
from lorafleet_contracts.digest import adapter_files, file_digest
from lorafleet_engine.errors import JobError

SIGNATURE = "model.sig"
SIGNATURE_BYTES = 4 << 20
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://model_signing/signature/v1.0"
HASHES: Mapping[int, type[HashAlgorithm]] = {256: SHA256, 384: SHA384, 521: SHA512}
"""By the bits of the curve."""


def check_signature(folder: Path, signers: Sequence[str]) -> None:
    """That one of `signers` (PEM) has signed every file of an adapter as it is in `folder`. Raises JobError."""
    path = folder / SIGNATURE
    if not path.is_file():
        raise _refused(f"the source has no {SIGNATURE}, and the pool takes only files that its signers have signed")
    signed = _signed_files(path.read_bytes(), signers)
    for name in adapter_files(folder):
        if name not in signed:
            raise _refused(f"{name} is not among the files that were signed")
        if signed[name] != file_digest(folder / name):
            raise _refused(f"{name} is another file than the one that was signed")


def is_signed(folder: Path, signers: Sequence[str]) -> bool:
    """Whether check_signature would say nothing."""
    try:
        check_signature(folder, signers)
    except JobError:
        return False
    return True


def envelope_bytes(payload: bytes) -> bytes:
    """What is signed: the payload as DSSE encodes it before authentication."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD), PAYLOAD.encode(), len(payload), payload)


def root_digest(digests: Iterable[str]) -> str:
    """The digest over all files' digests (hex), in their order."""
    return hashlib.sha256(b"".join(bytes.fromhex(each) for each in digests)).hexdigest()


def hash_of(key: ec.EllipticCurvePublicKey) -> HashAlgorithm | None:
    """The hash that goes with a key, None for curves that the format has none for."""
    found = HASHES.get(key.curve.key_size)
    return (
        found() if found is not None and key.curve.name.startswith("secp") and key.curve.name.endswith("r1") else None
    )


def _signed_files(bundle: bytes, signers: Sequence[str]) -> dict[str, str]:
    """Name -> SHA-256 of what one of the signers has signed. Raises JobError."""
    try:
        envelope = json.loads(bundle)["dsseEnvelope"]
        payload = base64.b64decode(envelope["payload"], validate=True)
        signatures = [base64.b64decode(each["sig"], validate=True) for each in envelope["signatures"]]
        kind = envelope["payloadType"]
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
        raise _refused(f"{SIGNATURE} is no Sigstore bundle with a DSSE envelope") from error
    keys = [_load(signer) for signer in signers]
    if kind != PAYLOAD or not any(_is_by(key, payload, each) for key in keys for each in signatures[:8]):
        raise _refused(f"{SIGNATURE} is not by one of the pool's {len(keys)} signers")
    try:
        return _files_of(json.loads(payload))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _refused(f"{SIGNATURE} lists no files as {PREDICATE} does: {error}") from error


def _files_of(statement: dict[str, Any]) -> dict[str, str]:
    predicate, subjects = statement["predicate"], statement["subject"]
    _need(statement["_type"] == STATEMENT and statement["predicateType"] == PREDICATE, "another kind of statement")
    _need(isinstance(predicate, dict) and isinstance(subjects, list) and len(subjects) == 1, "not one subject")
    resources = predicate["resources"]
    _need(all(each["algorithm"] == "sha256" for each in resources), "hashes other than whole files' SHA-256")
    files = {str(each["name"]): str(each["digest"]) for each in resources}
    _need(len(files) == len(resources), "one name twice")
    whole = root_digest(str(each["digest"]) for each in resources)
    _need(subjects[0]["digest"]["sha256"] == whole, "its digest is not that of its files")
    return files


def _need(holds: bool, otherwise: str) -> None:
    """Raises ValueError with `otherwise`."""
    if not holds:
        raise ValueError(otherwise)


def _is_by(key: ec.EllipticCurvePublicKey, payload: bytes, signature: bytes) -> bool:
    algorithm = hash_of(key)
    if algorithm is None:
        return False
    try:
        key.verify(signature, envelope_bytes(payload), ec.ECDSA(algorithm))
    except InvalidSignature:
        return False
    return True


def _load(signer: str) -> ec.EllipticCurvePublicKey:
    try:
        key = load_pem_public_key(signer.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise JobError(ProblemCode.INVALID_REQUEST, "a key of the pool's trust.signers cannot be read") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or hash_of(key) is None:
        raise JobError(
            ProblemCode.INVALID_REQUEST, "a key of the pool's trust.signers is none on P-256, P-384 or P-521"
        )
    return key


def _refused(message: str) -> JobError:
    return JobError(ProblemCode.SIGNATURE_REFUSED, message, (message,))
