"""The agent's socket: `paths` says where it lies, `listener` owns it, `server` and `connection` speak on it; `control` asks another agent."""
