"""Hypothesis strategies for reports with everything that JSON has trouble with."""

from hypothesis import strategies as st

from keras_nanguard.report import Incident, RunReport, StepRecord
from keras_nanguard.report.record import ACTIONS, REASONS, STEP_OUTCOMES
from keras_nanguard.report.run_report import RUN_OUTCOMES, TOTALS

whole = st.integers(0, 2**63)
number = st.none() | st.floats()  # NaN and both infinities among them
leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=8)
nests = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=6
)
settings_dicts = st.dictionaries(st.text(max_size=5), nests, max_size=4)
incidents = st.builds(
    Incident,
    step=st.none() | whole,
    epoch=st.none() | whole,
    batch=st.none() | whole,
    replica=st.none() | whole,
    action=st.sampled_from(ACTIONS),
    reason=st.sampled_from(REASONS),
    diagnosis=st.none() | settings_dicts,
    loss=number,
    grad_norm=number,
    message=st.text(max_size=30),
)
step_records = st.builds(
    StepRecord,
    step=whole,
    loss=number,
    grad_norm=number,
    learning_rate=number,
    loss_scale=number,
    outcome=st.sampled_from(STEP_OUTCOMES),
)
reports = st.builds(
    RunReport,
    settings=settings_dicts,
    versions=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    outcome=st.sampled_from(RUN_OUTCOMES),
    duration=st.floats(0, 1e9),
    judged=st.text(max_size=20),
    incidents=st.lists(incidents, max_size=6),
    steps=st.lists(step_records, max_size=4),
    notes=st.lists(st.text(max_size=300), max_size=25),
    totals=st.dictionaries(st.sampled_from(TOTALS), whole),
)
