"""The command and its subcommands."""
