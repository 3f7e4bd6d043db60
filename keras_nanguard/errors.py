"""The exception raised where the user asked for one, or where nothing is kept to go back to."""


class NonFiniteTrainingError(RuntimeError):
    """Training met NaN or Inf and cannot go on.

    Raised by `NanGuardCallback(raise_error=True)` when its ladder is exhausted, and, without that callback, by
    `SafeModel.fit`, `SafeModel.train_on_batch` and, in eager code, `GradientGuard.apply` when finite gradients were turned
    into non-finite weights by the optimizer (there no copy is kept).

    Attributes:
        report: the `RunReport` of the run, or `None` where no run was recorded.

    Example:

    >>> try:
    ...     model.fit(x, y, callbacks=[NanGuardCallback(raise_error=True)])
    ... except NonFiniteTrainingError as error:
    ...     print(error.report)
    """

    def __init__(self, message, report=None):
        super().__init__(message)
        self.report = report
