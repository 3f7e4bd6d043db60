"""What happens inside a training step: its health, the guarded train step, `GradientGuard`."""
