"""Public reports of resumed runs whose scripts other tests have, each with its verdict."""

from __future__ import annotations

import ast

from tests.cases import cases
from tests.docs.pages import ROOT

_SCHEDULERS = "tests/hooks/state/parts/optimizers/test_optimizer.py::test_every_scheduler_goes_on_bit_for_bit"
_CUT = "test_a_trainer_that_is_cut_ends_as_one_that_never_was"
#: The repository and the number of the report: what happens there, what is said (nothing: exact), and the test.
ELSEWHERE = {
    "pytorch/pytorch#36650": (
        "A loader has no position within a pass, and begins it again.",
        "",
        "tests/hooks/state/parts/test_resumable_loader.py::test_a_run_that_is_cut_anywhere_ends_with_the_same_bits",
    ),
    "NVIDIA/DALI#1378": (
        "The random state of the augmentation cannot be saved.",
        "",
        "tests/hooks/state/parts/loaders/test_generators.py::test_a_generator_inside_a_loader_goes_on",
    ),
    "pytorch/pytorch#60265": (
        "The learning rate jumps, because the scheduler is built with `last_epoch`.",
        "",
        _SCHEDULERS,
    ),
    "Lightning-AI/pytorch-lightning#15462": (
        "The inner state of the one-cycle schedule is not restored.",
        "",
        _SCHEDULERS,
    ),
    "Deci-AI/super-gradients#1469": (
        "The state of a cyclic schedule holds a function, and cannot be saved.",
        "",
        _SCHEDULERS,
    ),
    "victoresque/pytorch-template#68": (
        "The scheduler is in no checkpoint, and begins anew.",
        "a scheduler of optimizer is not registered",
        "tests/hooks/state/misuse/test_unregistered.py::test_unregistered_scheduler_is_named_before_the_first_step",
    ),
    "pytorch/pytorch#35047": (
        "A resumed model diverges, with Adam, Adagrad and SGD.",
        "",
        "tests/hooks/state/parts/optimizers/test_optimizer.py::test_every_optimizer_goes_on_bit_for_bit",
    ),
    "pytorch/pytorch#43706": (
        "Moments are loaded in the dtype of the weights.",
        "",
        "tests/hooks/state/parts/optimizers/test_optimizer.py::test_moments_keep_their_own_dtype",
    ),
    "IntelLabs/distiller#76": (
        "The masks of a pruned model are ignored at a resume.",
        "",
        "tests/hooks/state/parts/test_module.py::test_masks_and_observers_come_back",
    ),
    "Lightning-AI/pytorch-lightning#19764": (
        "A Trainer begins the epoch again in which it was cut.",
        "",
        f"tests/integrations/test_lightning.py::{_CUT}",
    ),
    "huggingface/transformers#11323": (
        "A Trainer that is resumed has substantially other results.",
        "",
        f"tests/integrations/test_transformers.py::{_CUT}",
    ),
}


@cases("test", sorted({test for _, _, test in ELSEWHERE.values()}))
def test_a_report_names_a_test_that_exists(test: str) -> None:
    file, _, name = test.partition("::")
    body = ast.parse((ROOT / file).read_text()).body
    assert name in [node.name for node in body if isinstance(node, ast.FunctionDef)]
