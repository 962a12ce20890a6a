"""Tables: one data model, rendered as text, Markdown, LaTeX, HTML and CSV."""
