import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_nanguard.report import Incident, Messenger
from keras_nanguard.report.record import ACTIONS, REASONS


class Screen:
    def __init__(self, **options):
        self.now, self.lines = 0.0, []
        self.messenger = Messenger(write=self.lines.append, clock=lambda: self.now, **options)

    def skip(self, reason="loss", bar_open=False, **fields):
        self.messenger.incident(Incident(action="skip", reason=reason, **fields), bar_open=bar_open)


def test_the_first_of_a_kind_is_said_in_full():
    screen = Screen()
    screen.skip(epoch=1, batch=3, step=3)
    screen.skip("gradient", epoch=0, batch=4, step=4, replica=1, message="Layer dense.")
    assert screen.lines == [
        "nanguard: epoch 1, batch 3 (step 3): the loss is not finite; step skipped, weights unchanged.",
        "nanguard: epoch 0, batch 4 (step 4), replica 1: the gradients are not finite; step skipped, weights unchanged. "
        "Layer dense.",
    ]


def test_later_ones_are_counted_and_said_at_most_once_per_interval():
    screen = Screen()
    for step in range(5000):
        screen.now = step * 0.005  # 25 seconds
        screen.skip("gradient", step=step)
    assert screen.lines[1:] == [
        "nanguard: 2000 more steps skipped since then (gradient).",
        "nanguard: 2000 more steps skipped since then (gradient).",
    ]
    screen.messenger.flush()
    screen.messenger.flush()
    assert screen.lines[3:] == ["nanguard: 999 more steps skipped since then (gradient)."]


def test_counts_of_several_kinds_share_one_line_with_the_right_number():
    screen = Screen()
    kinds = [("skip", "loss", 3), ("skip", "gradient", 2), ("rollback", "state", 2), ("mention", "validation", 3)]
    for action, reason, number in kinds:
        for _ in range(number):
            screen.messenger.incident(Incident(action=action, reason=reason))
    screen.messenger.flush()
    assert screen.lines[4:] == [
        "nanguard: 3 more steps skipped since then (2 loss, 1 gradient); 1 more rollback since then (state); "
        "2 more mentions since then (validation)."
    ]


def test_a_line_begins_below_an_open_progress_bar_and_only_then():
    screen = Screen()
    screen.skip(bar_open=True)
    screen.skip("gradient")
    screen.messenger.say_once("key", "text", bar_open=True)
    screen.skip()
    screen.messenger.flush(bar_open=True)
    assert [line.startswith("\nnanguard: ") for line in screen.lines] == [True, False, True, True]
    assert all("\n" not in line[1:] for line in screen.lines)


def test_something_is_said_once_per_key():
    screen = Screen()
    for key, text in (("a", "one"), ("a", "two"), ("b", "three"), (("skip", "loss"), "four")):
        screen.messenger.say_once(key, text)
    screen.skip()
    assert screen.lines[:3] == ["nanguard: one", "nanguard: three", "nanguard: four"]
    assert len(screen.lines) == 4  # a key that looks like a kind does not hide the kind


def test_verbose_0_prints_nothing():
    screen = Screen(verbose=0)
    for step in range(100):
        screen.now += 60
        screen.skip(step=step)
        screen.messenger.say_once(step, "text")
    screen.messenger.flush()
    assert screen.lines == []


def test_lines_are_ascii_and_one_line_each():
    screen = Screen()
    screen.skip(message="layer d\u00e9ns\n\x1b[2J")
    assert screen.lines[0].isascii() and screen.lines[0].isprintable()
    assert screen.lines[0].endswith(r"layer d\xe9ns \x1b[2J")
    screen.messenger.say_once("key", "variable d\u00e9ns\nis not finite")
    assert screen.lines[1] == r"nanguard: variable d\xe9ns is not finite"


def test_it_prints_by_default(capsys):
    Messenger().incident(Incident(action="stop", reason="update", step=9))
    assert capsys.readouterr().out == (
        "nanguard: step 9: the update turned finite gradients into non-finite weights; "
        "training stopped with the last good weights.\n"
    )


@given(
    interval=st.floats(0.1, 100),
    events=st.lists(
        st.tuples(st.floats(0, 50), st.sampled_from(ACTIONS), st.sampled_from(REASONS), st.integers(1, 30)), max_size=40
    ),
    spoken=st.integers(0, 3),
)
def test_lines_are_bounded_and_every_incident_is_accounted_for(interval, events, spoken):
    """At most one line per kind, one per interval, and one at the end; what was not said in full was counted."""
    screen = Screen(min_interval=interval)
    kinds, total = set(), 0
    for wait, action, reason, number in events:
        screen.now += wait
        for _ in range(number):
            screen.messenger.incident(Incident(action=action, reason=reason))
        kinds.add((action, reason))
        total += number
        for key in range(spoken):
            screen.messenger.say_once(key, "text")
    screen.messenger.flush()
    said = spoken if events else 0
    assert len(screen.lines) <= len(kinds) + said + screen.now / interval + 1
    counts = [part for line in screen.lines if " more " in line for part in line.removeprefix("nanguard: ").split(";")]
    assert total == len(kinds) + sum(int(part.split()[0]) for part in counts)


@pytest.mark.parametrize("interval", [0, -1, float("nan"), float("inf"), True])
def test_an_interval_that_bounds_nothing_is_refused(interval):
    with pytest.raises(ValueError, match="min_interval"):
        Messenger(min_interval=interval)
