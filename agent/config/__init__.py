"""Options: `settings` is the table, `parsers` parses one value, `options` has the checked values, `resolve` merges flags, environment and file."""
