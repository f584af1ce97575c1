"""`python -m grimboost` is the `grimboost` command."""

from grimboost.command_line import main

main()
