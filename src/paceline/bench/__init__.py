"""Load tests of OpenAI-compatible servers: client, figures, report."""
