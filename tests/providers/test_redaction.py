"""Commands and texts as they may be shown to everybody: readable, and without what looks like a secret."""

from __future__ import annotations

import shlex

import pytest

from spotguard.providers import redaction
from spotguard.providers.redaction import fingerprints, redacted, redacted_text


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("python train.py --lr 0.1 --api-key abc --epochs 3", "python train.py --lr 0.1 --api-key … --epochs 3"),
        ("python train.py --api-key=abc --epochs 3", "python train.py --api-key=… --epochs 3"),
        ("env WANDB_API_KEY=0123 python train.py", "env WANDB_API_KEY=… python train.py"),
        ("python train.py wandb.api_key=abc", "python train.py wandb.api_key=…"),
        ("python train.py --password 'a b' --lr 1", "python train.py --password … --lr 1"),
        ("python train.py --data https://me:secret@h/x", "python train.py --data https://…@h/x"),
        ("python train.py --data=https://me:secret@h/x", "python train.py --data=…"),
        ("python train.py 'https://h/x?sv=1&sig=" + "a" * 30 + "'", "python train.py …"),
        ("python train.py --conf '{\"client_secret\": \"abc\"}' x", "python train.py --conf … x"),
        ("python train.py hf_0123456789abcdef0 AccountKey=abc", "python train.py … …"),
        ("sh -c \"export DB_PASSWORD='abc'; python train.py\"", "sh -c …"),
        ("docker login -u me -p secret", "docker login -u me -p …"),
        ("wandb login abc --relogin", "wandb login … --relogin"),
        ("python train.py --secret=hunter2 --secret hunter2", "python train.py --secret=… --secret …"),
        ("python train.py --ssh-pass hunter db.pass=hunter", "python train.py --ssh-pass … db.pass=…"),
        ("python train.py --license-key ABCD-1234-EFGH", "python train.py --license-key …"),
        ("python train.py --key 0123456789abcdef +wandb.key=abc123", "python train.py --key … +wandb.key=…"),
        ("python train.py --credential hunter2long --auth hunter2", "python train.py --credential … --auth …"),
        ("python train.py --bearer=abc123abc --passwd:hunter2", "python train.py --bearer=… …"),
        ("x --dbpass me1 --smtp_pw=me1 --passcode me1 --password1 me1", "x --dbpass … --smtp_pw=… --passcode … --password1 …"),
        ("x --pat abc123 --jwt=abc123 --creds me:fish --basic-auth me:fish", "x --pat … --jwt=… --creds … --basic-auth …"),
        ("x +db={user:me,password:swordfish} logger={api_key:swordfish}", "x +db=… logger=…"),
        ("x --header 'api-key: 0123456789abcdef' 'https://h/p?access_token=fish'", "x --header … …"),
        ("python -c \"login(token='swordfish')\" -c \"login('swordfish')\"", "python -c … -c …"),
        ("mysql -u me -phunter db", "mysql -u me … db"),
        ("sqlcmd -P hunter", "sqlcmd -P …"),
        ("redis-cli -h db -a hunter get x", "redis-cli -h db -a … get x"),
        ("python train.py --db 'Server=x;Uid=u;Pwd=hunter2;'", "python train.py --db Server=…"),
        ("python gcloud.py --secret=hunter2", "python gcloud.py --secret=…"),
        ("sh -c 'gcloud info; train --secret=hunter2'", "sh -c …"),
        ("http POST h Authorization:x 'Cookie: a=b' X-Api-Key:x", "http POST h … … …"),
        ("curl -H 'Authorization: Bearer fish' -H 'authorization: fish' h", "curl -H … -H … h"),
        ("curl -H 'Authorization: Digest fish' -H 'Api-Key: fish' h", "curl -H … -H … h"),
        ("x --otp 123456 --totp=123456 --mfa-code 123456", "x --otp … --totp=… --mfa-code …"),
        ("x --key fish --auth fish --credentials fish --api-key fish", "x --key … --auth … --credentials … --api-key …"),
        ("x pwd:fish password:fish 'pwd: fish' --conn user:me,pwd:fish", "x … … … --conn …"),
        ("x --ssh-key fish --master-key=fish --apitoken fish --passw fish", "x --ssh-key … --master-key=… --apitoken … --passw …"),
        ("x --cookie a=b --seed-phrase 'a b' --passkey fish --session-id 1a", "x --cookie … --seed-phrase … --passkey … --session-id …"),
        ("openssl rsa -passin pass:fish", "openssl rsa -passin …"),
        ("run --webhook slack:https://hooks.slack.com/services/T0/B0/x -- y", "run --webhook … -- y"),
    ],
)  # fmt: skip
def test_a_secret_is_left_out_of_a_command(command: str, shown: str) -> None:
    """Its name stays, and so does every other word."""
    assert " ".join(redacted(shlex.split(command))) == shown


@pytest.mark.parametrize(
    "command",
    [
        "",
        "torchrun --nproc-per-node 8 train.py --max_tokens=5 --use-auth-token true --pad-token [PAD]",
        "python train.py --password-stdin --api-key-file=k --private-key /etc/keys/x --token learned",
        "python train.py --password --lr 0.1 s3://bucket/data https://me@dev.azure.com/org",
        "python train.py --api-key '$WANDB_API_KEY' --secret",
        "gcloud secrets versions access latest --secret=gpt-token",
        "python train.py --n-pass 2 --two-pass true --sort-key name --image-key jpg --auth basic --key configs/v2/run_1",
        "x --cache-key resnet50_v2 data.text_key=caption2 --low-pass 5e-4 --auth oauth2client {token:5} ${API_KEY:-x}",
        "srun -pgpu-a100-80 x -pfp16-mixed -patch_size=16 -pretrained_model=resnet50; mkdir -p_run_2024_11",
        "x --key configs/a --auth digest --credentials env --otp true pwd:/x password:required --cookie-file x --session-key ./k",
        "python train.py -p 8080 -p8080:80 -pthread -p/data/run2026 --credentials gcp-2024.json PWD=/x --pwd /x",
    ],
)
def test_a_command_without_a_secret_stays_as_it_is(command: str) -> None:
    """A place where a secret lies, a variable that nobody expanded, a tokenizer's word, a user's name."""
    assert redacted(shlex.split(command)) == shlex.split(command)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("environ({'DB_PASSWORD': 'a b c', 'HOME': '/root'})", "environ({'DB_PASSWORD': …, 'HOME': '/root'})"),
        ("aws_secret_access_key = abc/def+1\nregion = eu", "aws_secret_access_key = …\nregion = eu"),
        ("Command '['mysql', '--password', 'a', 'db']' failed", "Command '['mysql', '--password', …, 'db']' failed"),
        ("Invalid header value b'Bearer abcdef0123456789.x'", "Invalid header value b'Bearer …'"),
        ("bad key\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\nAbC=\n-----END RSA PRIVATE KEY-----\nhere", "bad key\n…\nhere"),
        ("cannot load -----BEGIN PRIVATE KEY-----\nMIIE\nAbC", "cannot load …"),
        ("403 for https://h/c?sv=1&sig=" + "aB%2F" * 8 + "&se=2", "403 for https://h/c?sv=1&…&se=2"),
        ("postgresql://me:p@ss@db:5432/x refused", "postgresql://…@db:5432/x refused"),
        ("config.yaml: api_key: 0123456789abcdef", "config.yaml: api_key: …"),
        ("password:\n  swordfish7", "password:\n  …"),
        ("Config(password='it\\'s me', lr=0.1)", "Config(password=…, lr=0.1)"),
        ("key sk-ant-api03-Ab_cd-0123456789abcdef is revoked", "key … is revoked"),
        ("https://discord.com/api/webhooks/1234/abcdefghijklmnopqrst answers 404", "https… answers 404"),
        ("key nvapi-Ab_cd-0123456789abcdef is revoked", "key … is revoked"),
        ("AWS_SESSION_TOKEN=" + "a1" * 1000 + " x", "AWS_SESSION_TOKEN=… x"),
        ("{'aws_session_token': '" + "a1" * 1000 + "'}", "{'aws_session_token': …}"),
        ("Config(password='it is me\nat line 5", "Config(password=…\nat line 5"),
        ("sh: mysql --password 'a b' --api-key abc1 --lr 1", "sh: mysql --password … --api-key … --lr 1"),
        ("DB_PASSWORD: 'correct horse'", "DB_PASSWORD: …"),
        ("db:\n  user: me\n  password: swordfish\n  port: 5", "db:\n  user: me\n  password: …\n  port: 5"),
        ("config {user: me, password: swordfish, port: 5}", "config {user: me, password: … port: 5}"),
        ("  - password: swordfish  # of db", "  - password: …  # of db"),
        ("db_password: correct-horse", "db_password: …"),
        ("POST https://api.telegram.org/bot123456:AbC-0_def" + "x" * 26 + "/sendMessage: 404", "POST https://api.telegram.org/bot… 404"),
        ("token 1234567890:AA" + "x-_" * 11 + " is revoked", "token … is revoked"),
        ("sent Authorization: fish\nwith --otp 123456 and cookie='a b'", "sent Authorization: …\nwith --otp … and cookie=…"),
        ('body {\\"password\\": \\"a b\\", \\"lr\\": 1}', 'body {\\"password\\": …, \\"lr\\": 1}'),
    ],
)  # fmt: skip
def test_a_secret_is_left_out_of_a_text(text: str, shown: str) -> None:
    """Whatever its quotes, spaces and lines are; the rest stays."""
    assert redacted_text(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "password: expected a text; pad_token='<pad>' and max_token: 512",
        "KeyError: 'weight'\nshape mismatch for head.0.bias: copying [5] from [7]",
        "https://me@dev.azure.com/org answers 404; see the log of bearer tokens",
        'Missing key(s) in state_dict: "cls_token", "dist_token", "blocks.0.norm1.weight"',
        "password: required\nnew_password: Missing.\ndb_password: str, port: int",
        "wrong password: denied, try again; password:\nthen the host",
        "secret: wandb\napi_key: required; step 12345678:AA",
        "--password is missing, forward_pass: 12.345ms",
        "no such file: file:///data/hooks/run_2026_11_27/checkpoint_000001",
    ],
)
def test_a_text_without_a_secret_stays_as_it_is(text: str) -> None:
    assert redacted_text(text) == text


@pytest.mark.parametrize(
    ("word", "secret", "other"),
    [
        ("https://me:hunter@h/x?lr=1", "https://me:fish@h/x?lr=1", "https://me:hunter@h/x?lr=2"),
        ("--data=https://me:hunter@h/x", "--data=https://me:fish@h/x", "--data=https://me:hunter@h/y"),
        ('{"api_key": "hunter", "lr": 1}', '{"api_key": "fish", "lr": 1}', '{"api_key": "hunter", "lr": 2}'),
        (
            "export PASSWORD='hunter'; train 1",
            "export PASSWORD='a b'; train 1",
            "export PASSWORD='hunter'; train 2",
        ),
        ("--password=a b", "--password=c d", "--passwd=a b"),
    ],
)
def test_a_fingerprint_differs_by_the_rest_of_a_hidden_word_alone(word: str, secret: str, other: str) -> None:
    before = ["train", "--password"]
    assert fingerprints([word, *before, "hunter"]) == fingerprints([secret, *before, "fish"])
    assert fingerprints([word, *before, "hunter"]) != fingerprints([other, *before, "hunter"])


def test_each_word_of_a_command_is_judged_with_little_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[int] = []
    real = redaction.looks_secret

    def looks_secret(text: str) -> bool:
        judged.append(len(text))
        return real(text)

    monkeypatch.setattr(redaction, "looks_secret", looks_secret)
    words = ["a" * 2000] * 16
    assert redacted(words) == words
    assert sum(judged) <= 2 * sum(map(len, words))


@pytest.mark.parametrize("unit", ["password:", "pass="])
def test_the_time_for_a_text_of_names_is_in_proportion_to_its_length(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the text is the value of each name. Only a few of its characters are judged: the save at an error waits."""
    judged: list[int] = []
    real = redaction._is_secret

    def is_secret(name: str, value: str) -> bool:
        judged.append(len(value))
        return real(name, value)

    monkeypatch.setattr(redaction, "_is_secret", is_secret)
    redacted_text(unit * 2000)
    assert max(judged) <= 256
