"""Front ends in the words of other frameworks; the work is done by `pufferlib.ppo`."""
