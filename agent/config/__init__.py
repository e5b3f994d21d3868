"""Options: `options` is the table, `parsers` reads one value, `resolve` takes flags, environment and file together."""
