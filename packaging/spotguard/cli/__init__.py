"""The command line: `main` finds the command that is named, `commands` has one module each, `parser` reads flags, `output` prints."""
