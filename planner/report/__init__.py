"""Outcomes as tables and JSON, and where they are written."""
