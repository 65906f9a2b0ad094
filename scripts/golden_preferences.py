"""Prints TRL's preference losses on fixed numbers, in double precision.

tests/learners/test_preference_losses.py contains its output. TRL is no dependency; run this in an
environment with trl==0.12.2 and transformers==4.46.3: `python scripts/golden_preferences.py`.
"""

from types import SimpleNamespace

import torch
import trl
from trl.trainer.cpo_trainer import CPOTrainer
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.kto_trainer import KTOTrainer

CHOSEN, REJECTED = [-10.0, -3.5, -20.25], [-12.0, -2.0, -20.0]
REFERENCE_CHOSEN, REFERENCE_REJECTED = [-11.0, -4.0, -18.0], [-11.5, -3.0, -22.5]
CHOSEN_LENGTHS, REJECTED_LENGTHS = [4.0, 2.0, 9.0], [5.0, 1.0, 8.0]
SAMPLED, REFERENCE_SAMPLED = [-9.0, -4.5, -6.0, -11.0], [-9.75, -4.25, -7.5, -10.0]
ALONE = SimpleNamespace(device="cpu", gather=lambda value: value)


def printed(name: str, losses: torch.Tensor) -> None:
    print(f"{name}: {[round(loss, 8) for loss in losses.tolist()]}")


def main() -> None:
    print("trl", trl.__version__)
    tensors = map(
        lambda numbers: torch.tensor(numbers, dtype=torch.float64),
        (
            CHOSEN,
            REJECTED,
            REFERENCE_CHOSEN,
            REFERENCE_REJECTED,
            CHOSEN_LENGTHS,
            REJECTED_LENGTHS,
            SAMPLED,
            REFERENCE_SAMPLED,
        ),
    )
    chosen, rejected, ref_chosen, ref_rejected, longer, shorter, sampled, ref_sampled = tensors
    plain = {"accelerator": ALONE, "reference_free": False, "f_divergence_type": "reverse_kl"}
    for name, kind, beta, smoothing in (
        ("dpo", "sigmoid", 0.1, 0.0),
        ("cdpo", "sigmoid", 0.5, 0.2),
        ("slic", "hinge", 0.3, 0.0),
    ):
        given = SimpleNamespace(**plain, loss_type=kind, beta=beta, label_smoothing=smoothing)
        losses, *_ = DPOTrainer.dpo_loss(given, chosen, rejected, ref_chosen, ref_rejected)
        printed(name, losses)
    given = SimpleNamespace(**plain, loss_type="ipo", beta=0.4, label_smoothing=0.0)
    means = (chosen / longer, rejected / shorter, ref_chosen / longer, ref_rejected / shorter)
    printed("ipo", DPOTrainer.dpo_loss(given, *means)[0])
    for name, smoothing in (("simpo", 0.0), ("smoothed simpo", 0.1)):
        given = SimpleNamespace(
            accelerator=ALONE,
            loss_type="simpo",
            beta=2.0,
            simpo_gamma=1.0,
            label_smoothing=smoothing,
        )
        printed(name, CPOTrainer.cpo_loss(given, chosen / longer, rejected / shorter)[0])
    given = SimpleNamespace(
        accelerator=ALONE,
        calculate_KL=True,
        loss_type="kto",
        beta=0.3,
        desirable_weight=1.5,
        undesirable_weight=0.5,
    )
    losses, _, _, kl = KTOTrainer.kto_loss(
        given, chosen, rejected, sampled, ref_chosen, ref_rejected, ref_sampled
    )
    printed("kto, desirable and then undesirable", losses)
    print("its kl:", float(kl))


if __name__ == "__main__":
    main()
