"""Options: `options` is the table, `parsers` parses one value, `resolve` merges flags, environment and file."""
