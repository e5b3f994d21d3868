"""What user-data cannot say of itself: how the machine has to be created, for each cloud."""

from __future__ import annotations

from .plan import Plan

_AWS = """\
The machine is to be created (launch template, run-instances) with
  --metadata-options HttpTokens=required,HttpPutResponseHopLimit=2   a container is one hop further away
  --instance-market-options MarketType=spot                          the notice comes 120 s before the end
  --iam-instance-profile Name=…                                      a role with `spotguard bootstrap aws --policy`
  --user-data file://this-file"""

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


def advice(plan: Plan, *, startup_script: bool = False) -> list[str]:
    """Lines for the head of what is printed."""
    if plan.cloud == "aws":
        text = _AWS
    elif plan.cloud == "azure":
        text = _AZURE
    else:
        said = "; with it, print this with --window 120" if "window" not in plan.run else ""
        text = _GCP.format(
            window=said,
            key="startup-script" if startup_script else "user-data",
            image="any image"
            if startup_script
            else "an image with cloud-init: Ubuntu; for Debian's, --startup-script",
        )
    return [
        "",
        *text.splitlines(),
        f"What it does is in cloud-init's log and in: journalctl -u spotguard-agent -u spotguard-run@{plan.run_id}",
        "",
    ]
