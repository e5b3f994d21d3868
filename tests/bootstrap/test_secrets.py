"""What `spotguard bootstrap` takes for a secret: user-data is read by everything on the machine."""

from __future__ import annotations

import re

import pytest

from tests.bootstrap.user_data import NEEDED, printed, refused
from tests.cases import cases


@cases(
    "words, command, name",
    [
        ([], ["env", "AWS_ACCESS_KEY_ID=AKIA" + "X" * 16, "x"], "an AWS access key"),
        ([], ["env", "AWS_SECRET_ACCESS_KEY=abc", "x"], "an AWS secret key"),
        (["--prepare", "aws configure set aws_secret_access_key abc"], ["x"], "an AWS secret key"),
        (
            ["--prepare", "export X='DefaultEndpointsProtocol=https;AccountKey=abc'"],
            ["x"],
            "the key of an Azure",
        ),
        (["--package", "https://acme.example/x.whl?sv=1&sig=" + "a" * 30], ["x"], "an Azure SAS"),
        (["--package", "https://acme.example/x.whl?X-Amz-Signature=abc"], ["x"], "a signed URL"),
        (["--index", "https://me:secret@pypi.example/simple"], ["x"], "a password in a URL"),
        (["--with", "x @ https://me:secret@example.org/x.whl"], ["x"], "a password in a URL"),
        (["--prepare", "git clone ssh://me:secret@example.org/a"], ["x"], "a password in a URL"),
        (["--store", "s3://AKIAX:secret@b/x"], ["x"], "a password in a URL"),
        (["--prepare", "git clone https://ghp_0123456789abcdef@github.com/a/b"], ["x"], "a password in a URL"),
        (["--prepare", "pip download hf_0123456789abcdef0"], ["x"], "a token"),
        ([], ["env", "WANDB_API_KEY=0123", "x"], "a secret by its name"),
        ([], ["sh", "-c", "export DB_PASSWORD='abc'; x"], "a secret by its name"),
        ([], ["python", "train.py", "wandb.api_key=abc"], "a secret by its name"),
        ([], ["python", "train.py", "--conf", '{"client_secret": "abc"}'], "a secret by its name"),
        (["--prepare", "export HF_TOKEN='0123'"], ["x"], "a secret by its name"),
        (["--prepare", "tool --password hunter2"], ["x"], "a secret by its name"),
        (["--prepare", "tool --password 0123"], ["x"], "a secret by its name"),
        (["--prepare", "tool --api-key=abc"], ["x"], "a secret by its name"),
        (["--prepare", "curl 'https://example.org/?token=abc12345&run=x'"], ["x"], "a secret by its name"),
        (["--prepare", "hf auth login --token abcDEFghiJKLmnoPQRst"], ["x"], "a secret by its name"),
        (["--prepare", "pip download hf_" + "abcDEFghiJ" * 3 + "kLmn"], ["x"], "a token"),
        (["--prepare", "export DB_PWD=abc DB_PASS=abc"], ["x"], "a secret by its name"),
        (["--prepare", "tool --pw hunter2"], ["x"], "a secret by its name"),
        (["--prepare", "az login --service-principal -u app -p abc --tenant t"], ["x"], "a password"),
        (["--prepare", "echo 'machine h login me password abc' >~/.netrc"], ["x"], "a password"),
        (["--prepare", "wandb login abc"], ["x"], "a key of wandb's"),
        (["--prepare", "wandb login --relogin abc"], ["x"], "a key of wandb's"),
        (["--prepare", "curl -sS -u me:secret https://example.org"], ["x"], "a password"),
        (["--prepare", "docker login -u me -p secret"], ["x"], "a password"),
        (["--then", "curl -H 'Authorization: Bearer abc' https://x"], ["x"], "a header with credentials"),
        (["--then", "curl -H 'X-API-Key: abc' https://x"], ["x"], "a header with credentials"),
        (["--prepare", "echo '-----BEGIN RSA PRIVATE KEY-----'"], ["x"], "a private key"),
        (["--on-notice", "curl https://me:secret@example.org"], ["x"], "a password in a URL"),
        (["--on-notice", "curl -d x https://hooks.slack.com/services/T0/B0/" + "abc012" * 4], ["x"], "a webhook"),
        (["--then", "curl -d x https://discord.com/api/webhooks/12/" + "abc_-0" * 9], ["x"], "a webhook"),
    ],
)  # fmt: skip
def test_nothing_secret_goes_into_user_data(
    words: list[str], command: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not printed either: not even in the error."""
    said = refused(capsys, "aws", "--store", "s3://ckpt", *NEEDED, *words, "--", *command)
    assert f" holds {name}" in said
    assert "/etc/spotguard/runs/gpt-7b.env" in said
    assert not re.search(r"secret@|AKIAX|abc|aaaa|0123|hunter2|\bme:", said)


def test_a_secret_is_not_repeated_whatever_else_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor where the store is named by keys, in the words of any command."""
    for words in (["--run-id", "a/b"], ["--store", "s3://AKIAX:secret@b/x"]):
        said = refused(capsys, "aws", "--store", "ftp://x:secret@b", *NEEDED, *words, "--", "x")
        assert ":secret" not in said
    assert ":secret" not in refused(capsys, "aws", "--policy", "--store", "s3://AKIAX:secret@b/x")


@cases(
    "prepare",
    [
        "git clone https://git@github.com/a/b . && HF_TOKEN=$HF_TOKEN python fetch.py --tokenizer=gpt2",
        "git clone https://me@dev.azure.com/org/project/_git/repo",
        "git clone https://me:$GIT_TOKEN@example.org/a ssh://git@example.org/a git@example.org:a/b",
        "curl -u me:$PW -H \"Authorization: Bearer $TOKEN\" https://example.org",
        "gcloud secrets versions access latest --secret=gpt-token >~/x",
        "aws secretsmanager get-secret-value --secret-id gpt",
        "HF_TOKEN=$(cat /run/hf) wandb login $KEY && wandb offline",
        '[ "$HF_TOKEN" = none ] || [ "$API_KEY" = x ] || docker run -e HF_TOKEN image',
        "tool --password-stdin --api-key-file=k --private-key /etc/keys/x",
        "MAX_TOKEN=4096 EOS_TOKEN='</s>' python -c \"token=os.environ['HF_TOKEN']\"",
        "python hf_training_script_for_llama.py --max_tokens=5 --use-auth-token true --pad-token [PAD]",
        "python prep.py --separator-token '|' --query-token learned --split_token newline --token level",
        "python prep.py data.token=word 'data={\"token\": \"words\"}' --n-pass 2 --two-pass true",
        "ssh login-node -p 22 && PWD=/x apptainer exec --pwd /x image make",
        "curl -d preempted https://hooks.example.org/notify -H \"X-Key: $KEY\"",
        "aws s3 cp s3://ckpt/a . --sse-kms-key-id arn:aws:kms:eu-west-1:123456789012:key/0123",
    ],
)  # fmt: skip
def test_words_that_are_no_secret_are_not_taken_for_one(
    prepare: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user, a variable that is passed on, a place where a secret lies, a tokenizer's word."""
    printed(capsys, "aws", "--prepare", prepare, command=["python", "train.py", "--max_token=5"])
