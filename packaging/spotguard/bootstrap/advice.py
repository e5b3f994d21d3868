"""Advice at the head of user-data: how to create the machine on each cloud, and the needs of its image."""

from __future__ import annotations

import re

from .plan import BootstrapPlan

_AWS = """\
The machine is to be created by run-instances with
  --user-data file://this-file
  --iam-instance-profile Name=…                    a role with `spotguard bootstrap aws --policy`
  --instance-market-options MarketType=spot        the notice comes 120 s before the end
  --metadata-options HttpTokens=required           for jobs in containers, one hop further away: ,HttpPutResponseHopLimit=2{off}
or by a launch template, whose user-data has to be base64 already (base64 -w0 this-file), with --launch-template-data
  {{"UserData": "BASE64", "IamInstanceProfile": {{"Name": "…"}}, "MetadataOptions": {{"HttpTokens": "required"}},
   "InstanceMarketOptions": {{"MarketType": "spot"}}}}
and without InstanceMarketOptions for a group that mixes instance types: it says that itself."""

_GCP = """\
The machine is to be created (instances create, instance-templates create) with
  --provisioning-model=SPOT --instance-termination-action=DELETE
  --preemption-notice-duration=120s      without it the machine is gone 30 s after the notice{window}
  --scopes=cloud-platform                the default scopes may read a bucket, and no more
  --service-account=…                    one with `spotguard bootstrap gcp --policy`
  --metadata-from-file={key}=this-file   {image}"""

_AZURE = """\
The machine is to be created (vm create, vmss create) with
  --priority Spot --eviction-policy Delete --max-price -1   evicted when the machines are wanted back, not by price
  --assign-identity …                                       a managed identity with `spotguard bootstrap azure --policy`
  --custom-data this-file                                   not --user-data: only the former is run
Scale sets that are not Spot: --terminate-notification-time 5 (minutes); Azure knows none for Spot, whose eviction
comes with 30 s and less."""

_STAYS = (
    "When the job is over, and where this fails, the machine stays on and is paid for: print this with {way}."
)
_READ = "To read the script below: sed -n 's/^      //p' this-file | base64 -d | gunzip"
#: How to end the machine, if `--then poweroff` is not enough: Azure bills a machine that was switched off from inside.
_WAYS = {"azure": "a --then that deallocates it, as docs/how-to/launch/bootstrap.md has it"}


def advice(plan: BootstrapPlan, *, startup_script: bool = False) -> list[str]:
    """Return the lines of advice for the head of the printed text."""
    if plan.cloud == "aws":
        off = re.search(r"\b(poweroff|shutdown)\b", plan.then)
        text = _AWS.format(
            off="\n  --instance-initiated-shutdown-behavior terminate  what --then switches off is gone"
            if off
            else ""
        )
    elif plan.cloud == "azure":
        text = _AZURE
    else:
        window = "; with it, print this with --window 120" if "window" not in plan.run else ""
        text = _GCP.format(
            window=window,
            key="startup-script" if startup_script else "user-data",
            image="any image"
            if startup_script
            else "an image with cloud-init: Ubuntu; for Debian's, --startup-script",
        )
    return [
        "",
        *text.splitlines(),
        *([] if startup_script else [_READ]),
        *_of_the_image(plan),
        *([] if plan.then else [_STAYS.format(way=_WAYS.get(plan.cloud, "--then poweroff"))]),
        f"What it does is in {_log(startup_script)}; then: journalctl -u spotguard-agent -u spotguard-run@{plan.run_id}",
        "",
    ]


def _of_the_image(plan: BootstrapPlan) -> list[str]:
    """Return a line about the programs that the image needs: a distribution's own image has neither torch nor git."""
    needs = []
    if not re.search(r"^(torch\b|spotguard\[[^]]*\b(torch|all)\b)", plan.packages, flags=re.MULTILINE):
        needs.append("torch (one for deep learning has it; --with torch installs it)")
    if re.search(r"\bgit\b", plan.prepare):
        needs.append("git, for --prepare")
    return [f"The image needs {' and '.join(needs)}: a distribution's own has none."] if needs else []


def _log(startup_script: bool) -> str:
    if startup_script:
        return "journalctl -u google-startup-scripts"
    return "/var/log/cloud-init-output.log"
