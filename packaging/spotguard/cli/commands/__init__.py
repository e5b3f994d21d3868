"""The commands, one module each, in rooms by what a user does: `DESCRIPTION`, `EXAMPLES`, `add_arguments(parser)`, `run(arguments) -> code`.

spotguard imports only the module of the command that runs, and that module imports the packages that it needs. `spotguard run`
stays beside the training process for its whole life, and never loads code that only `ls` or `demo` need.
"""
