"""Secrets are removed from texts for others, whatever form they have; all else stays as it is."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.artefacts.credentials import REMOVED, Redactor, known_secrets

SECRET = "pl4nted-Secret.value"


@pytest.mark.parametrize(
    "text",
    [
        f"password: {SECRET}",
        f'{{"aws_secret_access_key":"{SECRET}","region":"eu"}}',
        f"db_password = '{SECRET} and more words'",
        f"export WANDB_API_KEY={SECRET}",
        f"curl -H 'Authorization: Bearer {SECRET}'",
        f"proxy-authorization: Basic {SECRET}",
        f"cloze x --password {SECRET} --token={SECRET}",
        json.dumps({"message": json.dumps({"api_key": SECRET})}),
        f"postgresql://user:{SECRET}@host/mlflow",
        f"s3://bucket/x?X-Amz-Signature={SECRET}",
        f"auth_token={SECRET}&part=1",
        f"hf_token: {SECRET}\n",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n{SECRET}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}\ncut off",
    ],
)
def test_values_that_are_named_like_secrets_are_removed(text: str):
    redact = Redactor(())
    assert SECRET not in redact(text)
    assert redact.count
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    "token",
    [
        "hf_" + "aB3" * 11,
        "ghp_" + "x1" * 18,
        "AKIA" + "ABCD1234" * 2,
        "sk-proj-" + "a1b2" * 8,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w",
        "glpat-" + "k" * 20,
    ],
)
def test_tokens_of_services_are_removed_wherever_they_stand(token: str):
    assert Redactor(())(f"see {token}, which was refused") == f"see {REMOVED}, which was refused"


@pytest.mark.parametrize(
    "text",
    [
        '{"tokens_per_s":5000.0,"loss":2.5,"tokens":12}',
        "pad_token: <pad>\nmask_token: <mask>",
        '"tiktoken": "0.14.0"\n"gigatoken": "0.10.0"',
        "tokenizer: {vocab_size: 600, train_bytes: 20000}",
        "key: data.filters.language",
        '{"path":"/data/tokens","password":null,"token":""}',
        "https://host/page?q=key&page=2",
        "NCCL_DEBUG=INFO CUDA_VISIBLE_DEVICES=0,1 OMP_NUM_THREADS=1",
        "KeyError: 'token' is not in the table",
        "compass: north, bypass=on",
    ],
)
def test_what_is_no_secret_stays(text: str):
    redact = Redactor(())
    assert (redact(text), redact.count) == (text, 0)


@pytest.mark.parametrize(
    "text", ["x", "-", "a.", "token", "password ", '"', "\\", "://", "eyJ", "-----BEGIN "]
)
def test_long_lines_take_no_more_than_their_length(text: str):
    # A search that goes back over the line at each of its characters would take hours.
    line = text * (1_000_000 // len(text))
    assert Redactor(["known-secret"])(line) == line


@given(st.text(max_size=40), st.text(max_size=40), st.text("abXY12%@:/+=._-", min_size=8, max_size=24))
def test_known_secrets_are_removed_from_any_text(before: str, after: str, secret: str):
    assert secret not in Redactor([secret])(f"{before} {secret} {after}")


def test_secrets_of_the_machine_are_known_from_the_places_where_programs_keep_them(tmp_path: Path):
    home, run = tmp_path / "home", tmp_path / "run"
    planted = {
        home / ".netrc": "machine host\n  login me\n  password of-netrc\n",
        home
        / ".aws/credentials": "[default]\naws_access_key_id = of-aws-id\naws_secret_access_key = of-aws/key",
        home / ".git-credentials": "https://me:of-git@host\n",
        home / ".cache/huggingface/token": "of-hugging-face\n",
        home / ".ray/auth_token": "of-ray-file",
        home / ".pgpass": "host:5432:db:me:of-pgpass\n",
        run
        / ".env": 'export SERVICE_TOKEN="of-dotenv"\nDATABASE=postgresql://u:of-dotenv-uri@h/d\nDEBUG=enabled1',
    }
    for path, text in planted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    environment = {
        "HOME": str(home),
        "MLFLOW_TRACKING_PASSWORD": "of-variable",
        "MY_API_KEY": "of-api-key",
        "STORE": "s3://id:of%40uri@host/bucket",
        "RAY_AUTH_TOKEN_PATH": str(home / ".ray" / "auth_token"),
        "RAY_AUTH_MODE": "token",
        "PWD": "/somewhere/else",
        "TOKENIZERS_PARALLELISM": "false-is-no-secret",
        "SHORT_PASSWORD": "abc",
    }
    found = known_secrets(environment, run)
    assert found == {
        *("of-netrc", "of-aws-id", "of-aws/key", "of-git", "of-hugging-face", "of-ray-file", "of-pgpass"),
        *("of-dotenv", "of-dotenv-uri", "of-variable", "of-api-key", "of%40uri"),
    }
    assert Redactor(found)("said of@uri and of-aws%2Fkey") == f"said {REMOVED} and {REMOVED}"
