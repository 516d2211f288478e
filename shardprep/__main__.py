"""`python -m shardprep` is the command line."""

from shardprep.cli.app import main

if __name__ == "__main__":
    main()
