"""The OpenAI API over HTTP: schemas, validation, streams, metrics. The engine behind it does the rest."""
