"""The paper's tables and figures as data, and the runs that they need."""
