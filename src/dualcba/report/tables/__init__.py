"""Tables: one model, built from rows, and rendered as text, Markdown, LaTeX, HTML and CSV."""
