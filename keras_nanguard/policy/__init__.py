"""Decisions as pure functions on plain values: (policy, state, observation) -> (state, decision)."""
