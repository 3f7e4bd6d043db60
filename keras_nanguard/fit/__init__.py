"""How a model's `fit` comes to run the guarded step: armed before it, consumed by it, gone after it.

Keras makes the train function between building its list of callbacks and `on_train_begin`, and keeps it. A callback's
`set_model` therefore only *arms* the model; the next `make_train_function` consumes the arm and puts a guarded train
function in place, made once per compiled configuration. Any later call without an arm takes everything off again. No
hook is needed for that, because a `fit` that raises calls none.
"""
