"""One update, where a step is guarded by what passes its optimizer."""

import dataclasses

from . import optimizers


@dataclasses.dataclass
class Update:
    """A call of `optimizer.apply`, as it is judged.

    Attributes:
        optimizer: the one whose `apply` was called, built.
        original: its own `apply`.
        grads: as given, summed over the replicas where there are several; `None`s kept.
        variables: the variables they belong to.
    """

    optimizer: object
    original: object
    grads: list
    variables: list

    @property
    def present(self):
        return [g for g in self.grads if g is not None]

    def with_present(self, gradients):
        """`grads` with other values for those that are there."""
        filled = iter(gradients)
        return [None if g is None else next(filled) for g in self.grads]

    def with_grads(self, grads):
        return dataclasses.replace(self, grads=grads)

    def run(self, grads):
        """The optimizer's own update, its own verdict on the gradients left out."""
        if optimizers.has_loss_scale(self.optimizer):
            self.optimizer._stateful_handle_finite_grads(grads, self.variables)
        else:
            self.original(grads, self.variables)
