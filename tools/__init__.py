"""Commands that maintain the repository: collect results, write pages, train included files."""
