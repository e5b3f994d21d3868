"""The commands, one module each: `DESCRIPTION`, `EXAMPLES`, `add_arguments(parser)`, `run(arguments) -> code`.

Each opens the rooms it needs when it runs, not when it is listed: `spotguard run` stays beside the training
process for its whole life and never holds what only `ls` or `demo` need.
"""
