"""The suite. Every file opens with its oracle in one sentence."""
