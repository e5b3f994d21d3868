"""The command line: `main` runs the named command, `commands` has a module for each, `parser` parses flags, `output` prints."""
