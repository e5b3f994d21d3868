"""The agent's socket: `paths` names its path, `listener` owns it, `server` and `connection` serve it. `control` asks an agent."""
