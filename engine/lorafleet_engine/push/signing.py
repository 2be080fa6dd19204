"""Signs files as OpenSSF model signing does with a key. Called by push/artifact.py; loader/signatures.py checks it."""

import base64
import hashlib
import json
from collections.abc import Mapping

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from lorafleet_engine.loader.signatures import (
    BUNDLE,
    PAYLOAD,
    PREDICATE,
    SIGNATURE,
    STATEMENT,
    envelope_bytes,
    hash_of,
    root_digest,
)


def sign(files: Mapping[str, str], model: str, key: bytes, password: bytes | None) -> bytes:
    """The bundle over name -> SHA-256 (hex) by a private key in PEM. Raises ValueError for an unusable key."""
    private = _load(key, password)
    payload = json.dumps(_statement(files, model)).encode()
    public = private.public_key()
    algorithm = hash_of(public)
    if algorithm is None:
        raise ValueError("the key is on none of P-256, P-384 and P-521")
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signature = private.sign(envelope_bytes(payload), ec.ECDSA(algorithm))
    bundle = {
        "mediaType": BUNDLE,
        "verificationMaterial": {"publicKey": {"hint": hashlib.sha256(pem).hexdigest()}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": PAYLOAD,
            "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
        },
    }
    return json.dumps(bundle).encode()


def _statement(files: Mapping[str, str], model: str) -> dict[str, object]:
    resources = [{"name": name, "algorithm": "sha256", "digest": sha} for name, sha in sorted(files.items())]
    return {
        "_type": STATEMENT,
        "subject": [{"name": model, "digest": {"sha256": root_digest(each["digest"] for each in resources)}}],
        "predicateType": PREDICATE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": [SIGNATURE],
            },
            "resources": resources,
        },
    }


def _load(key: bytes, password: bytes | None) -> ec.EllipticCurvePrivateKey:
    try:
        private = load_pem_private_key(key, password)
    except TypeError as error:
        raise ValueError("the key is encrypted: set LORAFLEET_KEY_PASSWORD") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError("the key is no private key in PEM, or the password is wrong") from error
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is no elliptic-curve key: make one by `openssl ecparam -name prime256v1 -genkey`")
    return private
