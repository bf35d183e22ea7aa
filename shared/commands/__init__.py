"""What the `maskstream` command does, one file a subcommand."""
