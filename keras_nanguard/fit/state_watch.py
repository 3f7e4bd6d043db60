"""Whether the training state is finite, looked at from the host between steps."""

from .. import backend
from ..errors import NonFiniteTrainingError
from ..report.wording import some
from ..snapshots import training_state
from ..state import variable_name

_KEY = "_nanguard_state_check"  # in the model's `__dict__`, past Keras' tracking


class StateWatch:
    """Whether the training state is finite; what was not from the start is known and not looked at."""

    def __init__(self, model):
        self._model, self._check, self.known = model, None, set()

    def begin(self):
        """Before the first step, where the variables exist already. Returns the names of those that are not finite."""
        if self._check is not None or not (self._model.built and self._model.optimizer.built):
            return []
        self._look_at(self._variables())
        if self._check():
            return []
        names = self._check.names()
        self.known = set(names)
        self._look_at([v for v in self._variables() if variable_name(v) not in self.known])
        return names

    def _variables(self):
        return training_state(self._model)

    def _look_at(self, variables):
        """The check is compiled, so it is kept with the model for the next `fit`."""
        kept = vars(self._model).setdefault(_KEY, {})
        key = tuple(map(id, variables))
        if key not in kept:
            kept.clear()
            kept[key] = backend.active().StateCheck(variables)  # holds the variables, so their ids stay theirs
        self._check = kept[key]

    def finite(self):
        backend.active().sync(self._model)
        if self._check is None:
            self._look_at(self._variables())
        return self._check()

    def names(self):
        return self._check.names()

    def refuse(self):
        """Raised where nothing is kept to go back to."""
        raise NonFiniteTrainingError(
            f"Finite gradients were turned into values that are not finite by the optimizer's update: {some(self.names())}. No copy was kept. "
            "Lower the learning rate (or look for an infinite schedule, or an epsilon that is 0 in float16), and add "
            "keras_nanguard.NanGuardCallback() to the callbacks of fit: it keeps the last good weights and puts them back."
        )
