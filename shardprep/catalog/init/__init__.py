"""What `shardprep init` looks at and proposes."""
