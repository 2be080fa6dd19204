"""Signatures of adapters: ours against OpenSSF's own tool both ways, and everything that must be refused."""

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from model_signing import hashing, signing, verifying

from lorafleet_contracts.admin import ProblemCode
from lorafleet_contracts.capacity import PROJECTIONS
from lorafleet_contracts.digest import adapter_files, file_digest, folder_digest
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.jobs import Jobs
from lorafleet_engine.loader.messages import InspectAdapter, LoaderConfig
from lorafleet_engine.loader.origin import Origin
from lorafleet_engine.loader.signatures import SIGNATURE, check_signature
from lorafleet_engine.push.signing import sign
from tests.engine.support.tiny import TinyModel

PEM, PKCS8 = Encoding.PEM, PrivateFormat.PKCS8
Keys = tuple[bytes, str]


def make_keys(curve: ec.EllipticCurve | None = None) -> Keys:
    private = ec.generate_private_key(curve or ec.SECP256R1())
    public = private.public_key().public_bytes(PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    return private.private_bytes(PEM, PKCS8, NoEncryption()), public


@pytest.fixture(scope="module")
def keys() -> Keys:
    return make_keys()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "support"
    made.mkdir()
    (made / "adapter_config.json").write_text("{}")
    (made / "adapter_model.safetensors").write_bytes(b"weights")
    return made


def put_signature(folder: Path, private: bytes, files: dict[str, str] | None = None) -> dict[str, object]:
    shas = files if files is not None else {name: file_digest(folder / name) for name in adapter_files(folder)}
    bundle = sign(shas, "support", private, None)
    (folder / SIGNATURE).write_bytes(bundle)
    found: dict[str, object] = json.loads(bundle)
    return found


def refusal(folder: Path, *signers: str) -> str:
    with pytest.raises(JobError) as caught:
        check_signature(folder, signers)
    assert caught.value.code == ProblemCode.SIGNATURE_REFUSED
    return caught.value.message


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()])
def test_one_of_the_signers_is_enough(curve: ec.EllipticCurve, folder: Path, keys: Keys) -> None:
    private, public = make_keys(curve)
    put_signature(folder, private)
    check_signature(folder, [keys[1], public])


def test_unsigned_and_wrongly_signed_files_are_refused(folder: Path, keys: Keys) -> None:
    assert "no model.sig" in refusal(folder, keys[1])
    put_signature(folder, make_keys()[0])
    assert "not by one of the pool's 1 signers" in refusal(folder, keys[1])


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_files_changed_after_the_signature_are_refused(name: str, folder: Path, keys: Keys) -> None:
    put_signature(folder, keys[0])
    (folder / name).write_bytes(b"tampered")
    assert f"{name} is another file" in refusal(folder, keys[1])


def test_a_file_that_loads_and_was_not_signed_is_refused(folder: Path, keys: Keys) -> None:
    put_signature(folder, keys[0])
    (folder / "chat_template.jinja").write_text("{{ 1 }}")
    assert "chat_template.jinja is not among" in refusal(folder, keys[1])


def test_a_changed_list_of_files_is_no_longer_signed(folder: Path, keys: Keys) -> None:
    bundle = put_signature(folder, keys[0])
    envelope = bundle["dsseEnvelope"]
    assert isinstance(envelope, dict)
    payload = base64.b64decode(envelope["payload"])
    envelope["payload"] = base64.b64encode(payload.replace(b"support", b"SUPPORT")).decode()
    (folder / SIGNATURE).write_text(json.dumps(bundle))
    assert "not by one of" in refusal(folder, keys[1])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"dsseEnvelope": {"payload": "!", "signatures": []}}',
        b'{"dsseEnvelope": 3}',
    ],
)
def test_what_is_no_bundle_is_refused(content: bytes, folder: Path, keys: Keys) -> None:
    (folder / SIGNATURE).write_bytes(content)
    assert "no Sigstore bundle" in refusal(folder, keys[1])


def test_keys_of_other_kinds_are_the_pool_s_fault(folder: Path, keys: Keys) -> None:
    put_signature(folder, keys[0])
    rsa_key = rsa.generate_private_key(65537, 2048).public_key().public_bytes(PEM, PublicFormat.SubjectPublicKeyInfo)
    for signer in (rsa_key.decode(), make_keys(ec.BrainpoolP256R1())[1], "-----BEGIN PUBLIC KEY-----\nx"):
        with pytest.raises(JobError) as caught:
            check_signature(folder, [signer])
        assert caught.value.code == ProblemCode.INVALID_REQUEST


def test_openssf_s_own_tool_agrees_both_ways(folder: Path, keys: Keys, tmp_path: Path) -> None:
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    private.write_bytes(keys[0])
    public.write_text(keys[1])
    signing.Config().use_elliptic_key_signer(private_key=private).sign(folder, folder / SIGNATURE)
    check_signature(folder, [keys[1]])

    put_signature(folder, keys[0])
    config = hashing.Config().set_ignored_paths(paths=[folder / SIGNATURE], ignore_git_paths=True)
    verifier = verifying.Config().use_elliptic_key_verifier(public_key=public).set_hashing_config(config)
    verifier.verify(folder, folder / SIGNATURE)
    (folder / "adapter_config.json").write_text("tampered")
    with pytest.raises(ValueError, match="mismatch"):
        verifier.verify(folder, folder / SIGNATURE)


@pytest.fixture
def jobs(tiny: Callable[[str], TinyModel], tmp_path: Path) -> Jobs:
    model = tiny("llama")
    return Jobs(
        LoaderConfig(
            host_dir=str(tmp_path / "host"),
            host_bytes=1 << 30,
            disk_dir=str(tmp_path / "disk"),
            disk_bytes=1 << 30,
            volumes_dir=str(tmp_path / "volumes"),
            dtype="float32",
            base_names=("tiny",),
            target_modules=PROJECTIONS,
            base_dir=str(model.directory),
        )
    )


def test_the_loader_keeps_only_what_a_signer_signed(
    jobs: Jobs, tiny: Callable[[str], TinyModel], keys: Keys, tmp_path: Path
) -> None:
    source = tmp_path / "volumes" / "v" / "a"
    shutil.copytree(tiny("llama").adapters["all-r8"], source)
    digest = folder_digest(source, adapter_files(source))
    trusting, free = Origin("pvc://v/a", signers=(keys[1],)), Origin("pvc://v/a")

    with pytest.raises(JobError) as caught:
        jobs.inspect(InspectAdapter(1, trusting, None))
    assert caught.value.code == ProblemCode.SIGNATURE_REFUSED
    # What is here from before anybody was to sign is not let in by its digest alone.
    assert jobs.inspect(InspectAdapter(2, free, digest)).facts.digest == digest
    with pytest.raises(JobError):
        jobs.inspect(InspectAdapter(3, trusting, digest))
    put_signature(source, keys[0])
    assert jobs.inspect(InspectAdapter(4, trusting, digest)).facts.digest == digest
