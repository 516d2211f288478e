"""`python -m shardprep` is the command line."""

from shardprep.cli import main

if __name__ == "__main__":
    main()
