"""What training has in memory: taken at boundaries, read in place, put back. Knows torch and no store."""

from __future__ import annotations
