"""The running mean of the policy's weights, over updates."""

from unstable.learners.model.policy import Policy
from unstable.learners.model.second_lora import SecondLoRA
from unstable.models.adapters import export_adapter, load_weights
from unstable.types import Adapter


class Average(SecondLoRA):
    """average <- decay x average + (1 - decay) x policy after each update, from the start on.

    In games that circle around an equilibrium the mean is nearer to it than the last policy.
    """

    def __init__(self, policy: Policy, decay: float) -> None:
        super().__init__(policy)
        self._model = policy.model
        self._decay = decay

    def after_update(self, _: int) -> None:
        """Follow the policy, which has just become a version."""
        self.follow(self._decay)

    def export(self, name: str) -> Adapter:
        """The mean as an adapter."""
        with self.in_place():
            return export_adapter(self._model, name)

    def load(self, adapter: Adapter) -> None:
        """Become what `export` gave."""
        with self.in_place():
            load_weights(self._model, adapter)
