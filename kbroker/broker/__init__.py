"""Where trio begins: tasks, waiting, timers, and carrying out the effects that the pure engines
decide."""
